"""Transactions become one Arrow table of changes for each target: its names, keys, `srsublsn`, TRUNCATE and TOAST."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest

from pgbridge.bridge.batch.row_filters import RowFilters, ServerFilters
from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.rowfilter.server_filter import ServerFilter, VerdictError
from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.protocol.codec.messages import Column, Delete, Insert, Relation, Truncate, Update, Value, ValueKind
from pgbridge.protocol.lsn import Lsn
from tests.bridge.batch.streamed import (
    LOG,
    NULL,
    TEXT,
    UNCHANGED,
    PythonVerdicts,
    T,
    batcher,
    insert,
    subscribed,
    text,
    transaction,
)


def test_changes_of_two_tables_keep_their_order():
    batch = batcher(subscribed(T), subscribed(LOG)).form(
        [
            transaction(100, T, LOG, insert(1, "a"), Insert(2, (text("x"),)), Update(1, (text(1), text("b")))),
            transaction(200, Delete(1, key_tuple=(text(1), NULL)), Insert(2, (text("y"),))),
        ],
        Lsn(50),
    )
    assert (batch.start_lsn, batch.end_lsn, batch.finish_lsn, batch.xid) == (50, 208, 200, None)
    assert (batch.transactions, batch.rows) == (2, 5)
    t, log = batch.tables
    assert (t.target.name, t.key, t.inserts_only) == ("t", (0,), False)
    assert t.changes.select(["seq", "op", "new_0", "new_1", "old_0"]).to_pylist() == [
        {"seq": 0, "op": INSERT, "new_0": 1, "new_1": "a", "old_0": None},
        {"seq": 2, "op": UPDATE, "new_0": 1, "new_1": "b", "old_0": None},
        {"seq": 3, "op": DELETE, "new_0": None, "new_1": None, "old_0": 1},
    ]
    assert (log.target.name, log.key, log.inserts_only) == ("log", (), True)
    assert log.changes["new_0"].to_pylist() == ["x", "y"]


def test_one_transaction_gives_its_xid():
    assert batcher(subscribed(T)).form([transaction(100, T, insert(1, "a"))], Lsn(50)).xid == 100


def test_transactions_before_a_tables_copy_are_left_out():
    """As should_apply_changes_for_rel: a change applies when its transaction commits at or after srsublsn."""
    batch = batcher(subscribed(T, Lsn(200))).form(
        [
            transaction(100, T, insert(1, "copied")),
            transaction(199, insert(2, "copied")),
            transaction(200, insert(3, "new")),
        ],
        Lsn(50),
    )
    assert batch.tables[0].changes["new_0"].to_pylist() == [3]


def test_tables_that_are_not_subscribed_are_ignored_and_named():
    names: list[str] = []
    batch = batcher(subscribed(LOG), ignored=names.append).form([transaction(100, T, insert(1, "a"))], Lsn(50))
    assert batch.tables == []
    assert batch.end_lsn == 108
    assert names == ["public.t"]


def test_relations_are_remembered_over_batches():
    bridge = batcher(subscribed(T))
    bridge.form([transaction(100, T, insert(1, "a"))], Lsn(50))
    batch = bridge.form([transaction(200, insert(2, "b"))], Lsn(108))
    assert batch.tables[0].changes["new_1"].to_pylist() == ["b"]


def test_columns_go_by_name_when_the_definition_changes_midway():
    """A column that came later is NULL in earlier inserts and untouched by earlier updates."""
    wider = Relation(1, "public", "t", "d", (Column("new", TEXT, -1, is_key=False), *T.columns))
    batch = batcher(subscribed(wider)).form(
        [
            transaction(100, T, insert(1, "a"), Update(1, (text(2), text("b")))),
            transaction(200, wider, Insert(1, (text("n"), text(3), text("c")))),
        ],
        Lsn(50),
    )
    (table,) = batch.tables
    assert [column.name for column in table.columns] == ["new", "id", "note"]
    assert table.key == (1,)
    assert table.changes.select(["new_0", "new_1", "new_2", "unchanged_0"]).to_pylist() == [
        {"new_0": None, "new_1": 1, "new_2": "a", "unchanged_0": False},
        {"new_0": None, "new_1": 2, "new_2": "b", "unchanged_0": True},
        {"new_0": "n", "new_1": 3, "new_2": "c", "unchanged_0": False},
    ]


def test_a_repeated_definition_changes_nothing():
    batch = batcher(subscribed(T)).form([transaction(100, T, insert(1, "a"), T, insert(2, "b"))], Lsn(50))
    assert batch.tables[0].changes["seq"].to_pylist() == [0, 1]


def test_truncate_drops_the_changes_before_it():
    batch = batcher(subscribed(T), subscribed(LOG)).form(
        [transaction(100, T, LOG, insert(1, "gone"), Insert(2, (text("stays"),)), Truncate((1,)), insert(2, "after"))],
        Lsn(50),
    )
    t, log = batch.tables
    assert (t.truncated, t.changes["new_0"].to_pylist()) == (True, [2])
    assert (log.truncated, log.changes["new_0"].to_pylist()) == (False, ["stays"])


def test_truncate_alone_is_a_change():
    (table,) = batcher(subscribed(T)).form([transaction(100, T, Truncate((1,)))], Lsn(50)).tables
    assert table.truncated
    assert len(table.changes) == 0
    assert table.changes.schema.field("new_0").type == pa.int32()


def test_truncate_before_a_tables_copy_is_left_out():
    assert batcher(subscribed(T, Lsn(200))).form([transaction(100, T, Truncate((1,)))], Lsn(50)).tables == []


def test_unchanged_toast_is_marked():
    batch = batcher(subscribed(T)).form([transaction(100, T, Update(1, (text(1), UNCHANGED)))], Lsn(50))
    assert batch.tables[0].changes["unchanged_1"].to_pylist() == [True]


class Verdicts:
    """A server whose filters accept values that begin with "y", and raise an error for "error"."""

    def verdicts(self, row_filter, types, rows):
        for i, (value,) in enumerate(rows):
            if value.data == b"error":
                raise VerdictError(i, "division by zero")
        return np.array([value.data.startswith(b"y") for (value,) in rows])


def test_a_server_filters_rows_before_their_values_are_decoded():
    """An unrepresentable value does no harm in a rejected row. An error in a filter names its transaction."""
    by_server = ServerFilters(Verdicts(), *[ServerFilter("f", "f", "t", ("note",), (None,))] * 3)
    one = replace(subscribed(T), columns=frozenset({"id", "note"}), server_filters=by_server)
    bad = Insert(1, (text("no number"), text("no")))
    changes = [insert(1, "yes"), bad, Update(1, (text(3), text("y")), old_tuple=(text(2), text("n")))]
    full = replace(T, replica_identity="f")
    batch = batcher(one).form([transaction(100, full, *changes)], Lsn(50))
    (table,) = batch.tables
    assert table.lost == 0
    rows = table.changes.select(["seq", "op", "new_0"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(0, INSERT, 1), (2, INSERT, 3)]
    with pytest.raises(ApplyError, match=r"row filter: division by zero") as caught:
        batcher(one).form([transaction(100, T, insert(1, "y")), transaction(200, insert(2, "error"))], Lsn(50))
    assert (caught.value.context.finish_lsn, caught.value.context.command) == (Lsn(200), "INSERT")


def test_full_identity_uses_the_primary_key_and_takes_unchanged_values_from_the_old_tuple():
    full = Relation(1, "public", "t", "f", tuple(Column(c.name, c.type_oid, -1, is_key=True) for c in T.columns))
    batch = batcher(subscribed(full, primary_key=("id",))).form(
        [transaction(100, full, Update(1, (text(2), UNCHANGED), old_tuple=(text(1), text("large"))))], Lsn(50)
    )
    (table,) = batch.tables
    assert table.key == (0,)
    assert table.changes.select(["new_0", "new_1", "old_0", "unchanged_1"]).to_pylist() == [
        {"new_0": 2, "new_1": "large", "old_0": 1, "unchanged_1": False}
    ]


def test_an_unchanged_value_of_a_key_is_taken_from_the_keys_tuple():
    """The server sends the key's old tuple for such a value even if the key stays; the tuple has NULL elsewhere."""
    keyed = Relation(
        1, "public", "t", "d", (Column("id", TEXT, -1, is_key=True), Column("note", TEXT, -1, is_key=False))
    )
    update = Update(1, (UNCHANGED, UNCHANGED), key_tuple=(text("large"), NULL))
    (table,) = batcher(subscribed(keyed)).form([transaction(100, keyed, update)], Lsn(50)).tables
    assert table.changes.select(["new_0", "new_1", "unchanged_0", "unchanged_1"]).to_pylist() == [
        {"new_0": "large", "new_1": None, "unchanged_0": False, "unchanged_1": True}
    ]


def test_full_identity_without_a_key_has_the_old_values_of_all_columns():
    """So it is for a primary key that is not published."""
    full = Relation(1, "public", "t", "f", tuple(Column(c.name, c.type_oid, -1, is_key=True) for c in T.columns))
    for primary_key in ((), ("not_here",)):
        batch = batcher(subscribed(full, primary_key=primary_key)).form(
            [transaction(100, full, Update(1, (text(2), UNCHANGED), old_tuple=(text(1), text("large"))))], Lsn(50)
        )
        (table,) = batch.tables
        assert table.key == ()
        assert table.changes.select(["new_0", "new_1", "old_0", "old_1", "unchanged_1"]).to_pylist() == [
            {"new_0": 2, "new_1": "large", "old_0": 1, "old_1": "large", "unchanged_1": False}
        ]


def test_an_identity_that_changes_divides_the_changes():
    """Each part has the old values of its key's columns. INSERTs before a part, or a TRUNCATE, do not divide."""
    by_note = Relation(
        1, "public", "t", "i", tuple(Column(c.name, c.type_oid, -1, is_key=c.name == "note") for c in T.columns)
    )
    after = transaction(200, by_note, Delete(1, key_tuple=(NULL, text("b"))))
    batch = batcher(subscribed(T)).form([transaction(100, T, Delete(1, key_tuple=(text(1), NULL))), after], Lsn(50))
    one, other = batch.tables
    assert (one.key, one.changes["old_0"].to_pylist(), one.changes["seq"].to_pylist()) == ((0,), [1], [0])
    assert (other.key, other.changes["old_1"].to_pylist(), other.changes["seq"].to_pylist()) == ((1,), ["b"], [1])
    assert (batch.commit_rounds(), batch.alters) == ([[one], [other]], True)
    for before in (
        transaction(100, T, insert(1, "a")),
        transaction(100, T, Delete(1, key_tuple=(text(1), NULL)), Truncate((1,))),
    ):
        (table,) = batcher(subscribed(T)).form([before, after], Lsn(50)).tables
        assert table.key == (1,)


def test_a_table_without_a_key_that_is_altered_divides_its_changes():
    """Its rows are found by all their columns, and these differ before and after."""
    full = Relation(1, "public", "t", "f", tuple(Column(c.name, c.type_oid, -1, is_key=True) for c in T.columns))
    less = replace(full, columns=full.columns[:1])
    gone = transaction(100, full, Delete(1, old_tuple=(text(1), text("a"))))
    one, other = batcher(subscribed(full)).form([gone, transaction(200, less, Insert(1, (text(2),)))], Lsn(50)).tables
    assert [[column.name for column in part.columns] for part in (one, other)] == [["id", "note"], ["id"]]
    after = transaction(200, less, Delete(1, old_tuple=(text(1),)))
    one, other = batcher(subscribed(full)).form([transaction(100, full, insert(1, "a")), after], Lsn(50)).tables
    assert (one.inserts_only, other.inserts_only, other.changes["old_0"].to_pylist()) == (True, False, [1])
    batcher(subscribed(full)).form([after], Lsn(50))
    (table,) = (
        batcher(subscribed(full))
        .form([transaction(100, full, insert(1, "a")), transaction(200, less, Insert(1, (text(2),)))], Lsn(50))
        .tables
    )
    assert table.inserts_only


def test_target_columns_that_are_not_published_do_not_matter():
    batch = batcher(subscribed(T, extra=[("own", pa.int64())])).form([transaction(100, T, insert(1, "a"))], Lsn(50))
    assert "new_2" not in batch.tables[0].changes.column_names


def test_a_key_that_only_a_filter_looks_at_is_none():
    """A column list for INSERTs may leave out the replica identity, and the filter may still look at it."""

    @dataclass(frozen=True)
    class Id:
        columns = frozenset({"id"})

        def true(self, row):
            return row["id"] > 5

        def to_spark(self, resolve):
            raise NotImplementedError

    listed = replace(
        subscribed(T), actions=frozenset({"insert"}), columns=frozenset({"note"}), filters=RowFilters(insert=Id())
    )
    made = batcher(listed, verdicts=PythonVerdicts())
    (changes,) = made.form([transaction(100, T, insert(1, "a"), insert(6, "b"))], Lsn(50)).tables
    assert ([column.name for column in changes.columns], changes.key) == (["note"], ())
    assert changes.changes["new_0"].to_pylist() == ["b"]


def test_tables_whose_dotted_names_are_alike_are_not_one():
    one, other = Relation(1, "a.b", "c", "d", T.columns), Relation(2, "a", "b.c", "d", T.columns)
    first, second = Insert(1, (text(1), text("one"))), Insert(2, (text(2), text("other")))
    batch = batcher(subscribed(one), subscribed(other)).form([transaction(100, one, other, first, second)], Lsn(50))
    found = {tables.target.path: tables.changes["new_1"].to_pylist() for tables in batch.tables}
    assert found == {"/lake/a.b/c": ["one"], "/lake/a/b.c": ["other"]}


def test_binary_values():
    binary = Insert(1, (Value(ValueKind.BINARY, struct.pack(">i", -7)), Value(ValueKind.BINARY, b"b")))
    batch = batcher(subscribed(T)).form([transaction(100, T, binary)], Lsn(50))
    assert batch.tables[0].changes.select(["new_0", "new_1"]).to_pylist() == [{"new_0": -7, "new_1": "b"}]


def every_change(relation, mode, **options):
    found = subscribed(relation, **options)
    return replace(found, target=replace(found.target, mode=mode))


def test_where_every_change_is_kept_a_truncate_is_one_of_them():
    """What comes before it stays; the other table is emptied. Old images have all columns."""
    made = batcher(every_change(T, "changelog"), subscribed(LOG))
    batch = made.form(
        [
            transaction(100, T, LOG, insert(1, "a"), Insert(2, (text("x"),)), Truncate((2, 1)), insert(2, "b")),
            transaction(200, Delete(1, old_tuple=(text(2), text("b")))),
        ],
        Lsn(50),
    )
    kept, emptied = batch.tables
    assert [chr(op) for op in kept.changes["op"].to_pylist()] == ["I", "T", "I", "D"]
    assert kept.changes["ordinal"].to_pylist() == [0, 3, 4, 0]
    assert kept.changes["commit_lsn"].to_pylist() == [100, 100, 100, 200]
    assert kept.changes["old_1"].to_pylist() == [None, None, None, "b"]
    assert (kept.truncated, emptied.truncated) == (False, True)
    assert "ordinal" not in emptied.changes.column_names


@pytest.mark.parametrize(("mode", "refused"), [("changelog", False), ("handler", False), ("history", True)])
def test_what_has_no_key_is_refused_where_rows_must_be_found(mode, refused):
    full = replace(LOG, replica_identity="f")
    change = transaction(100, full, Update(2, (text("y"),), old_tuple=(text("x"),)))
    batch = batcher(every_change(full, mode)).attempt([change], Lsn(50))
    assert (batch.error is not None and "no key" in batch.error.message) is refused


def test_types_that_have_none_in_common_divide_a_handlers_batch():
    """In one batch a column has one type: the later definition's, if it holds the earlier one's values."""
    wider = replace(T, columns=(Column("id", 20, -1, is_key=True), T.columns[1]))
    other = replace(T, columns=(Column("id", TEXT, -1, is_key=True), T.columns[1]))
    grown = batcher(every_change(T, "handler")).form(
        [transaction(100, T, insert(1, "a")), transaction(200, wider, insert(2, "b"))], Lsn(50)
    )
    assert grown.tables[0].changes["new_0"].to_pylist() == [1, 2]
    assert grown.tables[0].columns[0].type.arrow == pa.int64()
    batch = batcher(every_change(T, "handler")).attempt(
        [transaction(100, T, insert(1, "a")), transaction(200, other, insert(2, "b"))], Lsn(50)
    )
    assert batch.error is not None
    assert "changes its type from int to string within one batch" in batch.error.message
    assert batch.error.context.finish_lsn == Lsn(200)
