"""A batch that the checkpoint has planned, and a server that is promoted before the batch is read again.

The sink may have committed the batch with the rows of the server before: what is read again must be the same, or
nothing. The server is a cold copy of the one before it, as a standby that lagged is.
"""

from __future__ import annotations

import shutil
import subprocess

import psycopg
import pytest

from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.receive.stream import walreceiver
from pgbridge.bridge.runtime.errors import PublisherError, PublisherWentBack, SlotAdvanced
from pgbridge.bridge.source.look_ahead import HELD_BYTES
from pgbridge.bridge.source.slot_stream import Offset
from pgbridge.bridge.source.stream_reader import FromSlot
from pgbridge.protocol.lsn import Lsn
from tests.bridge.source.without_spark import Source, planned, rows_of


class Forked:
    """A server whose place earlier copies of it can take, each a standby without a primary."""

    name = "forked"

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self.conninfo = server.conninfo()

    def query(self, statement):
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    execute = query

    def insert(self, first, last):
        self.query(f"INSERT INTO orders SELECT i, 'a', 1 FROM generate_series({first}, {last}) i")

    def grow(self, size_bytes=HELD_BYTES + (1 << 20)):
        """Write WAL that nobody gets."""
        message = "pg_logical_emit_message(false, 'grow', repeat('x', 1 << 20))"
        self.query(f"SELECT {message} FROM generate_series(1, {size_bytes >> 20})")

    def save(self):
        self._server.stop()
        subprocess.run(("cp", "-a", self._server.datadir, self._server.folder / "saved"), check=True)
        self._server.start()

    def put_back(self):
        """Have the copy take the server's place, as a standby."""
        self._server.stop("immediate")
        shutil.rmtree(self._server.datadir)
        subprocess.run(("cp", "-a", self._server.folder / "saved", self._server.datadir), check=True)
        signal = self._server.datadir / "standby.signal"
        signal.touch()
        shutil.chown(signal, self._server.datadir.owner())
        self._server.start()

    def promote(self):
        self.query("SELECT pg_promote(true, 60)")


@pytest.fixture
def private_server():
    with EmbeddedPostgres(settings={"autovacuum": False}, fsync=False) as server:
        yield Forked(server)


@pytest.fixture
def source(private_server):
    made = Source(private_server)
    yield made
    made.close()


def ids(reader, start, end):
    return [row["public.orders"]["new"]["id"] for row in rows_of(reader, start, end)]


def went_over(source, size_bytes=0):
    """Batch 0, which the sink has and the checkpoint does not, and a new primary that lacks it."""
    server, reader = source.publisher, source.reader()
    start = reader.initialOffset()
    reader.stop()
    server.save()
    if size_bytes:
        server.grow(size_bytes)
    server.insert(1, 3)
    end = planned(reader, start)
    assert ids(reader, start, end) == [1, 2, 3]
    reader.stop()
    server.put_back()
    server.promote()
    server.insert(101, 103)
    server.grow()
    server.insert(201, 201)
    return start, end


@pytest.mark.parametrize("size_bytes", [0, HELD_BYTES + (1 << 20)], ids=["in memory", "from the slot"])
def test_a_planned_batch_that_the_new_primary_lacks_is_refused(source, size_bytes):
    """With other rows under the same number, an idempotent sink would leave them out for good."""
    start, end = went_over(source, size_bytes)
    assert end["timeline"] == 1
    reader = source.reader()
    for begin in (start, reader.initialOffset()):  # Spark asks for the start of batch 0 once more
        with pytest.raises(PublisherWentBack) as caught:
            reader.partitions(begin, end)
        assert f"up to {end['lsn']} of timeline 1" in caught.value.message
        assert "its timeline 2 left timeline 1 at" in caught.value.message
        assert "docs/spark-source.md#beginning-again" in caught.value.hint
    with pytest.raises(PublisherWentBack):  # also where only batch 1 is planned
        planned(reader, end)
    task = FromSlot(Offset.of(start), Offset.of(end), None)
    with pytest.raises(PublisherWentBack):
        list(source.reader().read(task))

    source.drop_slot()  # the hint
    anew = source.reader(create_slot="true")
    start = anew.initialOffset()
    source.publisher.insert(301, 301)
    assert ids(anew, start, planned(anew, start)) == [301]


def test_a_planned_batch_that_the_new_primary_has_is_the_same(source):
    """A promotion that lost nothing is followed; each offset keeps the timeline that it was received on."""
    server, reader = source.publisher, source.reader(maxRowsPerTrigger="3")
    start = reader.initialOffset()
    server.insert(1, 3)
    server.insert(4, 6)
    first = planned(reader, start)
    reader.stop()
    server.save()
    server.put_back()
    server.promote()
    server.insert(101, 103)
    again = source.reader(maxRowsPerTrigger="3")
    assert ids(again, start, first) == [1, 2, 3]
    second = planned(again, first)
    assert ids(again, first, second) == [4, 5, 6]
    third = planned(again, second)
    assert ids(again, second, third) == [101, 102, 103]
    assert [offset["timeline"] for offset in (start, first, second, third)] == [1, 1, 2, 2]


def test_a_promotion_between_two_batches_of_one_reader(source):
    """What the planner knew of the server before is not taken for the new one's."""
    server, reader = source.publisher, source.reader()
    start = reader.initialOffset()
    server.save()
    server.insert(1, 3)
    end = planned(reader, start)
    server.put_back()
    server.promote()
    server.insert(101, 103)
    server.grow()
    with pytest.raises(PublisherWentBack, match="left timeline 1 at"):
        planned(reader, end)


def test_the_timeline_stays_known_on_a_standby(source):
    """The offsets that a query gets from a standby say up to where their timeline is certain."""
    server, reader = source.publisher, source.reader()
    if int(server.query("SHOW server_version_num")[0][0]) < 160000:
        pytest.skip("a standby decodes from PostgreSQL 16 on")
    start = reader.initialOffset()
    server.insert(1, 3)
    end = planned(reader, start)
    reader.stop()
    server.save()
    server.put_back()
    standby = source.reader(idleIntervalSeconds="0")
    assert ids(standby, start, end) == [1, 2, 3]
    later = planned(standby, end)
    assert (later["timeline"], Lsn.parse(later["lsn"]) > Lsn.parse(end["lsn"])) == (1, True)
    standby.stop()
    assert source.reader().initialOffset()["timeline"] == 1
    with pytest.raises(PublisherError, match="the standby lags"):
        source.reader(slotTimeoutSeconds="0").partitions(end, {**end, "lsn": "1/0"})


@pytest.mark.parametrize("point", ["__init__", "start"])
def test_a_slot_that_moves_after_the_check_is_refused(source, monkeypatch, point):
    """The server would begin where the slot is, and say nothing."""
    reader = source.reader()
    start = reader.initialOffset()
    source.publisher.insert(1, 3)
    before = getattr(walreceiver.WalReceiver, point)

    def hooked(*arguments, **options):
        source.publisher.query(f"SELECT pg_replication_slot_advance('{source.slot}', pg_current_wal_flush_lsn())")
        return before(*arguments, **options)

    monkeypatch.setattr(walreceiver.WalReceiver, point, hooked)
    with pytest.raises(SlotAdvanced):
        planned(reader, start)


def test_a_server_that_is_replaced_after_the_planners_check_is_refused(source, monkeypatch):
    """The one that counts is on the connection that streams."""
    server, reader = source.publisher, source.reader(slotTimeoutSeconds="0")
    start = reader.initialOffset()
    server.save()
    server.insert(1, 3)
    end = planned(reader, start)
    reader.stop()
    before = walreceiver.WalReceiver.__init__

    def hooked(*arguments, **options):
        monkeypatch.undo()
        server.put_back()
        server.promote()
        server.insert(101, 103)
        server.grow()
        return before(*arguments, **options)

    task = source.reader().partitions(start, end)[0]
    monkeypatch.setattr(walreceiver.WalReceiver, "__init__", hooked)
    with pytest.raises(PublisherError):  # the connection to the server before is lost
        list(source.reader().read(task))
    with pytest.raises(PublisherWentBack):
        list(source.reader().read(task))
