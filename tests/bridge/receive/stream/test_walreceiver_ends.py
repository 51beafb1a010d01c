"""How streams end: by the server, by an error, by `stop`."""

from __future__ import annotations

import threading

import psycopg
import pytest

from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.receive.stream import copy_both
from pgbridge.bridge.runtime.errors import PublisherError, StreamError
from pgbridge.protocol.lsn import Lsn
from tests.bridge.receive.streams import (
    Stream,
    ids,
    insert,
    wait_for,
)

pytestmark = pytest.mark.usefixtures("often")


def test_terminated_walsender(stream, publisher):
    """As a restart or a failover looks: what was received before is taken first, and it is worth trying again."""
    stream.start()
    insert(publisher, 1)
    wait_for(lambda: stream.progress.handed_over_lsn > stream.start_lsn)
    publisher.query(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s",
        (stream.slot_name,),
    )
    assert ids(stream.take(1)) == [[1]]
    error = stream.failure()
    assert isinstance(error, PublisherError)
    assert error.retry
    assert "terminating connection due to administrator command" in str(error)


def test_the_servers_last_words_are_read(stream, publisher, monkeypatch):
    """Where sending fails first: they are still in the socket."""

    def terminated() -> None:
        publisher.query(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s",
            (stream.slot_name,),
        )
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(stream.receiver, "_send_status_if_due", terminated)
    stream.start()
    error = stream.failure()
    assert isinstance(error, PublisherError)
    assert "terminating connection due to administrator command" in error.message
    assert error.retry


@pytest.fixture
def private_server():
    """A server that a test may restart."""
    with EmbeddedPostgres(fsync=False) as server:
        yield server


def test_the_server_is_restarted(private_server, tmp_path):
    """The stream is lost; a new one goes on from what is durable, without loss and repetition.

    A server that shuts down cleanly sends all it has, and waits for it to be confirmed: an applier that has nothing
    left to apply must not hold it up, though the shutdown itself writes WAL.
    """
    conninfo = private_server.conninfo()
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int); CREATE PUBLICATION p FOR TABLE t")
        stream = Stream(conninfo, "restarted", tmp_path / "spool")
        stream.start()
        connection.execute("INSERT INTO t VALUES (1)")
        (first,) = stream.take(1)
        stream.progress.durable(first.end_lsn)
    try:
        restarting = threading.Thread(target=private_server.restart, args=("fast",))
        restarting.start()
        while restarting.is_alive():
            stream.progress.durable(stream.progress.quiet_lsn() or first.end_lsn)
            restarting.join(0.02)
        error = stream.failure()
        assert isinstance(error, PublisherError)
        assert error.retry
        durable_lsn = stream.progress.durable_lsn
        for life, mode in enumerate(("immediate", None), 2):
            stream.again(durable_lsn)
            stream.start()
            with psycopg.connect(conninfo, autocommit=True) as connection:
                connection.execute(f"INSERT INTO t VALUES ({life})".encode())
            assert ids(stream.take(life - 1)) == [[n] for n in range(2, life + 1)]
            if mode is not None:
                private_server.restart(mode)
                error = stream.failure()
                assert isinstance(error, PublisherError)
                assert error.retry
    finally:
        stream.receiver.stop()


def test_somebody_else_reads_the_slot(stream, publisher):
    """By a walsender whose client was killed a moment ago: tried again soon."""
    stream.start()
    second = Stream.__new__(Stream)
    second.__dict__.update(stream.__dict__)
    second.open(stream.start_lsn)
    try:
        with pytest.raises(PublisherError) as caught:
            second.receiver.start()
    finally:
        second.receiver.stop()
    assert str(caught.value).startswith(f'cannot stream from replication slot "{stream.slot_name}": ')
    assert "is active for PID" in str(caught.value)
    assert caught.value.retry
    insert(publisher, 1)
    assert ids(stream.take(1)) == [[1]]


def test_no_such_slot(stream, publisher):
    publisher.query("SELECT pg_drop_replication_slot(%s)", (stream.slot_name,))
    with pytest.raises(PublisherError, match="does not exist") as caught:
        stream.receiver.start()
    assert not caught.value.retry


def test_a_publication_is_dropped(stream, publisher):
    """The stream ends with the server's words; from 18 on the server only warns, and the warning is passed on."""
    notices: list[str] = []
    stream.again(stream.start_lsn, notice=notices.append)
    stream.start()
    insert(publisher, 1)
    stream.take(1)
    publisher.execute("DROP PUBLICATION p")
    insert(publisher, 2)
    if publisher.query("SHOW server_version_num")[0][0] >= "180000":
        wait_for(lambda: notices)
        assert notices[0].startswith('WARNING:  skipped loading publication "p"')
    else:
        error = stream.failure()
        assert isinstance(error, PublisherError)
        assert 'publication "p" does not exist' in str(error)
        assert "to copy all tables again, run: pgbridge resync" in error.hint
        assert not error.retry


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("XX000", StreamError),  # "could not map filenumber … to relation OID"
        ("22012", StreamError),  # a row filter that divides by zero
        ("42704", PublisherError),  # no such publication
        ("53100", PublisherError),
        ("55006", PublisherError),
        ("57P01", PublisherError),
        (None, PublisherError),
    ],
)
def test_errors_that_streaming_may_be_the_reason_of(sqlstate, kind):
    assert type(copy_both.StreamEnded("why", sqlstate).error("shop", Lsn(0))) is kind


def test_any_other_error_reaches_the_queue(stream, publisher):
    """A receiver that died silently would look like an idle publication."""

    def fail(_) -> None:
        raise RuntimeError("a bug")

    stream.again(stream.start_lsn, after_receive=fail)
    stream.start()
    insert(publisher, 1)
    assert str(stream.failure()) == "a bug"


def test_stop_before_the_start_and_twice(stream):
    stream.receiver.stop()
    stream.receiver.stop()
    assert stream.receiver.replication.connection.closed


def test_stop_frees_the_slot(stream, publisher):
    """And ends the thread, also while the queue is full."""
    stream.again(stream.start_lsn, max_bytes=1)
    stream.start()
    insert(publisher, 1, 2)
    wait_for(lambda: not stream.queue.wait_for_room(0))
    stream.receiver.stop()
    assert not stream.receiver._thread.is_alive()
    query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_for(lambda: publisher.query(query, (stream.slot_name,)) == [(False,)])
