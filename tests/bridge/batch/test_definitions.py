"""Definitions that change in the stream: the targets follow, and so do changes that the batch already has."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes, Subscribed
from pgbridge.bridge.catalog.catalog_rows import ColumnRow
from pgbridge.bridge.evolution.alterations import AddColumn, RenameColumn, WidenColumn
from pgbridge.bridge.evolution.tracker import DefinitionTracker
from pgbridge.bridge.publication.tables import Attribute, PrimaryKey
from pgbridge.bridge.runtime.errors import ApplyError, NeedsResync
from pgbridge.bridge.targets.target import Target, target_field, variant_field
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec import messages as m
from pgbridge.protocol.codec.messages import Column, Delete, Insert, Relation, Truncate, Update
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.stream.assembler import TransactionAssembler
from pgbridge.protocol.stream.transactions import Transaction
from pgbridge.protocol.values.types import resolve
from tests.bridge.batch.streamed import INT4, LOG, NULL, TEXT, T, batcher, insert, subscribed, text, transaction
from tests.protocol.made_stream import wrapped

WIDER = Relation(1, "public", "t", "d", (*T.columns, Column("c", INT4, -1, is_key=False)))


def evolving(*attributes, known=((1, "id", INT4), (2, "note", TEXT)), tables=(), **options):
    """Make a batcher whose targets follow the stream; `attributes` are the publisher's catalog."""
    tracker = DefinitionTracker(
        "shop",
        known={1: tuple(ColumnRow(number, name, oid, -1) for number, name, oid in known)},
        attributes=lambda *_: attributes,
        types=lambda wanted: [resolve(*item) for item in wanted],
    )
    return batcher(*(tables or [subscribed(T)]), tracker=tracker, **options)


ID, NOTE = Attribute(1, "id", INT4, -1), Attribute(2, "note", TEXT, -1)
C = Attribute(3, "c", INT4, -1, fill=b"7")


def test_a_column_with_a_constant_reaches_what_came_before_it_in_the_batch():
    """An INSERT before the column has the constant; an UPDATE keeps the target's value, which is the constant, too."""
    bridge = evolving(ID, NOTE, C)
    batch = bridge.form(
        [transaction(100, T, insert(1, "a"), Update(1, (text(2), text("b"))), WIDER, Insert(1, (text(3), NULL, NULL)))],
        Lsn(50),
    )
    (table,) = batch.tables
    assert batch.alters
    assert table.alterations == (AddColumn("c", pa.int32(), pa.scalar(7, pa.int32())),)
    assert [field.name for field in table.target.schema] == ["id", "note", "c"]
    rows = table.changes.select(["new_0", "new_2", "unchanged_2"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, 7, False), (2, 7, True), (3, None, False)]
    assert [row.name for row in batch.columns[1]] == ["id", "note", "c"]
    # known from then on
    later = bridge.form([transaction(200, Insert(1, (text(4), NULL, text(1))))], Lsn(108))
    assert (later.alters, later.columns, later.tables[0].alterations) == (False, {}, ())
    assert [field.name for field in later.tables[0].target.schema] == ["id", "note", "c"]


def test_a_renamed_and_a_widened_column_are_one_through_the_batch():
    """Columns are followed by number, not by name, and earlier values get the wider type."""
    other = Relation(1, "public", "t", "d", (Column("id", 20, -1, is_key=True), Column("text", TEXT, -1, is_key=False)))
    bridge = evolving(Attribute(1, "id", 20, -1), Attribute(2, "text", TEXT, -1))
    batch = bridge.form(
        [transaction(100, T, insert(1, "a"), other, Insert(1, (text(1 << 40), text("b"))), Delete(1, (text(1), NULL)))],
        Lsn(50),
    )
    (table,) = batch.tables
    assert table.alterations == (RenameColumn("note", "text"), WidenColumn("id", pa.int64()))
    assert [column.name for column in table.columns] == ["id", "text"]
    assert table.changes["new_0"].type == table.changes["old_0"].type == pa.int64()
    assert table.changes["new_0"].to_pylist() == [1, 1 << 40, None]
    assert table.changes["new_1"].to_pylist() == ["a", "b", None]


def test_a_dropped_column_keeps_what_the_batch_had_for_it():
    """The result is that of a batch that ended before the column was dropped."""
    narrower = Relation(1, "public", "t", "d", T.columns[:1])
    batch = evolving(ID).form(
        [transaction(100, T, insert(1, "a"), narrower, Insert(1, (text(2),)), Update(1, (text(1),)))], Lsn(50)
    )
    (table,) = batch.tables
    assert table.alterations == ()
    assert [column.name for column in table.columns] == ["id", "note"]
    rows = table.changes.select(["new_0", "new_1", "unchanged_1"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, "a", False), (2, None, False), (1, None, True)]


def test_added_dropped_and_added_again_in_one_transaction():
    """Each c is a column of its own; the first one is renamed, and its values go with it."""
    now = (ID, NOTE, Attribute(3, None, 0, -1), Attribute(4, "c", INT4, -1, fill=b"8"))
    bridge = evolving(*now)
    batch = bridge.form(
        [
            transaction(
                100,
                *(WIDER, Insert(1, (text(1), NULL, text(5)))),
                *(T, Insert(1, (text(2), NULL))),
                *(WIDER, Insert(1, (text(3), NULL, text(6)))),
            )
        ],
        Lsn(50),
    )
    (table,) = batch.tables
    assert [type(step).__name__ for step in table.alterations] == ["AddColumn", "RenameColumn", "AddColumn"]
    assert [column.name for column in table.columns] == ["id", "note", "c", "c_dropped"]
    rows = table.changes.select(["new_0", "new_2", "new_3"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, 8, 5), (2, 8, None), (3, 6, None)]


def test_a_key_that_changes_leaves_alone_what_only_the_target_has():
    """The row moves, with all that it has: columns that are not published are not written."""
    bridge = batcher(subscribed(T, extra=[("own", pa.int64())]))
    batch = bridge.form([transaction(100, T, Update(1, (text(2), text("b")), key_tuple=(text(1), NULL)))], Lsn(50))
    (table,) = batch.tables
    assert [column.name for column in table.columns] == ["id", "note"]
    assert table.net_effect().shape.moved
    assert table.target.keeps_beside(table.columns)


class OfPartitions(Routes):
    """Routes that publish partitions as their root."""

    def route(self, relation):
        assert relation.name == "t_1"
        return self.subscribed["public", "t"]


def test_a_truncate_of_a_root_knows_the_columns_that_it_has_by_then():
    """The stream has a TRUNCATE of the partitions only; the root's first columns may have been renamed since."""
    tracker = DefinitionTracker(
        "shop",
        known={1: (ColumnRow(1, "id", INT4, -1), ColumnRow(2, "note", TEXT, -1))},
        attributes=lambda *_: (ID, Attribute(2, "text", TEXT, -1)),
        types=lambda wanted: [resolve(*item) for item in wanted],
    )
    routes = OfPartitions({("public", "t"): subscribed(T)})
    bridge = Batcher("pgbridge_x", routes, lambda all_: [resolve(*i) for i in all_], tracker=tracker)
    other = Relation(1, "public", "t_1", "d", (T.columns[0], Column("text", TEXT, -1, is_key=False)))
    (first,) = bridge.form([transaction(100, other, insert(1, "a"))], Lsn(50)).tables
    assert first.alterations == (RenameColumn("note", "text"),)
    (emptied,) = bridge.form([transaction(200, Truncate((1,)))], Lsn(108)).tables
    assert (emptied.truncated, emptied.empty) == (True, True)
    assert [field.name for field in emptied.target.schema] == ["id", "text"]


def test_what_is_not_applied_is_planned_again():
    """So it is for a batch that is divided, and for one that is skipped."""
    bridge = evolving(ID, NOTE, C)
    history = [transaction(100, T, insert(1, "a")), transaction(200, WIDER, Insert(1, (text(3), NULL, NULL)))]
    batch = bridge.attempt(history, Lsn(50))
    bridge.rewind(batch)
    assert not bridge.attempt(history[:1], Lsn(50)).alters
    batch = bridge.attempt(history[1:], Lsn(108))
    assert batch.alters
    bridge.forget_plan(batch)
    assert bridge.attempt([transaction(300, Insert(1, (text(4), NULL, NULL)))], Lsn(208)).alters


def test_what_follows_an_undecodable_transaction_is_decoded_by_all_that_it_announced():
    """Definitions after the bad row count, because the server does not send them again. Those rolled back do not."""
    swapped = Relation(1, "public", "t", "d", (*T.columns[:1], Column("c", TEXT, -1, is_key=False), T.columns[1]))
    bridge = batcher(subscribed(swapped), subscribed(LOG))
    bridge.form([transaction(100, T, insert(1, "a"))], Lsn(50))
    bad = transaction(200, insert("x", "bad"), swapped, LOG)
    bad.events.append((1, replace(T, xid=7)))
    bad.aborted.add(7)
    batch = bridge.attempt([bad], Lsn(108))
    assert batch.error is not None
    bridge.forget_plan(batch)
    after = transaction(300, Insert(1, (text(2), text("c"), text("note"))), Insert(2, (text("x"),)))
    t, log = bridge.form([after], Lsn(208)).tables
    assert [column.name for column in t.columns] == ["id", "c", "note"]
    assert t.changes.select(["new_1", "new_2"]).to_pylist() == [{"new_1": "c", "new_2": "note"}]
    assert log.changes["new_0"].to_pylist() == ["x"]


def test_an_undecodable_transaction_that_is_divided_off_announces_in_its_turn():
    """Rows before a definition are decoded by the definition before it."""
    swapped = Relation(1, "public", "t", "d", (*T.columns[:1], Column("c", TEXT, -1, is_key=False), T.columns[1]))
    bridge = batcher(subscribed(swapped))
    history = [transaction(100, T, insert(1, "a")), transaction(200, insert("x", "bad"), swapped)]
    batch = bridge.attempt(history, Lsn(50))
    assert batch.error is not None
    bridge.rewind(batch)
    (table,) = bridge.form(history[:1], Lsn(50)).tables
    assert [column.name for column in table.columns] == ["id", "note"]
    bridge.forget_plan(bridge.attempt(history[1:], Lsn(108)))
    (table,) = bridge.form([transaction(300, Insert(1, (text(2), NULL, NULL)))], Lsn(208)).tables
    assert [column.name for column in table.columns] == ["id", "c", "note"]


def test_a_change_that_cannot_be_followed_names_its_transaction_and_the_remedy():
    other = Relation(1, "public", "t", "d", (T.columns[0], Column("note", 2950, -1, is_key=False)))
    with pytest.raises(ApplyError, match="changed its type from") as caught:
        evolving(ID, Attribute(2, "note", 2950, -1)).form(
            [transaction(100, T, insert(1, "a")), transaction(200, other, insert(1, "b"))], Lsn(50)
        )
    assert isinstance(caught.value.__cause__, NeedsResync)
    assert caught.value.__cause__.tables == (("public", "t"),)
    assert (caught.value.context.finish_lsn, caught.value.context.relation) == (200, "public.t")
    with pytest.raises(ApplyError, match='during message type "TRUNCATE"') as caught:
        evolving(ID, Attribute(2, "note", 2950, -1)).form([transaction(200, other, Truncate((1,)))], Lsn(50))
    assert caught.value.context.finish_lsn == 200


def test_only_published_columns_follow():
    """With a column list, the target does not need the other columns."""
    only = replace(subscribed(T), columns=frozenset({"id"}))
    batch = evolving(ID, NOTE, C, tables=[only]).form(
        [transaction(100, WIDER, Insert(1, (text(3), NULL, NULL)))], Lsn(50)
    )
    (table,) = batch.tables
    assert table.alterations == ()
    assert [column.name for column in table.columns] == ["id"]
    assert [row.state for row in batch.columns[1]] == ["live", "hidden", "hidden"]


def test_a_document_that_identifies_rows_is_refused():
    """Spark compares no VARIANT; a changelog compares nothing."""
    relation = Relation(1, "public", "t", "i", (Column("doc", 3802, -1, is_key=True),))
    for mode in ("mirror", "history", "changelog"):
        target = Target("public", "t", "/lake/public/t", (variant_field("doc"),), mode)
        bridge = batcher(Subscribed(target, INVALID, ()))
        form = partial(bridge.form, [transaction(100, relation, Insert(1, (text("{}"),)))], Lsn(50))
        if mode == "changelog":
            form()
        else:
            with pytest.raises(
                ApplyError, match='column "doc" identifies the rows of table "public.t", but is VARIANT'
            ) as caught:
                form()
            assert isinstance(caught.value.__cause__, NeedsResync)


@pytest.mark.parametrize(("filled", "waits"), [("generated", True), ("identity always", True), ("default", None)])
def test_a_new_column_that_delta_fills_by_itself_has_its_table_wait(filled, waits):
    """Delta cannot be told otherwise. A DEFAULT is in nobody's way."""
    table, own = subscribed(T), target_field("c", pa.int32())._replace(filled=filled)
    target = replace(table.target, schema=(*table.target.schema, own))
    bridge = evolving(ID, NOTE, C, tables=[replace(table, target=target)])
    error = bridge.attempt([transaction(100, WIDER, Insert(1, (text(3), NULL, NULL)))], Lsn(50)).error
    assert (error and isinstance(error.__cause__, NeedsResync)) is waits


def test_under_full_a_primary_key_counts_once_it_is_settled():
    """Until then rows are found by all their columns; it is asked for once in each batch."""
    full = Relation(1, "public", "t", "f", tuple(Column(c.name, c.type_oid, -1, is_key=True) for c in T.columns))
    keys, asked = {100: PrimaryKey(("id",), settled=False)}, []

    def primary_key(relid, xid):
        asked.append((relid, xid))
        return keys.get(xid, PrimaryKey(("id",), settled=True))

    bridge = batcher(subscribed(full), primary_key=primary_key)
    update = Update(1, (text(2), text("b")), old_tuple=(text(1), text("a")))
    formed = []
    for xid, rows in ((100, (full, update)), (101, (update,)), (102, (update,)), (103, (full, update))):
        (table,) = bridge.form([replace(transaction(xid, *rows), xid=xid)], Lsn(50)).tables
        formed.append(table.key)
    assert formed == [(), (0,), (0,), (0,)]
    assert asked == [(1, 100), (1, 101), (1, 103)]


NEW = Update(1, (text(1), text("new")))


def whole(lsn, *changes):
    """A transaction."""
    return m.Begin(Lsn(lsn), 0, lsn), *changes, m.Commit(0, Lsn(lsn), Lsn(lsn + 8), 0)


def prepared(lsn, *changes):
    """One that is prepared, and has not ended."""
    prepare = m.Prepare(0, Lsn(lsn), Lsn(lsn + 8), 0, lsn, f"g{lsn}")
    return m.BeginPrepare(Lsn(lsn), Lsn(lsn + 8), 0, lsn, f"g{lsn}"), *changes, prepare


def committed(lsn, of):
    """COMMIT PREPARED."""
    return m.CommitPrepared(0, Lsn(lsn), Lsn(lsn + 8), 0, of, f"g{of}")


ROLLED_BACK = m.RollbackPrepared(0, Lsn(208), Lsn(258), 0, 0, 200, "g200")
STREAMED = (
    *(m.StreamStart(150, first_segment=True), replace(T, xid=150), replace(insert(2, "b"), xid=150), m.StreamStop()),
    m.StreamCommit(150, 0, Lsn(150), Lsn(158), 0),
)
ANNOUNCED_IN = {
    "a transaction": ((), whole(200, T, NEW)),
    "one after a streamed one": (STREAMED, whole(200, T, NEW)),
    "one that is prepared": ((), (*prepared(200, T, NEW), committed(300, 200))),
    "one that is prepared and rolled back": ((), (*prepared(200, T, NEW), ROLLED_BACK, *whole(300, NEW))),
    "one that is still prepared": ((), (*prepared(200, T, insert(3, "c")), *whole(300, NEW))),
    "one that is still prepared when an older one ends": (
        prepared(150, insert(2, "b")),
        (*prepared(200, T, insert(3, "c")), committed(250, 150), *whole(300, NEW)),
    ),
}


@pytest.mark.parametrize(("before", "after"), ANNOUNCED_IN.values(), ids=ANNOUNCED_IN)
def test_a_definition_that_looks_as_before_is_followed_wherever_it_is_announced(before, after):
    """Its table has dropped the last column, and has got another one of the same name and type."""
    attributes = [replace(ID, settled=True), replace(NOTE, settled=True)]
    tracker = DefinitionTracker(
        "shop",
        known={1: (ColumnRow(1, "id", INT4, -1), ColumnRow(2, "note", TEXT, -1))},
        attributes=lambda *_: attributes,
        types=lambda wanted: [resolve(*item) for item in wanted],
    )
    bridge, assembler = batcher(subscribed(T), tracker=tracker), TransactionAssembler()

    def sent(*messages):
        return list(assembler.take(MessageArray.of([wrapped(message) for message in messages])))

    bridge.form(sent(*whole(100, T, insert(1, "a")), *before), Lsn(50))
    attributes[1:] = [Attribute(2, None, 0, -1, settled=True), Attribute(3, "note", TEXT, -1, settled=True)]
    (table,) = bridge.form(sent(*after), Lsn(158)).tables
    assert [type(alteration) for alteration in table.alterations] == [RenameColumn, AddColumn]
    assert table.changes["new_1"].to_pylist()[-1] == "new"


def test_what_is_prepared_carries_nothing_that_it_announces_itself():
    """It would be announced again, to rows before it, too; what another one has announced is not for its rows."""
    messages = (*prepared(200, T, insert(1, "a")), *prepared(300, LOG), committed(400, 200), *whole(500))
    items = TransactionAssembler().take(MessageArray.of([wrapped(message) for message in messages]))
    ended = [item for item in items if isinstance(item, Transaction)]
    carried = [({relation.name for relation in item.relations}, item.unseen) for item in ended[-2:]]
    assert carried == [(set(), frozenset()), ({"t", "log"}, frozenset({1, 2}))]
