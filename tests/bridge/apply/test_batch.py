"""Batches: whole transactions to one Arrow table a target, by name, with keys, cut-offs, truncates and errors."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from bridge.apply.batch import BatchFormer
from bridge.apply.changes import DELETE, INSERT, UPDATE, Subscribed
from bridge.apply.filtering import RowFilters
from bridge.apply.routes import Routes
from bridge.apply.target import Target
from bridge.errors import ApplyError
from protocol.lsn import INVALID, Lsn
from protocol.messages import Column, Delete, Insert, Relation, Truncate, Update, Value, ValueKind
from protocol.pgoutput import encode
from protocol.transactions import Transaction
from protocol.types import resolve
from protocol.walsender import XLogData, encode_xlog_data

INT4, TEXT = 23, 25
T = Relation(1, "public", "t", "d", (Column("id", INT4, -1, is_key=True), Column("note", TEXT, -1, is_key=False)))
LOG = Relation(2, "public", "log", "d", (Column("note", TEXT, -1, is_key=False),))
NULL, UNCHANGED = Value(ValueKind.NULL), Value(ValueKind.UNCHANGED_TOAST)


def text(value):
    return Value(ValueKind.TEXT, str(value).encode())


def row(message):
    """A row message as the receiver leaves it."""
    return encode_xlog_data(XLogData(Lsn(1), Lsn(1), 0, encode(message)))


def transaction(commit_lsn, *messages):
    """A transaction of rows and events, in order."""
    made = Transaction(commit_lsn, Lsn(commit_lsn), 0, Lsn(commit_lsn + 8))
    for message in messages:
        if isinstance(message, Relation | Truncate):
            made.events.append((len(made.rows), message))
        else:
            made.rows.append(row(message))
    return made


def subscribed(relation, lsn=INVALID, primary_key=(), extra=()):
    types = {INT4: IntegerType(), TEXT: StringType(), 20: LongType()}
    fields = [StructField(column.name, types[column.type_oid]) for column in relation.columns]
    fields += [StructField(name, kind) for name, kind in extra]
    path = f"/lake/{relation.namespace}/{relation.name}"
    return Subscribed(Target(relation.namespace, relation.name, path, StructType(fields)), lsn, primary_key)


def former(*tables, **options):
    by_name = {(s.target.namespace, s.target.name): s for s in tables}
    return BatchFormer("pgbridge_x", Routes(by_name), lambda wanted: [resolve(*item) for item in wanted], **options)


def insert(key, note):
    return Insert(1, (text(key), text(note)))


def test_changes_of_two_tables_keep_their_order():
    batch = former(subscribed(T), subscribed(LOG)).form(
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
    assert former(subscribed(T)).form([transaction(100, T, insert(1, "a"))], Lsn(50)).xid == 100


def test_transactions_before_a_tables_copy_are_left_out():
    """As should_apply_changes_for_rel: a change applies when its transaction commits at or after srsublsn."""
    batch = former(subscribed(T, Lsn(200))).form(
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
    batch = former(subscribed(LOG), ignored=names.append).form([transaction(100, T, insert(1, "a"))], Lsn(50))
    assert batch.tables == []
    assert batch.end_lsn == 108
    assert names == ["public.t"]


def test_an_empty_batch_has_the_recorded_end():
    batch = former(subscribed(T)).form([], Lsn(50), Lsn(300))
    assert (batch.start_lsn, batch.end_lsn, batch.tables) == (50, 300, [])


def test_relations_are_remembered_over_batches():
    bridge = former(subscribed(T))
    bridge.form([transaction(100, T, insert(1, "a"))], Lsn(50))
    batch = bridge.form([transaction(200, insert(2, "b"))], Lsn(108))
    assert batch.tables[0].changes["new_1"].to_pylist() == ["b"]


def test_an_unknown_relation_is_an_error_with_its_transaction():
    with pytest.raises(ApplyError, match='during message type "INSERT" in transaction 200, finished at 0/C8') as caught:
        former(subscribed(T)).form([transaction(100, T), transaction(200, Insert(9, (NULL,)))], Lsn(50))
    assert caught.value.context.finish_lsn == 200


def test_columns_go_by_name_when_the_definition_changes_midway():
    """A column that came later is NULL in earlier inserts and untouched by earlier updates."""
    wider = Relation(1, "public", "t", "d", (Column("new", TEXT, -1, is_key=False), *T.columns))
    batch = former(subscribed(wider)).form(
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
    batch = former(subscribed(T)).form([transaction(100, T, insert(1, "a"), T, insert(2, "b"))], Lsn(50))
    assert batch.tables[0].changes["seq"].to_pylist() == [0, 1]


def test_truncate_voids_what_came_before_it():
    batch = former(subscribed(T), subscribed(LOG)).form(
        [transaction(100, T, LOG, insert(1, "gone"), Insert(2, (text("stays"),)), Truncate((1,)), insert(2, "after"))],
        Lsn(50),
    )
    t, log = batch.tables
    assert (t.truncated, t.changes["new_0"].to_pylist()) == (True, [2])
    assert (log.truncated, log.changes["new_0"].to_pylist()) == (False, ["stays"])


def test_truncate_alone_is_a_change():
    (table,) = former(subscribed(T)).form([transaction(100, T, Truncate((1,)))], Lsn(50)).tables
    assert table.truncated
    assert len(table.changes) == 0
    assert table.changes.schema.field("new_0").type == pa.int32()


def test_truncate_before_a_tables_copy_is_left_out():
    assert former(subscribed(T, Lsn(200))).form([transaction(100, T, Truncate((1,)))], Lsn(50)).tables == []


def test_unchanged_toast_is_marked():
    batch = former(subscribed(T)).form([transaction(100, T, Update(1, (text(1), UNCHANGED)))], Lsn(50))
    assert batch.tables[0].changes["unchanged_1"].to_pylist() == [True]


def test_full_identity_uses_the_primary_key_and_takes_unchanged_values_from_the_old_tuple():
    full = Relation(1, "public", "t", "f", tuple(Column(c.name, c.type_oid, -1, is_key=True) for c in T.columns))
    batch = former(subscribed(full, primary_key=("id",))).form(
        [transaction(100, full, Update(1, (text(2), UNCHANGED), old_tuple=(text(1), text("large"))))], Lsn(50)
    )
    (table,) = batch.tables
    assert table.key == (0,)
    assert table.changes.select(["new_0", "new_1", "old_0", "unchanged_1"]).to_pylist() == [
        {"new_0": 2, "new_1": "large", "old_0": 1, "unchanged_1": False}
    ]


def test_changes_without_any_key_are_refused_with_what_to_run():
    full = Relation(2, "public", "log", "f", (Column("note", TEXT, -1, is_key=True),))
    with pytest.raises(ApplyError, match="no key to find its rows by") as caught:
        former(subscribed(full)).form([transaction(100, full, Delete(2, old_tuple=(text("x"),)))], Lsn(50))
    assert "ALTER TABLE public.log ADD PRIMARY KEY" in caught.value.hint
    assert caught.value.context.relation == "public.log"


def test_a_missing_target_column_is_postgresqls_error():
    wider = Relation(1, "public", "t", "d", (*T.columns, Column("c", TEXT, -1, is_key=False)))
    with pytest.raises(ApplyError) as caught:
        former(subscribed(T)).form([transaction(100, wider, Insert(1, (text(1), text("a"), text("b"))))], Lsn(50))
    assert 'logical replication target relation "public.t" is missing replicated column: "c"' in str(caught.value)


def test_target_columns_that_are_not_published_do_not_matter():
    batch = former(subscribed(T, extra=[("own", LongType())])).form([transaction(100, T, insert(1, "a"))], Lsn(50))
    assert "new_2" not in batch.tables[0].changes.column_names


def test_a_key_that_only_a_filter_looks_at_is_none():
    """A column list for INSERTs may leave the replica identity out; the filter may still look at it."""

    @dataclass(frozen=True)
    class Id:
        columns = frozenset({"id"})

        def to_spark(self, resolve):
            return resolve("id") > 5

    listed = replace(
        subscribed(T), actions=frozenset({"insert"}), columns=frozenset({"note"}), filters=RowFilters(insert=Id())
    )
    (changes,) = former(listed).form([transaction(100, T, insert(1, "a"))], Lsn(50)).tables
    assert ([column.name for column in changes.columns], changes.key) == (["id", "note"], ())


def test_a_value_that_cannot_be_decoded_names_column_row_and_transaction():
    with pytest.raises(ApplyError) as caught:
        former(subscribed(T)).form(
            [transaction(100, T, insert(1, "a")), transaction(200, insert(2, "b"), insert("x", "c"))], Lsn(50)
        )
    assert "finished at 0/C8" in str(caught.value) or caught.value.context.finish_lsn in {100, 200}
    assert caught.value.context.relation == "public.t"


def test_an_unrepresentable_value_is_an_error_with_its_row_or_null():
    date = Relation(1, "public", "t", "d", (Column("id", INT4, -1, is_key=True), Column("on", 1082, -1, is_key=False)))
    from pyspark.sql.types import DateType

    schema = StructType([StructField("id", IntegerType()), StructField("on", DateType())])
    table = Subscribed(Target("public", "t", "/lake/public/t", schema), INVALID, ())
    history = [transaction(100, date, insert(1, "2024-01-01")), transaction(200, insert(2, "infinity"))]
    with pytest.raises(ApplyError, match='column "on"') as caught:
        former(table).form(history, Lsn(50))
    assert caught.value.context.column == "on"
    assert caught.value.context.finish_lsn == 200
    assert 'unrepresentable = "null"' in caught.value.hint
    batch = former(table, unrepresentable="null").form(history, Lsn(50))
    assert batch.tables[0].changes["new_1"].null_count == 1


def test_binary_values():
    binary = Insert(1, (Value(ValueKind.BINARY, struct.pack(">i", -7)), Value(ValueKind.BINARY, b"b")))
    batch = former(subscribed(T)).form([transaction(100, T, binary)], Lsn(50))
    assert batch.tables[0].changes.select(["new_0", "new_1"]).to_pylist() == [{"new_0": -7, "new_1": "b"}]
