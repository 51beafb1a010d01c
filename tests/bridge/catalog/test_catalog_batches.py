"""The origin never goes back, and a batch begins and ends in one transaction each."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from pgbridge.bridge.catalog.catalog_rows import AppliedBatch, BatchIntent, ColumnRow, RelRow
from pgbridge.bridge.catalog.held import ahead_of_origin, held, note_timeline
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.track.position import Position
from pgbridge.protocol.lsn import Lsn
from tests.bridge.track.made_catalog import T1, T2, everything, server_on

APPLIED = AppliedBatch("o", Lsn(0x100), 1, 2, 1, ())


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


@pytest.mark.parametrize(
    "other",
    [
        BatchIntent(Lsn(0x100), Lsn(0x150)),
        BatchIntent(Lsn(0x100), Lsn(0x140)),
        BatchIntent(Lsn(0x150), Lsn(0x160)),
        BatchIntent(Lsn(0x100), Lsn(0x150), alters=True),
    ],
)
def test_a_standing_intent_is_not_overwritten(started, other):
    """Neither by the same batch, whose commits would be made again, nor while it is being undone."""
    intent = BatchIntent(Lsn(0x100), Lsn(0x150))
    started.begin_batch("shop", intent)
    with pytest.raises(StateError, match=r"a batch from 0/100 to 0/150 was begun and not finished: one from") as caught:
        started.begin_batch("shop", other)
    assert "the next start settles the first one" in caught.value.hint
    assert started.batch("shop") == intent
    started.begin_undo("shop")
    with pytest.raises(StateError):
        started.begin_batch("shop", intent)
    assert started.batch("shop") == BatchIntent(Lsn(0x100), Lsn(0x150), undoing=True)
    assert started.subscription("shop").epoch == 0
    started.drop_batch("shop")
    assert started.subscription("shop").epoch == 1, "Delta would leave out its commits otherwise"
    started.begin_batch("shop", other)
    assert started.batch("shop") == other


@pytest.mark.parametrize("tables", [None, (), ("/lake/public/t1", "/lake/public/t2")])
def test_the_tables_that_a_batch_commits_to(started, tables):
    started.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150), tables=tables))
    assert started.batch("shop").tables == tables


def test_the_position_of_tables_that_a_batch_has_committed_to(started):
    """All others stay where they are, and none goes back."""
    rels = {name: RelRow("public", name, "r", Lsn(0x80), f"/lake/public/{name}") for name in ("a", "b")}
    ahead = RelRow("public", "c", "s", Lsn(0x80), "/lake/public/c", position=Lsn(0x300), timeline=2)
    for rel in (*rels.values(), ahead):
        started.put_rel("shop", rel)
    started.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
    committed = (rels["a"].path, ahead.path)
    started.finish_batch("shop", Lsn(0x150), applied=AppliedBatch("o", Lsn(0x100), 1, 2, 1, (), committed))
    after = {rel.name: rel for rel in started.rels("shop")}
    assert {name: rel.position for name, rel in after.items()} == {"a": 0x150, "b": 0, "c": 0x300, "t1": 0, "t2": 0}
    assert {rel.lsn for name, rel in after.items() if name in "abc"} == {0x80}, "it joined the stream where it did"
    assert (after["c"], after["c"].since_lsn, after["b"].since_lsn) == (ahead, 0x300, 0x80)


def test_the_timeline_of_what_is_recorded(started):
    """Of the batch, its tables and the transaction to skip: the one that was noted last."""
    started.put_rel("shop", replace(T1, state="r", timeline=1))
    note_timeline(started, "shop", server_on(3))
    started.set_skip_lsn("shop", Lsn(0x140))
    started.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
    positions = held(started, "shop")
    assert positions is not None
    assert positions.batch == Position(None, 3, Lsn(0x150), Lsn(0))
    assert positions.skip == Position(None, 3, Lsn(0x140), Lsn(0))
    note_timeline(started, "shop", server_on(4))
    started.finish_batch("shop", Lsn(0x150), applied=AppliedBatch("o", Lsn(0x100), 1, 2, 1, (), (T1.path,)))
    assert {rel.name: (rel.position, rel.timeline) for rel in started.rels("shop")} == {
        "t1": (0x150, 4),
        "t2": (0, None),
    }


def test_a_batch_that_is_held(started):
    """Its tables have it, and the columns are theirs; the origin stays, and so does the last error."""
    started.record_error("shop", "no", counter="apply", finish_lsn=Lsn(0x140))
    started.set_skip_lsn("shop", Lsn(0x140))
    started.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
    column = ColumnRow(1, "id", 23, -1)
    started.hold_batch(
        "shop",
        Lsn(0x150),
        (T1.path,),
        clear_skip_lsn=Lsn(0x140),
        columns={7: [column]},
        relids={7: ("public", "t1")},
    )
    assert (started.remote_lsn("shop"), started.batch("shop"), started.skip_lsn("shop")) == (0x100, None, None)
    assert started.last_error("shop") is not None
    assert started.rels("shop") == [replace(T1, position=Lsn(0x150), relid=7), T2]
    assert started.columns("shop") == {7: (column,)}
    assert ahead_of_origin(started, "shop") == [replace(T1, position=Lsn(0x150), relid=7)]
    assert started.subscription("shop").epoch == 0


def test_an_epoch_is_raised_and_never_lowered(started):
    for epoch, after in ((3, 3), (2, 3), (3, 3), (4, 4)):
        started.raise_epoch("shop", epoch)
        assert started.subscription("shop").epoch == after


def test_a_flush_that_was_begun_stands_until_the_batch_is_finished_or_undone(started):
    """Through an undo, too, whose own flush may fail."""
    intent = BatchIntent(Lsn(0x100), Lsn(0x150))
    started.begin_flush("shop")  # without a batch: nothing
    for end in (lambda: started.drop_batch("shop"), lambda: started.finish_batch("shop", Lsn(0x150))):
        started.begin_batch("shop", intent)
        assert not started.batch("shop").must_be_undone
        started.begin_flush("shop")
        assert started.batch("shop") == replace(intent, flushing=True)
        assert started.batch("shop").must_be_undone
        with pytest.raises(StateError):
            started.begin_batch("shop", intent)
        started.begin_undo("shop")
        assert started.batch("shop") == replace(intent, undoing=True, flushing=True)
        end()
        assert started.batch("shop") is None


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
    started.finish_batch("shop", Lsn(0x250), relids={7: ("public", "t1")}, applied=APPLIED)
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
