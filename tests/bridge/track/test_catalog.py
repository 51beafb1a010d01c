"""What a call has returned from is there after any end of the process; what it promises never to do, it never does."""

from __future__ import annotations

import multiprocessing
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from bridge.errors import StateError
from bridge.track import stats
from bridge.track.catalog import Catalog, catalog_path
from bridge.track.rows import BatchIntent, ColumnRow, CopyRow, ErrorRow, RelRow, SubscriptionRow
from bridge.track.schema import SCHEMA_VERSION
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T1 = RelRow("public", "t1", "i", Lsn(0), "/lake/public/t1")
T2 = RelRow("public", "t2", "s", Lsn(0x200), "/lake/public/t2")


@pytest.fixture
def path(tmp_path) -> Path:
    return catalog_path(tmp_path / "state")


@pytest.fixture
def catalog(path) -> Iterator[Catalog]:
    """A catalog with the subscription `shop`."""
    with closing(Catalog(path)) as opened:
        opened.register("shop", enabled=True)
        yield opened


@pytest.fixture
def started(catalog):
    """The same, with an origin at 0/100."""
    catalog.create_origin("shop", Lsn(0x100), "abc", [T1, T2])
    return catalog


def everything(catalog: Catalog, name: str = "shop") -> tuple[object, ...]:
    """All that can be read of a subscription."""
    return (
        catalog.subscription(name),
        catalog.remote_lsn(name),
        catalog.batch(name),
        catalog.rels(name),
        catalog.last_error(name),
    )


# --- subscription -----------------------------------------------------------------------------------------------------


def test_what_is_not_there(catalog):
    assert everything(catalog, "other") == (None, None, None, [], None)


def test_new_subscription(catalog):
    assert catalog.subscription("shop") == SubscriptionRow(
        name="shop",
        enabled=True,
        incarnation=None,
        epoch=0,
        slot_name=None,
        slot_state=None,
        system_identifier=None,
        skip_lsn=None,
        state="stopped",
        received_lsn=Lsn(0),
        apply_error_count=0,
        sync_error_count=0,
    )
    assert everything(catalog)[1:] == (None, None, [], None)


@pytest.mark.parametrize("configured", [True, False])
def test_disable_and_enable_outlast_restarts(catalog, configured):
    """What the commands said holds until the file is changed; a change of the file holds until the next command."""

    def restart(*, enabled: bool) -> bool:
        catalog.register("other", enabled=enabled)
        return bool(catalog.subscription("other").enabled)

    assert restart(enabled=configured) is configured
    catalog.set_enabled("other", enabled=not configured)
    assert restart(enabled=configured) is not configured
    catalog.set_enabled("other", enabled=configured)
    assert restart(enabled=not configured) is not configured
    assert restart(enabled=not configured) is not configured
    assert restart(enabled=configured) is configured


def test_register_keeps_everything_else(started):
    started.set_state("shop", "streaming", received_lsn=Lsn(0x500))
    before = everything(started)
    started.register("shop", enabled=True)
    assert everything(started) == before


def test_slot(catalog):
    for state in ("creating", "ready"):
        catalog.set_slot("shop", slot_name="shop_1", slot_state=state, system_identifier="7123")
        row = catalog.subscription("shop")
        assert (row.slot_name, row.slot_state, row.system_identifier) == ("shop_1", state, "7123")


def test_state_and_received_lsn(catalog):
    """The LSN is kept where none is given, and never goes back."""
    for lsn, kept in [(0x500, 0x500), (None, 0x500), (0x400, 0x500), (0x600, 0x600)]:
        catalog.set_state("shop", f"at {lsn}", received_lsn=None if lsn is None else Lsn(lsn))
        row = catalog.subscription("shop")
        assert (row.state, row.received_lsn) == (f"at {lsn}", kept)
        assert isinstance(row.received_lsn, Lsn)


def test_subscriptions_are_apart(started):
    """Nothing that is done to one is seen in another."""
    started.register("other", enabled=True)
    started.create_origin("other", Lsn(0x900), "def", [RelRow("public", "t1", "r", Lsn(1), "/lake2/public/t1")])
    started.begin_batch("other", BatchIntent(Lsn(0x900), Lsn(0x950)))
    started.record_error("other", "no", counter="apply", finish_lsn=Lsn(0x940))
    other = everything(started, "other")
    started.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
    started.finish_batch("shop", Lsn(0x250))
    started.advance_origin("shop", Lsn(0x300))
    started.set_enabled("shop", enabled=False)
    started.set_state("shop", "streaming", received_lsn=Lsn(0x1000))
    started.set_slot("shop", slot_name="s", slot_state="ready", system_identifier="1")
    started.record_error("shop", "no", counter="sync")
    started.put_rel("shop", RelRow("public", "t1", "d", Lsn(2), "/lake/public/t1"))
    assert everything(started, "other") == other


# --- origin and batches -----------------------------------------------------------------------------------------------


def test_create_origin(started):
    row = started.subscription("shop")
    assert (row.incarnation, row.slot_state) == ("abc", "ready")
    assert started.remote_lsn("shop") == Lsn(0x100)
    assert isinstance(started.remote_lsn("shop"), Lsn)
    assert started.rels("shop") == [T1, T2]


def test_origin_is_made_once(started):
    """A second one is an error, and nothing of it is kept: not its incarnation, not its tables."""
    before = everything(started)
    with pytest.raises(sqlite3.IntegrityError):
        started.create_origin("shop", Lsn(0x900), "other", [RelRow("public", "t3", "i", Lsn(0), "/lake/public/t3")])
    assert everything(started) == before


def test_create_origin_is_one_transaction(catalog):
    """A table's row that cannot be written leaves no origin without tables."""
    with pytest.raises(sqlite3.IntegrityError):
        catalog.create_origin("shop", Lsn(0x100), "abc", [T1, RelRow("public", "t2", "?", Lsn(0), "/lake/public/t2")])
    assert catalog.remote_lsn("shop") is None
    assert catalog.rels("shop") == []
    assert catalog.subscription("shop").incarnation is None


@pytest.mark.parametrize(("lsn", "after"), [(0x150, 0x150), (0x100, 0x100), (0xFF, 0x100)])
def test_advance_origin_never_back(started, lsn, after):
    assert started.advance_origin("shop", Lsn(lsn)) is (lsn > 0x100)
    assert started.remote_lsn("shop") == after


def test_advance_origin_not_while_a_batch_is_under_way(started):
    """Its transactions end between the origin and there, and may not be in their tables yet."""
    started.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
    assert not started.advance_origin("shop", Lsn(0x200))
    assert started.remote_lsn("shop") == 0x100
    started.finish_batch("shop", Lsn(0x150))
    started.advance_origin("shop", Lsn(0x200))
    assert started.remote_lsn("shop") == 0x200


def test_advance_origin_without_origin(catalog):
    assert not catalog.advance_origin("shop", Lsn(0x200))
    assert catalog.remote_lsn("shop") is None


def test_batch(started):
    assert started.batch("shop") is None
    intent = BatchIntent(Lsn(0x100), Lsn(0x150))
    started.begin_batch("shop", intent)
    assert started.batch("shop") == intent
    assert started.remote_lsn("shop") == 0x100
    started.finish_batch("shop", Lsn(0x150))
    assert started.batch("shop") is None
    assert started.remote_lsn("shop") == 0x150


def test_batch_is_formed_again_with_its_boundaries(started):
    """After a crash the same intent is recorded once more."""
    for _ in range(2):
        started.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
    assert started.batch("shop") == BatchIntent(Lsn(0x100), Lsn(0x150))


@pytest.mark.parametrize(
    "other",
    [
        BatchIntent(Lsn(0x100), Lsn(0x140)),
        BatchIntent(Lsn(0x150), Lsn(0x160)),
        BatchIntent(Lsn(0x100), Lsn(0x150), alters=True),
    ],
)
def test_a_standing_intent_is_not_overwritten(started, other):
    """What its batch has committed would be committed again: neither by another range, nor while it is taken back."""
    intent = BatchIntent(Lsn(0x100), Lsn(0x150))
    started.begin_batch("shop", intent)
    with pytest.raises(StateError, match=r"a batch from 0/100 to 0/150 was begun and not finished: one from") as caught:
        started.begin_batch("shop", other)
    assert "the next start finishes or undoes the first one" in caught.value.hint
    assert started.batch("shop") == intent
    started.begin_undo("shop")
    with pytest.raises(StateError):
        started.begin_batch("shop", intent)
    assert started.batch("shop") == BatchIntent(Lsn(0x100), Lsn(0x150), undoing=True)
    started.finish_undo("shop")
    started.begin_batch("shop", other)
    assert started.batch("shop") == other


def test_finish_batch_never_moves_the_origin_back(started):
    started.finish_batch("shop", Lsn(0x50))
    assert started.remote_lsn("shop") == 0x100


def test_finish_batch_forgets_the_error(started):
    """It stays until a later transaction was applied; the counters stay for good."""
    started.record_error("shop", "no", counter="apply", finish_lsn=Lsn(0x140), relation="public.t1")
    started.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
    started.advance_origin("shop", Lsn(0x150))
    assert started.last_error("shop") is not None
    started.finish_batch("shop", Lsn(0x150))
    assert started.last_error("shop") is None
    assert started.subscription("shop").apply_error_count == 1


def test_finish_batch_has_the_relid_of_a_table_that_was_created_again(started):
    started.put_rel("shop", RelRow("public", "t1", "r", Lsn(0), "/lake/public/t1", 5))
    started.finish_batch("shop", Lsn(0x250), relids={7: ("public", "t1")})
    assert [(rel.name, rel.relid) for rel in started.rels("shop")] == [("t1", 7), ("t2", None)]


@pytest.mark.parametrize("statement", range(1, 5))
def test_finish_batch_is_one_transaction(started, statement):
    """Cut short at any of its statements, it has done nothing; done again, it does all."""
    started.record_error("shop", "no", counter="apply")
    started.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x250)))
    before = everything(started)
    tables = ["origin", "batch", "error", "subscription_rel"]
    action = {"origin": "UPDATE", "subscription_rel": "UPDATE"}.get(tables[statement - 1], "DELETE")
    started._database.connection.execute(
        f"CREATE TRIGGER cut BEFORE {action} ON {tables[statement - 1]} BEGIN SELECT RAISE(ABORT, 'cut'); END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="cut"):
        started.finish_batch("shop", Lsn(0x250))
    assert everything(started) == before
    started._database.connection.execute("DROP TRIGGER cut")
    started.finish_batch("shop", Lsn(0x250))
    assert started.remote_lsn("shop") == 0x250
    assert (started.batch("shop"), started.last_error("shop")) == (None, None)
    assert [rel.state for rel in started.rels("shop")] == ["i", "r"]


# --- tables -----------------------------------------------------------------------------------------------------------


def test_tables_by_name(catalog):
    """Names are told apart as the server does: case, spaces, quotes and scripts are part of them."""
    names = [("a", "b"), ("A", "b"), ("a", 'b "c" d'), ("a.b", "c"), ("a", "b.c"), ("büro", "ключ")]
    rels = [RelRow(namespace, name, "i", Lsn(n), f"/lake/{n}") for n, (namespace, name) in enumerate(names)]
    for rel in rels:
        catalog.put_rel("shop", rel)
    assert catalog.rels("shop") == sorted(rels, key=lambda rel: (rel.namespace, rel.name))
    assert rels[2].qualified_name == 'a.b "c" d'


def test_table_is_written_over(catalog):
    catalog.put_rel("shop", T1)
    changed = RelRow("public", "t1", "s", Lsn(0x300), "/lake/public/t1")
    catalog.put_rel("shop", changed)
    assert catalog.rels("shop") == [changed]


@pytest.mark.parametrize("by", ["finish_batch", "advance_origin"])
def test_synchronised_table_becomes_ready(started, by):
    """Once the origin has reached its snapshot, from either side, and not before; other states stay."""
    others = [RelRow("public", f"x{state}", state, Lsn(1), f"/lake/x{state}") for state in "idfr"]
    for rel in others:
        started.put_rel("shop", rel)

    def states() -> dict[str, str]:
        return {rel.name: rel.state for rel in started.rels("shop")}

    move = getattr(started, by)
    move("shop", Lsn(0x1FF))
    assert states() == {"t1": "i", "t2": "s", **{f"x{state}": state for state in "idfr"}}
    move("shop", Lsn(0x200))
    assert states() == {"t1": "i", "t2": "r", **{f"x{state}": state for state in "idfr"}}


def test_unknown_state_is_refused(catalog):
    with pytest.raises(sqlite3.IntegrityError):
        catalog.put_rel("shop", RelRow("public", "t1", "x", Lsn(0), "/lake/public/t1"))


def test_tables_need_their_subscription(catalog):
    with pytest.raises(sqlite3.IntegrityError):
        catalog.put_rel("nobody", T1)


def test_owner_of_a_path(started):
    """Two subscriptions that write to one Delta table would undo each other's work."""
    started.register("other", enabled=True)
    started.put_rel("other", RelRow("public", "x", "r", Lsn(0), "/lake/x"))
    assert started.owner_of("/lake/public/t1", but="other") == "shop"
    assert started.owner_of("/lake/public/t1", but="shop") is None
    assert started.owner_of("/lake/x", but="shop") == "other"
    assert started.owner_of("/lake/y", but="shop") is None


# --- errors -----------------------------------------------------------------------------------------------------------


def test_errors(catalog):
    """The last one with all it carries; each counted where it belongs, or nowhere."""
    before_s = time.time()
    catalog.record_error("shop", "first", counter="apply", finish_lsn=Lsn(0x140), relation="public.t1")
    first = catalog.last_error("shop")
    assert first == ErrorRow("first", Lsn(0x140), "public.t1", first.time_s)
    assert isinstance(first.finish_lsn, Lsn)
    assert before_s <= first.time_s <= time.time()
    catalog.record_error("shop", "second\nHINT:  два", counter="sync")
    catalog.record_error("shop", "third", counter=None)
    catalog.record_error("shop", "fourth", counter="sync")
    last = catalog.last_error("shop")
    assert (last.message, last.finish_lsn, last.relation) == ("fourth", None, None)
    row = catalog.subscription("shop")
    assert (row.apply_error_count, row.sync_error_count) == (1, 2)


# --- the file ---------------------------------------------------------------------------------------------------------


def test_reopening_sees_what_was_written(path):
    with closing(Catalog(path)) as catalog:
        catalog.register("shop", enabled=False)
        catalog.set_slot("shop", slot_name="shop", slot_state="creating", system_identifier="7123")
        catalog.create_origin("shop", Lsn(0x16B374D848), "abc", [T1, T2])
        catalog.set_enabled("shop", enabled=True)
        catalog.set_state("shop", "streaming", received_lsn=Lsn(0x16B374D900))
        catalog.begin_batch("shop", BatchIntent(Lsn(0x16B374D848), Lsn(0x16B374D8F0)))
        catalog.record_error("shop", "no", counter="apply", finish_lsn=Lsn(0x16B374D8E0))
        before = everything(catalog)
    with closing(Catalog(path)) as catalog:
        assert everything(catalog) == before


_KILLED = """
import os, signal, sys
from pathlib import Path
from bridge.track.catalog import Catalog
from bridge.track.rows import BatchIntent
from protocol.lsn import Lsn
catalog = Catalog(Path(sys.argv[1]))
catalog.register("shop", enabled=True)
catalog.create_origin("shop", Lsn(0x100), "abc", [])
catalog.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
catalog.finish_batch("shop", Lsn(0x150))
catalog.begin_batch("shop", BatchIntent(Lsn(0x150), Lsn(0x190)))
with catalog._transaction() as db:
    db.execute("UPDATE origin SET remote_lsn = 999")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_process_leaves_what_its_calls_returned_from(path):
    """And nothing of the call it was killed in."""
    process = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False)
    assert process.returncode == -9
    with closing(Catalog(path)) as catalog:
        assert catalog.remote_lsn("shop") == 0x150
        assert catalog.batch("shop") == BatchIntent(Lsn(0x150), Lsn(0x190))


def test_survives_a_power_cut(catalog):
    """SQLite promises that for a WAL file only with synchronous = FULL."""
    assert catalog._database.connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert catalog._database.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_later_schema_is_refused(path):
    """And left as it is: the later version may still need it."""
    with closing(Catalog(path)) as catalog:
        catalog.register("shop", enabled=True)
        catalog._database.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StateError, match=rf"later version of pgbridge \(schema {SCHEMA_VERSION + 1}\)"):
        Catalog(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)
        assert db.execute("SELECT name FROM subscription").fetchall() == [("shop",)]


def test_file_that_is_no_catalog(path):
    path.parent.mkdir()
    path.write_text("not a database, but longer than SQLite's header of a hundred bytes " * 20)
    with pytest.raises(StateError, match=r"catalog\.sqlite cannot be opened: file is not a database\nHINT:  "):
        Catalog(path)


@pytest.mark.parametrize("place", ["file/state/catalog.sqlite", "folder"])
def test_place_that_cannot_be_written(tmp_path, place):
    """Below a file; and where a folder stands. Permissions would say nothing where root runs the tests."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StateError, match=r"cannot be opened: .*\nHINT:  state_dir must be a folder"):
        Catalog(tmp_path / place)


# --- at the same time -------------------------------------------------------------------------------------------------


def _count_errors(path: Path, barrier, count: int) -> None:
    """In a process of its own: open the catalog with all the others, and count."""
    barrier.wait()
    with closing(Catalog(path)) as catalog:
        catalog.register("shop", enabled=True)
        for n in range(count):
            catalog.record_error("shop", f"error {n}", counter="apply")


def test_processes_at_once(path):
    """They make the file together, and every call of each counts: the daemon and the commands share it."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_count_errors, args=(path, barrier, 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with closing(Catalog(path)) as catalog:
        row = catalog.subscription("shop")
        assert row is not None
        assert row.apply_error_count == 60


def test_threads_at_once(started):
    """One object, many threads: no call sees or rolls back another's transaction."""
    failed: list[Exception] = []

    def write(number: int) -> None:
        try:
            for n in range(40):
                started.record_error("shop", "no", counter="sync")
                started.set_state("shop", f"{number}", received_lsn=Lsn(n))
                if n % 10 == 0:
                    with pytest.raises(sqlite3.IntegrityError):
                        started.put_rel("shop", RelRow("public", "t1", "?", Lsn(0), ""))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failed.append(error)

    def read() -> None:
        try:
            for _ in range(150):
                assert started.subscription("shop") is not None
                assert started.rels("shop") == [T1, T2]
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failed.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)] + [threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert started.subscription("shop").sync_error_count == 120


def test_writer_waits_for_another_process(started, path):
    """A command that holds the write lock for a moment is waited for."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.1, other.execute, ["COMMIT"])
        timer.start()
        started.advance_origin("shop", Lsn(0x180))
        timer.join()
    assert started.remote_lsn("shop") == 0x180


def test_columns_of_published_tables_move_with_the_origin(catalog):
    """Written with a copy; later with the batch that came to know others."""
    catalog.register("shop", enabled=True)
    catalog.create_origin("shop", Lsn(10), "inc", [])
    one, two = ColumnRow(1, "id", 23, -1), ColumnRow(2, "c", 25, -1, "hidden")
    catalog.put_columns("shop", 7, [two, one])
    catalog.put_columns("shop", 8, [one])
    assert catalog.columns("shop") == {7: (one, two), 8: (one,)}
    gone = ColumnRow(2, "c", 25, -1, "gone")
    catalog.begin_batch("shop", BatchIntent(Lsn(10), Lsn(20), alters=True))
    assert catalog.batch("shop") == BatchIntent(Lsn(10), Lsn(20), alters=True)
    catalog.finish_batch("shop", Lsn(20), columns={7: (one, gone)})
    assert catalog.columns("shop") == {7: (one, gone), 8: (one,)}
    assert catalog.columns("other") == {}


def test_copies_are_those_that_were_put_last(started):
    one = CopyRow("public", "t1", 1, 2, 3, None, None)
    two = CopyRow("public", "t2", 10, 20, 30, 1.5, 2.5)
    stats.put_copies(started, "shop", [two, one])
    assert stats.copies(started, "shop") == [one, two]
    assert stats.copies(started, "other") == []
    stats.put_copies(started, "shop", [two])
    assert stats.copies(started, "shop") == [two]
    assert two.qualified_name == "public.t2"
