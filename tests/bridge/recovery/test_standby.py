"""When a standby goes on, and with which state. `tests/faults/test_takeover.py` has two machines under load."""

from __future__ import annotations

from contextlib import closing, contextmanager
from unittest import mock

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.catalog import manifest
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.receive.owner import SILENT_S, Owner
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import watch_name
from pgbridge.bridge.recovery.standby import Standby, check_fencing
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.errors import ConfigError
from tests.bridge.made_daemon import SETUP, wait_until


@contextmanager
def watching(subscription, publisher):
    """A session of another daemon, which has ended on the server afterwards."""
    name = watch_name(subscription.slot_name)
    with Publisher(subscription.connection, application_name=name):
        yield
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()"
    wait_until(lambda: publisher.query(sessions, (name,)) == [(0,)])


class Machine:
    """A second machine with the configuration of a subscription, and a clock that a test moves."""

    def __init__(self, bridge, folder) -> None:
        self.bridge, self.catalog, self.at_s = bridge, Catalog(catalog_path(folder)), 0.0
        self.name = bridge.subscription.name
        self.catalog.register(self.name, enabled=True)
        with capture_logs():
            self.standby = Standby([bridge.subscription], self.catalog, log.get(), lambda: self.at_s)

    def turns(self, *after_s: float) -> list[bool]:
        """A look after each of these, in seconds since the one before."""
        outcomes = []
        for seconds in after_s:
            self.at_s += seconds
            outcomes.append(self.standby.turn(self.bridge.spark))
        return outcomes

    def close(self) -> None:
        self.standby.close()
        self.catalog.close()


@pytest.fixture
def bridge(memory_pipeline, publisher):
    publisher.execute(SETUP)
    return memory_pipeline()


@pytest.fixture
def other(bridge, tmp_path):
    with closing(Machine(bridge, tmp_path / "other")) as made:
        yield made


def go_on(machine, publisher) -> None:
    """Have the subscription go on with a machine's state, without a copy, and with what comes then."""
    bridge = machine.bridge
    bridge.catalog, before = machine.catalog, bridge.catalog
    with capture_logs() as events:
        publisher.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
        bridge.catch_up()
        assert len(bridge.rows("t")) == publisher.query("SELECT count(*) FROM t")[0][0]
    assert "table copy started" not in [event["event"] for event in events]
    bridge.catalog = before


def test_it_waits_for_a_while_without_a_sign_and_takes_over(bridge, other, publisher):
    bridge.catch_up()
    assert other.turns(0, 5, 4, 2) == [False, False, False, True]
    go_on(other, publisher)
    assert manifest.generation(other.catalog, other.name) == 1


def test_the_last_one_goes_on_at_once(bridge, other, publisher):
    """It was restarted. The one before it waits, although it has a state."""
    bridge.catch_up()
    with closing(Standby([bridge.subscription], bridge.catalog, log.get())) as first:
        assert first.turn(bridge.spark)
        other.turns(0, 11)
        go_on(other, publisher)
        assert other.turns(0) == [True]
        assert not first.turn(bridge.spark)


def test_an_outdated_state_is_made_anew(bridge, other, publisher):
    bridge.catch_up()
    other.turns(0, 11)
    go_on(other, publisher)
    first = Machine.__new__(Machine)
    first.bridge, first.catalog, first.at_s, first.name = bridge, bridge.catalog, 0.0, other.name
    with closing(Standby([bridge.subscription], bridge.catalog, log.get(), lambda: first.at_s)) as first.standby:
        assert first.turns(0, 11) == [False, True]
    go_on(first, publisher)
    assert manifest.generation(bridge.catalog, other.name) == 2
    assert other.turns(0) == [False]


def test_one_that_lives_is_waited_for(bridge, other, publisher):
    bridge.catch_up()
    with watching(bridge.subscription, publisher), capture_logs() as events:
        other.standby._log = log.get()
        assert other.turns(0, 11, 11) == [False, False, False]
    (event,) = events
    assert event["event"] == "another daemon streams; this one waits for its end"
    assert event["owner"].startswith(f'session "{watch_name(bridge.subscription.slot_name)}" is in use from ')
    assert other.turns(0, 11) == [False, True], "it counts from when it was seen last"


def test_one_that_says_nothing_is_ended_and_not_waited_for(bridge, other):
    bridge.catch_up()
    signs, ends = ["slot is in use", "", ""], [True, False]
    with mock.patch.object(Owner, "look", side_effect=signs), mock.patch.object(Owner, "end", side_effect=ends):
        assert other.turns(0, SILENT_S, 1) == [False, False, True]


def test_a_new_subscription_begins_once_nobody_is_there(bridge, other, publisher):
    with watching(bridge.subscription, publisher):
        assert other.turns(0, 11) == [False, False], "another one copies its tables"
    assert other.turns(0, 11) == [False, True]
    assert other.catalog.remote_lsn(other.name) is None
    bridge.catalog = other.catalog
    bridge.catch_up()
    assert bridge.state("t") == "r"


def test_a_new_one_beside_others_begins_at_once(bridge, memory_pipeline, publisher):
    bridge.catch_up()
    added = bridge.subscription.model_copy(update={"name": "added", "slot_name": f"{publisher.name}_added"})
    bridge.catalog.register("added", enabled=True)
    with closing(Standby([bridge.subscription, added], bridge.catalog, log.get())) as standby:
        assert standby.turn(bridge.spark)


def test_a_server_that_is_away(bridge, other):
    bridge.catch_up()
    other.turns(0, 9)
    other.standby._log = log.get()
    with mock.patch.object(Owner, "look", Owner([gone(bridge.subscription)]).look), capture_logs() as events:
        assert other.turns(2, 60) == [False, False]
    assert [event["event"] for event in events] == ["cannot take over now"], "once"
    assert other.turns(0, 11) == [False, True]


def gone(subscription):
    """The subscription, if its server did not answer."""
    return subscription.model_copy(update={"connection": "host=/nonexistent"})


def test_one_whose_slot_was_dropped_is_no_reason_to_wait(bridge, other, publisher):
    """Its worker says what to do."""
    bridge.catch_up()
    publisher.query("SELECT pg_drop_replication_slot(%s)", (bridge.subscription.slot_name,))
    other.standby._log = log.get()
    with capture_logs() as events:
        assert other.turns(0, 11) == [False, True]
    (event,) = [event for event in events if event["log_level"] == "error"]
    assert "perhaps the subscription was dropped" in event["error"]
    assert manifest.generation(other.catalog, other.name) == 0


# --- stores -----------------------------------------------------------------------------------------------------------

_FOR_ALL, _FOR_S3A = "spark.delta.logStore.class", "spark.delta.logStore.s3a.impl"
_SEVERAL, _ONE = "io.delta.storage.S3DynamoDBLogStore", "io.delta.storage.S3SingleDriverLogStore"


@pytest.mark.parametrize(
    ("warehouse", "settings"),
    [
        ("/lake", {}),
        ("abfss://lake@account/shop", {}),
        ("catalog:unity", {}),
        ("s3a://lake/shop", {_FOR_S3A: _SEVERAL}),
        ("s3a://lake/shop", {_FOR_ALL: _SEVERAL}),
    ],
)
def test_a_store_that_keeps_late_commits_out(warehouse, settings):
    check_fencing(warehouse, settings)


@pytest.mark.parametrize("settings", [{}, {_FOR_S3A: _ONE}, {_FOR_S3A: _ONE, _FOR_ALL: _SEVERAL}])
def test_a_store_that_does_not(settings):
    with pytest.raises(ConfigError, match="S3SingleDriverLogStore cannot keep out") as caught:
        check_fencing("s3a://lake/shop", settings)
    assert "spark.delta.logStore.s3a.impl" in caught.value.hint
    assert "--unfenced" in caught.value.hint
