"""Whether a daemon lives elsewhere, by what the server shows of its processes."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.owner import SILENT_S, Owner
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import recovery_name, watch_name
from pgbridge.bridge.receive.slot_watch import INTERVAL_S
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.protocol.codec import walsender
from pgbridge.protocol.lsn import Lsn
from tests.bridge.made_daemon import wait_until


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def __call__(self) -> float:
        return self.at_s


class Streaming:
    """A process that streams from a slot, and says that it lives when it is told to."""

    def __init__(self, conninfo: str, slot_name: str) -> None:
        self.connection = psycopg.connect(conninfo, autocommit=True, replication="database")
        options = "(proto_version '1', publication_names 'pub')"
        self.connection.pgconn.exec_(f"START_REPLICATION SLOT {slot_name} LOGICAL 0/0 {options}".encode())
        self._at_us = 0

    def say(self) -> None:
        """Send a status update, by a clock of its own."""
        self._at_us += 1_000_000
        update = walsender.StandbyStatusUpdate(Lsn(1), Lsn(1), Lsn(1), self._at_us, reply_requested=False)
        self.connection.pgconn.put_copy_data(walsender.encode_standby_status_update(update))
        self.connection.pgconn.flush()

    def close(self) -> None:
        self.connection.close()


def is_free(publisher, subscription) -> bool:
    """Whether nobody streams from the slot."""
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    return bool(publisher.query(active, (subscription.slot_name,)) == [(False,)])


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def subscription(publisher):
    publisher.execute("CREATE PUBLICATION pub")
    slot_name = f"{publisher.name}_slot"
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot_name,))
    return Subscription(
        name="shop", connection=publisher.conninfo, slot_name=slot_name, publications=("pub",), warehouse="/lake"
    )


@pytest.fixture
def owner(subscription, clock):
    with Owner([subscription], clock) as made:
        yield made


def test_nobody(owner):
    assert owner.look() == ""
    assert not owner.end()


@pytest.mark.parametrize("name_of", [watch_name, recovery_name])
def test_a_session_shows_that_it_lives_by_what_it_asks(owner, clock, subscription, name_of):
    """While nothing streams: tables are copied, it waits after an error, or it recovers."""
    name = name_of(subscription.slot_name)
    with Publisher(subscription.connection, application_name=name) as publisher:
        assert owner.look().startswith(f'session "{name}" is in use from ')
        clock.at_s += 3 * INTERVAL_S
        assert owner.look() == ""
        publisher.flush_lsn()
        assert owner.look()
    wait_until(lambda: owner.look() == "")  # the server notices a moment later


def test_of_another_daemon(owner, subscription):
    with Publisher(subscription.connection, application_name=watch_name("another")):
        assert owner.look() == ""


def test_a_stream_that_says_nothing_is_ended(owner, clock, subscription, publisher):
    with closing(Streaming(subscription.connection, subscription.slot_name)) as streaming:
        streaming.say()
        assert owner.look().startswith(f'slot "{subscription.slot_name}" is in use from ')
        clock.at_s += SILENT_S / 2
        replies = (
            "SELECT reply_time FROM pg_stat_replication WHERE pid = (SELECT active_pid FROM pg_replication_slots "
            f"WHERE slot_name = '{subscription.slot_name}')"
        )
        (before,) = publisher.query(replies)
        streaming.say()
        wait_until(lambda: publisher.query(replies) != [before])
        assert owner.look()
        assert not owner.end()
        with Publisher(subscription.connection, application_name=watch_name(subscription.slot_name)) as watch:
            clock.at_s += SILENT_S
            assert owner.look() == "", "its other sessions do not matter while there is a stream"
            assert owner.end()
            wait_until(lambda: is_free(publisher, subscription))
            assert owner.look() == "", "nor afterwards, as long as they ask nothing"
            watch.flush_lsn()
            assert owner.look()
        wait_until(lambda: owner.look() == "")


def test_a_stream_that_never_said_anything(owner, clock, subscription):
    """Its daemon has ended in its first second."""
    with closing(Streaming(subscription.connection, subscription.slot_name)):
        assert owner.look()
        clock.at_s += SILENT_S
        assert owner.look() == ""


def test_a_stream_whose_client_reads_nothing(owner, clock, subscription, publisher):
    """Its process cannot even say that it is ended, and has to be told twice."""
    publisher.execute("CREATE TABLE wide (w text); ALTER PUBLICATION pub ADD TABLE wide")
    with closing(Streaming(subscription.connection, subscription.slot_name)) as streaming:
        streaming.say()
        assert owner.look()
        publisher.execute("INSERT INTO wide SELECT repeat(md5(n::text), 3000) FROM generate_series(1, 500) n")
        waits = f"SELECT wait_event FROM pg_stat_activity WHERE pid = {streaming.connection.info.backend_pid}"
        wait_until(lambda: publisher.query(waits) == [("WalSenderWriteData",)])
        owner.look()
        clock.at_s += SILENT_S

        def freed():
            assert owner.look() == ""
            return not owner.end()

        wait_until(freed, 20)
        assert is_free(publisher, subscription)


def test_an_answer_that_comes_late(owner, clock, subscription):
    """It says what was when it was asked for."""
    with closing(Streaming(subscription.connection, subscription.slot_name)) as streaming:
        streaming.say()
        owner.look()
        ask = owner._ask

        def late(conninfo):
            answer = ask(conninfo)
            clock.at_s += 2 * SILENT_S
            return answer

        owner._ask = late
        assert owner.look()


def test_a_walsender_that_decodes_lives(owner, clock, subscription, publisher):
    """It reads no replies while it decodes what it does not send."""
    publisher.execute("CREATE TABLE unpublished (n int)")
    with closing(Streaming(subscription.connection, subscription.slot_name)) as streaming:
        streaming.say()
        assert owner.look()
        publisher.execute("INSERT INTO unpublished SELECT generate_series(1, 3000000)")
        waits = (
            "SELECT wait_event FROM pg_stat_activity WHERE pid = (SELECT active_pid FROM pg_replication_slots "
            f"WHERE slot_name = '{subscription.slot_name}')"
        )
        wait_until(lambda: publisher.query(waits) == [(None,)])
        clock.at_s += 10 * SILENT_S
        assert owner.look()


def test_a_server_that_does_not_answer(owner, subscription, clock):
    away = subscription.model_copy(update={"name": "away", "connection": "host=/nonexistent"})
    with Owner([away], clock) as alone, pytest.raises(PublisherError):
        alone.look()
    with Owner([away, subscription], clock) as both:
        assert both.look() == "", "the others decide"
