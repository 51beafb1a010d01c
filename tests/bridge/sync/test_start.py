"""A subscription's start: the slot it makes, finds or refuses, and the server it belongs to.

A handler's tables: all that are published, whatever was known before; none is copied.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import structlog
from structlog.testing import capture_logs

from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, RelRow, sync_name
from pgbridge.bridge.catalog.held import held
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.publication.published_table import PublishedColumn, PublishedTable
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.runtime.errors import PublisherError, PublisherWentBack, SlotAdvanced
from pgbridge.bridge.sync.server_check import ServerCheck
from pgbridge.bridge.sync.start import HandledTables, Start, warn_without_identity
from pgbridge.bridge.track.position import ServerHistory
from pgbridge.protocol.lsn import Lsn
from tests.bridge.made_daemon import wait_until
from tests.bridge.skipped.kept import NO_SPARK
from tests.bridge.subscribed import released

SETUP = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE PUBLICATION pub FOR TABLE t"


def ids(bridge):
    return sorted(row["id"] for row in bridge.rows("t"))


def unread():
    """What is published is not read again: nothing is copied."""
    raise AssertionError


def slots(publisher):
    return [
        name
        for (name,) in publisher.query(
            "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() ORDER BY 1"
        )
    ]


def test_the_slot_is_made_once_and_no_other_stays(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline(slot_name="the_slot")
    bridge.catch_up()
    bridge.catch_up()
    assert slots(publisher) == ["the_slot"]


@pytest.mark.parametrize(
    ("before", "now"), [("t WHERE (id > 1)", "t WHERE (id > 0)"), ("t (id)", "t (id, a)"), ("t (id, a)", "t (id)")]
)
@pytest.mark.parametrize("added", [False, True], ids=["at the start", "by a refresh"])
def test_what_is_published_changes_while_a_slot_waits(publisher, memory_pipeline, before, now, added):
    """The copy goes by what the stream goes by: what is published once the slot is made."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    publisher.execute(f"CREATE PUBLICATION pub FOR TABLE {before}")
    bridge = memory_pipeline()
    if added:
        bridge.catch_up()
        refresh.ask(bridge.catalog, bridge.subscription.name, [("public", "t")], copy_data=True)
    known, worker = set(slots(publisher)), bridge.worker()
    with publisher.connect() as connection:
        connection.execute("BEGIN")
        connection.execute(f"ALTER PUBLICATION pub SET TABLE {now}".encode())
        worker.thread.start()
        wait_until(lambda: set(slots(publisher)) - known)
        connection.execute("COMMIT")
    worker.thread.join()
    publisher.execute("INSERT INTO t VALUES (3, 'z')")
    bridge.catch_up()
    columns = ("id",) if now == "t (id)" else ("id", "a")
    rows = [(1, "x"), (2, "y"), (3, "z")]
    expected = [row[: len(columns)] for row in rows]
    assert sorted(tuple(row[name] for name in columns) for row in bridge.rows("t")) == expected


@pytest.mark.parametrize("two_phase", [False, True])
def test_the_slot_is_made_with_two_phase_where_it_is_asked_for(publisher, memory_pipeline, two_phase):
    publisher.execute(SETUP)
    memory_pipeline(slot_name="phases", two_phase=two_phase).catch_up()
    slot = publisher.query("SELECT two_phase FROM pg_replication_slots WHERE slot_name = 'phases'")
    assert slot == [(two_phase,)]


def test_tables_without_an_identity_are_named_with_what_to_run(publisher):
    publisher.execute("""
        CREATE TABLE keyed (id int PRIMARY KEY);
        CREATE TABLE whole (id int); ALTER TABLE whole REPLICA IDENTITY FULL;
        CREATE TABLE indexed (id int NOT NULL UNIQUE); ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_id_key;
        CREATE TABLE "Bare" (id int);
        CREATE TABLE index_is_gone (id int NOT NULL UNIQUE);
        ALTER TABLE index_is_gone REPLICA IDENTITY USING INDEX index_is_gone_id_key;
        ALTER TABLE index_is_gone DROP CONSTRAINT index_is_gone_id_key;
        CREATE TABLE nothing (id int PRIMARY KEY); ALTER TABLE nothing REPLICA IDENTITY NOTHING;
        CREATE TABLE inserts (id int);
        CREATE TABLE cut (a int, b int, PRIMARY KEY (a, b));
        CREATE PUBLICATION pub FOR TABLE keyed, whole, indexed, "Bare", index_is_gone, nothing, cut (a);
        CREATE PUBLICATION insert_only FOR TABLE inserts WITH (publish = insert);
    """)
    with Publisher(publisher.conninfo, application_name="test") as server, capture_logs() as logs:
        warn_without_identity(server, ["insert_only"], structlog.get_logger())
        assert logs == []
        warn_without_identity(server, ["pub", "insert_only"], structlog.get_logger())
    assert [log["relation"] for log in logs] == ["public.Bare", "public.cut", "public.index_is_gone", "public.nothing"]
    assert {log["log_level"] for log in logs} == {"warning"}
    assert 'ALTER TABLE "public"."Bare" REPLICA IDENTITY FULL;' in logs[0]["hint"]
    assert logs[1]["hint"] == "add to the column list: a, b"
    publisher.execute(logs[0]["hint"].partition("; or ")[2])
    with Publisher(publisher.conninfo, application_name="test") as server, capture_logs() as logs:
        warn_without_identity(server, ["pub"], structlog.get_logger())
    assert "public.Bare" not in [log["relation"] for log in logs]


def test_a_slot_that_is_there_already_is_refused(publisher, memory_pipeline):
    publisher.execute(SETUP)
    publisher.query("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')")
    with pytest.raises(PublisherError, match='replication slot "taken" already exists') as caught:
        memory_pipeline(slot_name="taken").catch_up()
    assert "create_slot = false" in caught.value.hint
    assert "pg_drop_replication_slot('taken')" in caught.value.hint


def test_a_slot_made_just_before_a_crash_is_made_again(publisher, memory_pipeline):
    """The catalog said "creating" and the server has the slot: nobody has streamed from it."""
    publisher.execute(SETUP)
    bridge = memory_pipeline(slot_name="the_slot")
    name = bridge.subscription.name
    (system_identifier,) = publisher.query("SELECT system_identifier::text FROM pg_control_system()")[0]
    publisher.query("SELECT pg_create_logical_replication_slot('the_slot', 'pgoutput')")
    bridge.catalog.set_slot(name, slot_name="the_slot", slot_state="creating", system_identifier=system_identifier)
    publisher.execute("INSERT INTO t VALUES (2)")
    bridge.catch_up()
    assert ids(bridge) == [1, 2]


def test_a_slot_that_somebody_makes_after_a_refusal_is_not_ours(publisher, memory_pipeline, monkeypatch):
    """The server has said that it has not made it: what is there later is not dropped."""
    publisher.execute(SETUP)
    bridge = memory_pipeline(slot_name="the_slot")

    def refused(*_, **__):
        raise PublisherError("no") from psycopg.errors.ConfigurationLimitExceeded("all replication slots are in use")

    with monkeypatch.context() as patch:
        patch.setattr(ReplicationConnection, "create_slot", refused)
        with pytest.raises(PublisherError, match="no"):
            bridge.catch_up()
    publisher.query("SELECT pg_create_logical_replication_slot('the_slot', 'test_decoding')")
    with pytest.raises(PublisherError, match='replication slot "the_slot" already exists'):
        bridge.catch_up()
    assert slots(publisher) == ["the_slot"]


def test_the_slot_may_be_another_one_that_stands_there(publisher, memory_pipeline):
    """The catalog knows it from then on, and an operator is told of the one before."""
    publisher.execute(SETUP)
    bridge = memory_pipeline(slot_name="one")
    bridge.catch_up()
    publisher.query("SELECT pg_copy_logical_replication_slot('one', 'two')")
    bridge.subscription = bridge.subscription.model_copy(update={"slot_name": "two"})
    publisher.execute("INSERT INTO t VALUES (2)")
    with capture_logs() as logs:
        bridge.catch_up()
    assert ids(bridge) == [1, 2]
    assert bridge.catalog.subscription(bridge.subscription.name).slot_name == "two"
    (hint,) = (log["hint"] for log in logs if "another slot than before" in log["event"])
    publisher.query("SELECT" + hint.partition("SELECT")[2].rstrip(";"))
    assert slots(publisher) == ["two"]


@pytest.mark.parametrize(("copy_data", "expected"), [(True, [1, 2, 3]), (False, [2, 3])])
def test_an_existing_slot_is_used_as_it_stands(publisher, memory_pipeline, copy_data, expected):
    """With a copy, rows are there once: what the copy has is not applied again from the slot."""
    publisher.execute(SETUP)
    publisher.query("SELECT pg_create_logical_replication_slot('mine', 'pgoutput')")
    publisher.execute("INSERT INTO t VALUES (2)")
    bridge = memory_pipeline(slot_name="mine", create_slot=False, copy_data=copy_data)
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (3)")
    bridge.catch_up()
    assert ids(bridge) == expected
    assert slots(publisher) == ["mine"]


def test_a_slot_that_is_not_there_is_named_with_what_to_run(publisher, memory_pipeline):
    publisher.execute(SETUP)
    with pytest.raises(PublisherError, match='replication slot "mine" does not exist') as caught:
        memory_pipeline(slot_name="mine", create_slot=False).catch_up()
    assert "pg_create_logical_replication_slot('mine', 'pgoutput')" in caught.value.hint


def test_a_slot_that_somebody_moved_is_refused(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline(slot_name="moved")
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (2)")
    released(publisher, "moved")
    publisher.query("SELECT pg_replication_slot_advance('moved', pg_current_wal_lsn())")
    with pytest.raises(SlotAdvanced, match="somebody advanced or re-created it"):
        bridge.catch_up()
    assert ids(bridge) == [1]


def test_a_slot_that_somebody_made_anew_is_refused(publisher, memory_pipeline):
    """PEERS.md, debezium DBZ-5739 and supabase/etl#935: resuming on a new slot loses what came between."""
    publisher.execute(SETUP)
    bridge = memory_pipeline(slot_name="anew")
    bridge.catch_up()
    released(publisher, "anew")
    publisher.query("SELECT pg_drop_replication_slot('anew')")
    publisher.execute("INSERT INTO t VALUES (2)")
    publisher.query("SELECT pg_create_logical_replication_slot('anew', 'pgoutput')")
    with pytest.raises(SlotAdvanced):
        bridge.catch_up()


def test_a_dropped_slot_is_not_made_anew(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline(slot_name="gone")
    bridge.catch_up()
    released(publisher, "gone")
    publisher.query("SELECT pg_drop_replication_slot('gone')")
    with pytest.raises(PublisherError, match='replication slot "gone" does not exist'):
        bridge.catch_up()
    assert slots(publisher) == []


def test_the_connection_leads_to_another_server(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline()
    bridge.catch_up()
    row = bridge.catalog.subscription(bridge.subscription.name)
    bridge.catalog.set_slot(row.name, slot_name=row.slot_name, slot_state="ready", system_identifier="123")
    with pytest.raises(PublisherError, match="the publisher is another server"):
        bridge.catch_up()


@pytest.fixture
def private_server():
    """A server whose data directory a test may put back; `recovery.signal` has it promoted at the end of its WAL."""
    with EmbeddedPostgres(settings={"restore_command": "false"}, fsync=False) as server:
        yield server


class Restored:
    """A server, and a subscription of it whose catalog is kept while the server goes back and forth."""

    def __init__(self, server, folder):
        self.server = server
        self._saved = folder / "saved"
        self._subscription = Subscription(
            name="s", connection=server.conninfo(), publications=("pub",), warehouse="lake", copy_data=False
        )
        self.catalog = Catalog(catalog_path(folder / "state"))
        self.catalog.register("s", enabled=True)

    def run(self, statement: bytes) -> str:
        with psycopg.connect(self.server.conninfo(), autocommit=True) as connection:
            return str((connection.execute(statement).fetchone() or [""])[0])

    def flush_lsn(self) -> Lsn:
        return Lsn.parse(self.run(b"SELECT pg_current_wal_flush_lsn()::text"))

    def write(self) -> None:
        self.run(b"INSERT INTO t SELECT n FROM generate_series(1, 10000) AS n RETURNING id")

    def start(self) -> int | None:
        """The subscription's start, as before each stream; the timeline that it notes."""
        sync = HandledTables(self._subscription, self.catalog)
        with Publisher(self.server.conninfo(), application_name="test") as publisher:
            context = Context(self._subscription, NO_SPARK, self.catalog, structlog.get_logger())
            check = ServerCheck(context, publisher)
            check.look()
            Start(context, publisher, sync, {}, check, unread).run()
            with check.connection() as replication:
                check.admit(replication)
            check.admitted()
            check.certify()
        return self.timeline

    @property
    def timeline(self) -> int | None:
        positions = held(self.catalog, "s")
        return None if positions is None else positions.origin.timeline

    def save(self) -> None:
        self.server.stop()
        subprocess.run(("cp", "-a", self.server.datadir, self._saved), check=True)
        self.server.start()

    def put_back(self) -> None:
        self.server.stop()
        shutil.rmtree(self.server.datadir)
        subprocess.run(("cp", "-a", self._saved, self.server.datadir), check=True)
        self.server.start()

    def promote(self) -> None:
        """At the end of its WAL."""
        self.server.stop()
        (self.server.datadir / "recovery.signal").touch()
        shutil.chown(self.server.datadir / "recovery.signal", self.server.datadir.owner())
        self.server.start()
        deadline = time.monotonic() + 20
        while self.run(b"SELECT pg_is_in_recovery()") == "True":
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_server_went_back(private_server, tmp_path):
    """Refused where it was put back, and where it was promoted there; promoted at the end of its WAL it is not."""
    with psycopg.connect(private_server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int); CREATE PUBLICATION pub FOR TABLE t")
    restored = Restored(private_server, tmp_path)
    assert restored.start() == 1
    restored.save()
    restored.write()
    reached = restored.flush_lsn()
    restored.catalog.advance_origin("s", reached)
    assert restored.start() == 1

    restored.promote()
    restored.write()
    assert restored.start() == 2
    set_timeline(restored.catalog, 1)  # as if that had been another server

    restored.put_back()
    with pytest.raises(PublisherWentBack, match="the publisher went back: it has WAL up to"):
        restored.start()

    restored.promote()
    while restored.flush_lsn() <= reached:
        restored.write()
    with pytest.raises(PublisherWentBack, match="its timeline 2 left timeline 1 at"):
        restored.start()
    assert restored.timeline == 1
    restored.catalog.close()


def set_timeline(catalog, timeline):
    with catalog.transaction() as db:
        db.execute("UPDATE origin SET timeline = ?", (timeline,))


def test_the_server_went_back_to_between_the_origin_and_a_table(private_server, tmp_path):
    """The table is copied afresh, and the batch that was cut short is taken back; the subscription goes on."""
    with psycopg.connect(private_server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int); CREATE PUBLICATION pub FOR TABLE t")
    restored = Restored(private_server, tmp_path)
    assert restored.start() == 1
    begun = restored.catalog.remote_lsn("s")
    assert begun is not None
    kept = RelRow("public", "kept", "r", begun, "/lake/kept", timeline=1)
    restored.catalog.put_rel("s", kept)
    restored.save()
    restored.write()
    reached = restored.flush_lsn()
    ahead = RelRow("public", "t", "s", Lsn(0), "/lake/t", position=reached, timeline=1)
    restored.catalog.put_rel("s", ahead)
    restored.catalog.begin_batch("s", BatchIntent(begun, reached))
    restored.put_back()
    restored.promote()
    while restored.flush_lsn() <= reached:
        restored.write()
    with pytest.raises(PublisherError, match="does not have all that is durable here") as caught:
        restored.start()
    assert caught.value.retry, "the batch has to be taken back first"
    assert restored.catalog.batch("s") == BatchIntent(begun, reached, undoing=True)
    restored.catalog.drop_batch("s")
    assert restored.start() == 2
    assert restored.catalog.rels("s") == [kept]
    assert restored.catalog.rels(sync_name("s")) == [RelRow("public", "t", "d", Lsn(0), "/lake/t")]
    restored.catalog.close()


def test_the_origin_begins_at_the_slots_consistent_point(publisher, memory_pipeline):
    publisher.execute(SETUP)
    before = Lsn.parse(publisher.query("SELECT pg_current_wal_lsn()::text")[0][0])
    bridge = memory_pipeline()
    bridge.catch_up()
    assert bridge.remote_lsn() >= before


TABLE = PublishedTable(5, "public", "t", "r", "d", (PublishedColumn("id", 23, -1, True, True),), ())


def test_every_published_table_follows(tmp_path):
    subscription = Subscription(name="sub", connection="", publications=("pub",), warehouse="handler")
    publisher: Any = SimpleNamespace(types=lambda _: {})
    server = ServerHistory("7", 1, Lsn(0))
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("sub", enabled=True)
        tables = HandledTables(subscription, catalog)
        (found,) = tables.follow({("public", "t"): TABLE}, publisher, server).values()
        (rel,) = catalog.rels("sub")
        assert (rel.qualified_name, rel.state, tables.needs_copy(rel)) == ("public.t", "r", False)
        assert tables.copy({}, publisher, None) == {}  # type: ignore[arg-type]
    assert (found.target.mode, found.lsn) == ("handler", 0)
    assert [(field.name, field.arrow) for field in found.target.schema] == [("id", pa.int32())]
    other = tables.other("public", "new")
    assert (other.target.qualified_name, other.target.every_change) == ("public.new", True)
    assert other.target.path != found.target.path
