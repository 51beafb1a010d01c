"""Streamed and prepared transactions from a real slot: bounded in memory, kept where they must be, removed after."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import make_conninfo

from pgbridge.bridge.batch.batch import Batch
from pgbridge.bridge.batch.decode_block import decode_blocks
from pgbridge.bridge.receive.stream import copy_both, walreceiver
from pgbridge.bridge.receive.stream.queue import BatchLimits
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.runtime.threads import share_interpreter
from pgbridge.protocol.bulk.columns import RowMessages
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec.messages import Begin, Insert, Relation, StreamStart, StreamStop
from pgbridge.protocol.codec.pgoutput import decode, encode
from pgbridge.protocol.codec.walsender import HEADER_BYTES, XLogData, encode_xlog_data
from pgbridge.protocol.errors import UnexpectedMessage
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Ending
from tests.bridge.receive.streams import Stream, wait_for, wal_position
from tests.oracle.walsender import STREAM_EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbridge.protocol.codec.messages import Message
    from pgbridge.protocol.stream.transactions import Transaction


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Status updates every 50 ms, so that a test sees their effect soon."""
    monkeypatch.setattr(walreceiver, "STATUS_INTERVAL_S", 0.05)
    monkeypatch.setattr(walreceiver, "IDLE_STATUS_INTERVAL_S", 0.05)


@pytest.fixture
def stream(publisher, tmp_path) -> Iterator[Stream]:
    """A stream of the publication p, the table t, with everything streamed and two_phase."""
    publisher.needs(16)
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    made = Stream(publisher.conninfo, f"{publisher.name}_slot", tmp_path / "spool")
    made.conninfo = make_conninfo(publisher.conninfo, options=STREAM_EVERYTHING)
    made.options |= {"proto_version": 3, "streaming": "on", "two_phase": True}
    made.again(made.start_lsn)
    yield made
    made.receiver.stop()


def files(stream: Stream) -> list[str]:
    return sorted(path.name for path in stream.folder.iterdir())


def ids(transaction: Transaction) -> list[int]:
    """The first values of a committed transaction's rows that count, in order."""
    found = []
    for run in decode_blocks([transaction]):
        messages = RowMessages(run.rows, skip_bytes=HEADER_BYTES, in_stream=run.in_stream)
        data = run.rows.messages()
        for row, xid in zip(data, messages.xids if messages.xids is not None else [0] * len(data), strict=True):
            insert = decode(row[HEADER_BYTES:], in_stream=run.in_stream)
            assert isinstance(insert, Insert)
            if xid not in transaction.aborted:
                found.append(int(insert.new_tuple[0].data))
    return found


def test_interleaved_transactions_leave_in_the_order_of_their_commits(stream, publisher):
    """With the changes of released subtransactions, and without those of rolled back ones."""
    stream.start()
    with publisher.connect() as one, publisher.connect() as two:
        one.execute("BEGIN; INSERT INTO t VALUES (1); SAVEPOINT a; INSERT INTO t VALUES (2)")
        two.execute("BEGIN; INSERT INTO t VALUES (10)")
        one.execute("ROLLBACK TO a; INSERT INTO t VALUES (3); SAVEPOINT b; INSERT INTO t VALUES (4); RELEASE b")
        two.execute("INSERT INTO t VALUES (11); COMMIT")
        one.execute("INSERT INTO t VALUES (5); COMMIT")
    first, second = stream.take(2)
    assert (ids(first), ids(second)) == ([10, 11], [1, 3, 4, 5])
    assert first.end_lsn < second.end_lsn


def test_memory_is_bounded_whatever_is_in_progress(stream, publisher):
    """Changes beyond the limit are in files, those of a rolled back transaction until it ends."""
    stream.again(stream.start_lsn, memory_bytes=20_000)
    stream.start()
    with publisher.connect() as one, publisher.connect() as two:
        for connection, first in ((one, 0), (two, 10_000)):
            connection.execute(f"BEGIN; INSERT INTO t SELECT n, 'x' FROM generate_series({first}, {first} + 999) AS n")
        wait_for(lambda: len(files(stream)) == 2)
        two.execute("ROLLBACK")
        wait_for(lambda: len(files(stream)) == 1)
        assert sum(t.memory_bytes for t in stream.receiver._assembler.in_progress()) <= 20_000
        one.execute("COMMIT")
    (transaction,) = stream.take(1)
    assert ids(transaction) == list(range(1000))
    assert transaction.n_rows == 1000


def test_a_large_transaction_that_is_not_streamed_goes_to_a_file_too(stream, publisher):
    stream.options |= {"streaming": "off"}
    stream.again(stream.start_lsn, memory_bytes=20_000)
    stream.start()
    # some 7000 of them come at once, if the walsender is that much faster than this process
    publisher.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 20000) AS n")
    (transaction,) = stream.take(1)
    assert transaction.spooled is not None
    assert transaction.spooled.rows > 1000
    assert ids(transaction) == list(range(1, 20001))


@pytest.mark.parametrize("streaming", ["off", "on"])
def test_prepared_in_one_life_and_committed_in_the_next(stream, publisher, streaming):
    """The file is all that is left of its changes: the server does not send them again once they are confirmed.

    Nor does it announce their table again, which it did before the prepared transaction, or within its stream.
    """
    stream.options |= {"streaming": streaming}
    stream.again(stream.start_lsn)
    stream.start()
    publisher.execute("INSERT INTO t VALUES (0)")
    publisher.execute(
        "BEGIN; INSERT INTO t VALUES (1); SAVEPOINT s; INSERT INTO t VALUES (2); ROLLBACK TO s;"
        f" PREPARE TRANSACTION '{publisher.name}'"
    )
    _, prepared = stream.take(2)
    assert (prepared.ending, prepared.gid, prepared.n_rows) == (Ending.PREPARE, publisher.name, 0)
    (file,) = files(stream)
    publisher.execute("CREATE TABLE other (n int)")
    stream.again(prepared.end_lsn, keep=[file])
    stream.start()
    publisher.execute(f"COMMIT PREPARED '{publisher.name}'")
    (committed,) = stream.take(1)
    assert (committed.ending, committed.xid, ids(committed)) == (Ending.COMMIT, prepared.xid, [1])
    assert committed.end_lsn > prepared.end_lsn
    assert [relation.name for relation in committed.relations] == (["t"] if streaming == "off" else [])


def test_prepared_and_rolled_back(stream, publisher):
    stream.start()
    publisher.execute(f"BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION '{publisher.name}'")
    publisher.execute(f"ROLLBACK PREPARED '{publisher.name}'")
    publisher.execute("INSERT INTO t VALUES (2)")
    prepared, ended, after = stream.take(3)
    assert [t.ending for t in (prepared, ended, after)] == [Ending.PREPARE, Ending.ROLLBACK_PREPARED, Ending.COMMIT]
    assert list(decode_blocks([prepared, ended])) == []
    assert ids(after) == [2]


def test_streamed_without_any_row(stream, publisher):
    """A transaction that changes only the catalog, as autovacuum's, comes without rows and is passed over."""
    publisher.execute("INSERT INTO t VALUES (1); ANALYZE t")
    stream.again(wal_position(publisher))
    stream.start()
    for statement in ("INSERT INTO t VALUES (2)", "ANALYZE t", "INSERT INTO t VALUES (3)"):
        publisher.execute(statement)
    taken = stream.take(3)
    assert [ids(transaction) for transaction in taken] == [[2], [], [3]]


def test_prepared_before_the_slot_had_two_phase(stream, publisher):
    """It comes whole at COMMIT PREPARED, with positions that go back: only its commit is handed over."""
    stream.receiver.stop()
    publisher.execute(f"BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION '{publisher.name}'")
    publisher.execute("INSERT INTO t VALUES (2)")
    stream.options |= {"two_phase": False}
    stream.again(stream.start_lsn)
    stream.start()
    (other,) = stream.take(1)
    stream.progress.durable(other.end_lsn)
    stream.options |= {"two_phase": True}
    stream.again(other.end_lsn)
    stream.start()
    publisher.execute(f"COMMIT PREPARED '{publisher.name}'")
    (committed,) = stream.take(1)
    assert (committed.ending, ids(committed)) == (Ending.COMMIT, [1])


def test_a_prepared_transaction_whose_file_is_gone(stream, publisher):
    """Its commit is refused rather than passed over."""
    stream.start()
    publisher.execute(f"BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION '{publisher.name}'")
    (prepared,) = stream.take(1)
    stream.again(prepared.end_lsn)
    assert files(stream) == []
    stream.start()
    publisher.execute(f"COMMIT PREPARED '{publisher.name}'")
    error = stream.failure()
    assert isinstance(error, UnexpectedMessage)
    assert f'prepared transaction with identifier "{publisher.name}"' in str(error)


def test_a_spool_that_cannot_be_written(stream, publisher):
    """A full disk, say: an error that names the file, and nothing is lost."""
    stream.folder.rmdir()
    stream.start()
    publisher.execute(f"BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION '{publisher.name}'")
    publisher.execute(f"ROLLBACK PREPARED '{publisher.name}'")
    error = stream.failure()
    assert isinstance(error, StateError)
    assert f"spool file {stream.folder}" in str(error)


def test_large_logical_messages_are_in_files_too(stream, publisher, monkeypatch):
    """Their contents are checked, not only their existence."""
    monkeypatch.setattr(copy_both, "_BUFFER_BYTES", 1 << 14)
    stream.options["messages"] = True
    stream.again(stream.start_lsn, memory_bytes=200_000)
    stream.start()
    publisher.execute(
        "SELECT pg_logical_emit_message(true, 'p', repeat(n::text, 50000)) FROM generate_series(1, 9) AS n"
    )
    (transaction,) = stream.take(1)
    assert transaction.memory_bytes < 300_000
    batch = Batch.of([transaction], stream.start_lsn)
    batch.with_messages.append(transaction)
    assert [message.content for _, message in batch.messages()] == [str(n).encode() * 50_000 for n in range(1, 10)]


class Scripted:
    """A walsender's messages, one read at a time."""

    def __init__(self, *reads: list[bytes]) -> None:
        self._reads = list(reads)

    def read(self) -> MessageArray:
        return MessageArray.of(self._reads.pop(0))

    def wake(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is held."""


def sent(lsn: int, message: Message) -> bytes:
    return encode_xlog_data(XLogData(Lsn(lsn), Lsn(lsn), 0, encode(message)))


def test_positions_of_a_streamed_transaction_count_although_no_keepalive_comes(stream):
    """Inside a segment and behind it; not those of a transaction that came whole, nor where the server tells none."""
    start, row = StreamStart(7, first_segment=True), Insert(1, (), xid=7)
    base = int(stream.start_lsn)
    stream.receiver.stop()
    reads = [
        [sent(base + 10, start), sent(base + 20, row)],
        [sent(base + 30, row), sent(0, Relation(2, "public", "u", "d", (), xid=7))],
        [sent(base + 40, row), sent(base + 40, StreamStop())],
        [sent(base + 50, Begin(Lsn(base + 60), 0, 8)), sent(base + 55, Insert(1, (), xid=None))],
    ]
    stream.receiver._copy_both = Scripted(*reads)
    found = []
    for _ in reads:
        stream.receiver._receive()
        found.append((stream.progress.quiet_lsn() or base) - base)
    assert found == [20, 20, 40, 40]


def test_restart_in_the_middle_of_a_streamed_transaction(stream, publisher):
    """From a position after its first changes: it is sent again, whole."""
    stream.start()
    with publisher.connect() as one:
        one.execute("BEGIN; INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)")
        publisher.execute("INSERT INTO t VALUES (10)")
        (other,) = stream.take(1)
        stream.progress.durable(other.end_lsn)
        one.execute("INSERT INTO t VALUES (3); INSERT INTO t VALUES (4)")  # the first may lie at that end
        publisher.execute("CREATE TABLE other ()")  # a commit has the WAL flushed, and sent
        wait_for(lambda: (stream.progress.quiet_lsn() or 0) > other.end_lsn)
        quiet_lsn = stream.progress.quiet_lsn()
        stream.again(quiet_lsn)
        stream.start()
        one.execute("INSERT INTO t VALUES (5); COMMIT")
    (whole,) = stream.take(1)
    assert ids(whole) == [1, 2, 3, 4, 5]
    assert stream.nothing_comes()


@pytest.mark.soak
def test_status_updates_are_in_time_on_a_loaded_machine(publisher, tmp_path, monkeypatch):
    """300 MB of long rows are spooled beside two busy threads and four busy processes, with wal_sender_timeout = 4s."""
    monkeypatch.setattr(walreceiver, "STATUS_INTERVAL_S", 1.0)
    switch_s = sys.getswitchinterval()
    share_interpreter(1)  # as the daemon does
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    publisher.execute("ALTER TABLE t ALTER a SET STORAGE EXTERNAL")
    stream = Stream(publisher.conninfo, f"{publisher.name}_slot", tmp_path / "spool")
    publisher.execute("INSERT INTO t SELECT i, repeat('0123456789', 15000) FROM generate_series(1, 2000) i")
    stream.conninfo = make_conninfo(publisher.conninfo, options="-c wal_sender_timeout=4s")
    stream.again(stream.start_lsn, memory_bytes=64 << 20)
    sent_s = [time.monotonic()]
    send_status = stream.receiver._send_status

    def timed() -> None:
        send_status()
        sent_s.append(time.monotonic())

    monkeypatch.setattr(stream.receiver, "_send_status", timed)
    done = threading.Event()

    def compute() -> None:
        while not done.is_set():
            sum(i * i for i in range(1000))

    threads = [threading.Thread(target=compute) for _ in range(2)]
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        stream.start()
        deadline = time.monotonic() + 300
        taken: list[Any] = []
        while not taken:
            assert time.monotonic() < deadline
            taken = stream.queue.take(BatchLimits(1, 1 << 40, 0), 1)
    finally:
        done.set()
        sys.setswitchinterval(switch_s)
        for process in processes:
            process.kill()
            process.wait()
        for thread in threads:
            thread.join()
        stream.receiver.stop()
    assert [item.spooled is not None and item.spooled.rows > 1000 for item in taken] == [True]
    gaps_s = sorted(later - earlier for earlier, later in pairwise(sent_s))
    assert gaps_s[-1] < 3, gaps_s[-5:]
