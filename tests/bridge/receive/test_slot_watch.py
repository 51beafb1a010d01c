"""The slots of all subscriptions are looked at, and each concern is told once."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive import slot_watch
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import watch_name
from pgbridge.bridge.receive.slot_status import Slots, SlotStatus
from pgbridge.bridge.receive.slot_watch import SlotWatch
from pgbridge.protocol.lsn import Lsn
from tests.bridge.configurations import altered
from tests.bridge.made_daemon import wait_until


@pytest.fixture
def watched(publisher):
    """Subscriptions of a server with a slot, without one, and of a server that does not answer."""
    slot = f"{publisher.name}_slot"
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    common = {"publications": ("p",), "warehouse": "/lake"}
    return [
        Subscription(name="a", connection=publisher.conninfo, slot_name=slot, alerts={"retained_bytes": 1}, **common),
        Subscription(name="b", connection=publisher.conninfo, slot_name=f"{slot}_gone", **common),
        Subscription(name="c", connection="host=/nonexistent", **common),
    ]


def test_what_is_seen_and_told(publisher, watched):
    with closing(SlotWatch(lambda: watched)) as watch, capture_logs() as events:
        watch.look()
        watch.look()
    told = [event for event in events if event["log_level"] != "debug"]
    assert [(event["subscription"], event["log_level"]) for event in told] == [("a", "warning"), ("b", "error")]
    assert "pgbridge resync b" in told[1]["hint"]
    health = watch.health()
    assert health.keys() == {"a", "b"}
    assert (health["a"].wal_status, health["a"].active, health["b"].lost) == ("reserved", False, True)
    assert not health["a"].synchronous


def test_a_round_is_one_query_on_a_connection_that_stays(publisher, watched):
    """One that the server has ended is made again; one that nobody needs any more is closed."""
    pids = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND datname = %s"
    watched.pop()

    def look():
        watch.look()
        return publisher.query(pids, (watch_name(f"{publisher.name}_slot"), publisher.name))

    with closing(SlotWatch(lambda: watched)) as watch:
        with mock.patch.object(Publisher, "rows", autospec=True, side_effect=Publisher.rows) as asked:
            first = look()
            asked.reset_mock()
            assert look() == first
            assert [call.args[1] for call in asked.call_args_list] == ["slots"]
        publisher.query("SELECT pg_terminate_backend(%s, 10000)", first[0])
        again = look()
        assert len(again) == 1
        assert again != first
        assert watch.health().keys() == {"a", "b"}
        watched.clear()
        watch.look()
        wait_until(lambda: publisher.query(pids, (watch_name(f"{publisher.name}_slot"), publisher.name)) == [], 20)


def test_the_password_expires_within_a_week(publisher, watched, monkeypatch):
    """Told once a day: the server's own notice comes with each login, from 19 on, and the driver drops it."""
    role = f"{publisher.name}_role"
    until = datetime.now(UTC)
    publisher.execute(f"CREATE ROLE {role} LOGIN REPLICATION VALID UNTIL '{until + timedelta(days=2, hours=1)}'")
    try:
        conninfo = f"{publisher.conninfo} user={role}"
        of_role = [one.model_copy(update={"connection": conninfo}) for one in watched[:1]]
        with closing(SlotWatch(lambda: of_role)) as watch, capture_logs() as events:
            watch.look()
            watch.look()
            monkeypatch.setattr(slot_watch, "_PASSWORD_AGAIN_S", 0.0)
            watch.look()
            publisher.execute(f"ALTER ROLE {role} VALID UNTIL 'infinity'")
            watch.look()
        told = [(event["hours_left"], event["subscriptions"]) for event in events if "hours_left" in event]
        assert told == [(49, ["a"])] * 2
    finally:
        publisher.execute(f"DROP ROLE {role}")


def test_a_slot_that_is_safe_again(publisher, watched):
    with closing(SlotWatch(lambda: watched)) as watch, capture_logs() as events:
        watch.look()
        watched[0] = altered(watched[0], alerts__retained_bytes=0)
        watch.look()
    told = [event["event"] for event in events if event.get("subscription") == "a"]
    assert told[1:] == ["the replication slot is safe again"]


def test_a_concern_is_told_again_after_a_while(watched, monkeypatch):
    monkeypatch.setattr(slot_watch, "_AGAIN_S", 0.0)
    with closing(SlotWatch(lambda: watched[1:2])) as watch, capture_logs() as events:
        watch.look()
        watch.look()
    assert len(events) == 2


def test_the_thread_looks_and_ends(watched):
    rounds = []

    def subscriptions():
        rounds.append(1)
        if len(rounds) == 1:
            raise RuntimeError("the catalog cannot be read")
        watch.close()
        return []

    watch = SlotWatch(subscriptions, interval_s=0.01)
    with capture_logs() as events:
        watch.start()
        watch._thread.join(20)
    assert len(rounds) == 2
    assert [event["event"] for event in events] == ["the slots could not be looked at"]


def test_a_new_subscriptions_slot_is_looked_at_soon(publisher, watched, monkeypatch):
    """Its lag would be unknown for the rest of the interval."""
    monkeypatch.setattr(slot_watch, "_TURN_S", 0.05)
    now = watched[:1]
    watch = SlotWatch(lambda: now)
    with watch:
        watch.start()
        wait_until(lambda: watch.health().keys() == {"a"}, 20)
        now.append(watched[1])
        wait_until(lambda: watch.health().keys() == {"a", "b"}, 20)


def test_a_silent_server_holds_up_no_other(watched, monkeypatch):
    """What was seen of the others is new in each round; of it nothing is known any more after a minute."""
    silent, speak, asked = set(), threading.Event(), []

    def ask(_, conninfo, subscriptions):
        asked.append(conninfo)
        if conninfo in silent:
            assert speak.wait(60)
        status = SlotStatus("pgoutput", "logical", "db", True, 1, Lsn(1), "reserved", restart_lsn=Lsn(1))
        return Slots({each.slot_name: status for each in subscriptions}, Lsn(len(asked)), None, "")

    monkeypatch.setattr(SlotWatch, "_ask", ask)
    monkeypatch.setattr(slot_watch, "_PATIENCE_S", 0.5)
    here, there = watched[0].connection, watched[2].connection
    with closing(SlotWatch(lambda: watched)) as watch, capture_logs():
        watch.look()
        assert watch.health().keys() == {"a", "b", "c"}
        silent |= {there}
        for rounds in (2, 3):
            watch.look()
            assert watch.health()["a"].flush_lsn == len(asked) - (rounds == 2 and asked[-1] == there)
            assert watch.health().keys() == {"a", "b", "c"}
        assert (asked.count(here), asked.count(there)) == (3, 2)
        monkeypatch.setattr(slot_watch, "_OLD_S", 1.0)
        time.sleep(1.0)
        watch.look()
        assert watch.health().keys() == {"a", "b"}
        speak.set()
        wait_until(lambda: "c" in watch.health(), 20)


def test_an_answer_that_is_late_is_not_of_another_server(watched, monkeypatch):
    """The connection string has changed meanwhile."""
    speak = threading.Event()
    real = SlotWatch._ask

    def ask(self, conninfo, subscriptions):
        assert speak.wait(60)
        return real(self, conninfo, subscriptions)

    monkeypatch.setattr(SlotWatch, "_ask", ask)
    monkeypatch.setattr(slot_watch, "_PATIENCE_S", 0.1)
    now = watched[:1]
    with closing(SlotWatch(lambda: now)) as watch, capture_logs():
        watch.look()
        now[0] = now[0].model_copy(update={"connection": "host=/nonexistent"})
        watch.look()
        late = [*watch._under_way.values()]
        speak.set()
        for answer in late:
            answer.result(20)
        assert watch.health() == {}


def test_an_error_of_its_own_is_told(watched, monkeypatch):
    monkeypatch.setattr(Publisher, "slots", lambda *_: 1 / 0)
    with closing(SlotWatch(lambda: watched[:1])) as watch, capture_logs() as events:
        watch.look()
    assert [event["log_level"] for event in events] == ["warning"]
