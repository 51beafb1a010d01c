"""Batches: whole transactions to one Arrow table a target, by name, with keys, cut-offs, truncates and errors."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest

from bridge.apply.batch.batcher import Batcher
from bridge.apply.batch.routes import Routes
from bridge.apply.batch.row_filters import RowFilters
from bridge.apply.batch.server_filters import ServerFilters
from bridge.apply.batch.subscribed import Subscribed, key_of
from bridge.apply.effects.operations import DELETE, INSERT, UPDATE
from bridge.apply.evolution.plan import AddColumn, RenameColumn, WidenColumn
from bridge.apply.evolution.tracker import DefinitionTracker
from bridge.apply.target.target import Target, target_schema
from bridge.errors import ApplyError
from bridge.publication.identity import Refusal
from bridge.publication.tables import Attribute
from bridge.rowfilter.on_server.server_filter import ServerFilter, VerdictError
from bridge.track.rows import ColumnRow
from protocol.lsn import INVALID, Lsn
from protocol.message_array import MessageArray
from protocol.messages import Column, Delete, Insert, Relation, Truncate, Update, Value, ValueKind
from protocol.pgoutput import encode
from protocol.transactions import Transaction
from protocol.values.types import resolve
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
            made.rows.extend(MessageArray.of([row(message)]))
    return made


def subscribed(relation, lsn=INVALID, primary_key=(), extra=()):
    types = {INT4: pa.int32(), TEXT: pa.string(), 20: pa.int64()}
    fields = [(column.name, types[column.type_oid]) for column in relation.columns]
    fields += extra
    path = f"/lake/{relation.namespace}/{relation.name}"
    return Subscribed(Target(relation.namespace, relation.name, path, target_schema(fields)), lsn, primary_key)


def former(*tables, **options):
    by_name = {(s.target.namespace, s.target.name): s for s in tables}
    return Batcher("pgbridge_x", Routes(by_name), lambda wanted: [resolve(*item) for item in wanted], **options)


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


class Verdicts:
    """A server that lets pass what begins with "y", and has an error for "error"."""

    def verdicts(self, row_filter, types, rows):
        for i, (value,) in enumerate(rows):
            if value.data == b"error":
                raise VerdictError(i, "division by zero")
        return np.array([value.data.startswith(b"y") for (value,) in rows])


def test_a_server_lets_pass_before_anything_is_decoded():
    """A value that no target holds does no harm in a row that does not pass; an error stops at its transaction."""
    by_server = ServerFilters(Verdicts(), *[ServerFilter("f", "f", "t", ("note",), (None,))] * 3)
    one = replace(subscribed(T), columns=frozenset({"id", "note"}), server_filters=by_server)
    bad = Insert(1, (text("no number"), text("no")))
    changes = [insert(1, "yes"), bad, Update(1, (text(3), text("y")), old_tuple=(text(2), text("n")))]
    full = replace(T, replica_identity="f")
    batch = former(one).form([transaction(100, full, *changes)], Lsn(50))
    (table,) = batch.tables
    assert (table.filters, table.lost) == (None, 0)
    rows = table.changes.select(["seq", "op", "new_0"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(0, INSERT, 1), (2, INSERT, 3)]
    with pytest.raises(ApplyError, match=r"row filter: division by zero") as caught:
        former(one).form([transaction(100, T, insert(1, "y")), transaction(200, insert(2, "error"))], Lsn(50))
    assert (caught.value.context.finish_lsn, caught.value.context.command) == (Lsn(200), "INSERT")


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


def test_an_unchanged_value_of_a_key_is_taken_from_the_keys_tuple():
    """The server sends the key's old tuple for it even where the key is the same; of other columns it has nothing."""
    keyed = Relation(
        1, "public", "t", "d", (Column("id", TEXT, -1, is_key=True), Column("note", TEXT, -1, is_key=False))
    )
    update = Update(1, (UNCHANGED, UNCHANGED), key_tuple=(text("large"), NULL))
    (table,) = former(subscribed(keyed)).form([transaction(100, keyed, update)], Lsn(50)).tables
    assert table.changes.select(["new_0", "new_1", "unchanged_0", "unchanged_1"]).to_pylist() == [
        {"new_0": "large", "new_1": None, "unchanged_0": False, "unchanged_1": True}
    ]


def test_changes_without_any_identity_are_refused_with_what_to_run():
    nothing = Relation(2, "public", "log", "n", (Column("note", TEXT, -1, is_key=False),))
    with pytest.raises(ApplyError, match="no key to find its rows by") as caught:
        former(subscribed(nothing)).form([transaction(100, nothing, Delete(2, key_tuple=(text("x"),)))], Lsn(50))
    assert "ALTER TABLE public.log ADD PRIMARY KEY" in caught.value.hint
    assert "ALTER TABLE public.log REPLICA IDENTITY FULL" in caught.value.hint
    assert caught.value.context.relation == "public.log"


def test_full_identity_without_a_key_has_the_old_values_of_all_columns():
    """Also where there is a primary key that is not published."""
    full = Relation(1, "public", "t", "f", tuple(Column(c.name, c.type_oid, -1, is_key=True) for c in T.columns))
    for primary_key in ((), ("not_here",)):
        batch = former(subscribed(full, primary_key=primary_key)).form(
            [transaction(100, full, Update(1, (text(2), UNCHANGED), old_tuple=(text(1), text("large"))))], Lsn(50)
        )
        (table,) = batch.tables
        assert table.key == ()
        assert table.changes.select(["new_0", "new_1", "old_0", "old_1", "unchanged_1"]).to_pylist() == [
            {"new_0": 2, "new_1": "large", "old_0": 1, "old_1": "large", "unchanged_1": False}
        ]


def test_an_identity_that_changes_divides_the_changes():
    """Each part has the old values of the columns that it goes by; new rows before it go with it, or a TRUNCATE."""
    by_note = Relation(
        1, "public", "t", "i", tuple(Column(c.name, c.type_oid, -1, is_key=c.name == "note") for c in T.columns)
    )
    after = transaction(200, by_note, Delete(1, key_tuple=(NULL, text("b"))))
    batch = former(subscribed(T)).form([transaction(100, T, Delete(1, key_tuple=(text(1), NULL))), after], Lsn(50))
    one, other = batch.tables
    assert (one.key, one.changes["old_0"].to_pylist(), one.changes["seq"].to_pylist()) == ((0,), [1], [0])
    assert (other.key, other.changes["old_1"].to_pylist(), other.changes["seq"].to_pylist()) == ((1,), ["b"], [1])
    assert (batch.rounds(), batch.alters) == ([[one], [other]], True)
    for before in (
        transaction(100, T, insert(1, "a")),
        transaction(100, T, Delete(1, key_tuple=(text(1), NULL)), Truncate((1,))),
    ):
        (table,) = former(subscribed(T)).form([before, after], Lsn(50)).tables
        assert table.key == (1,)


def test_a_table_without_a_key_that_is_altered_divides_its_changes():
    """Its rows are found by all their columns: those of before and after have not the same."""
    full = Relation(1, "public", "t", "f", tuple(Column(c.name, c.type_oid, -1, is_key=True) for c in T.columns))
    less = replace(full, columns=full.columns[:1])
    gone = transaction(100, full, Delete(1, old_tuple=(text(1), text("a"))))
    one, other = former(subscribed(full)).form([gone, transaction(200, less, Insert(1, (text(2),)))], Lsn(50)).tables
    assert [[column.name for column in part.columns] for part in (one, other)] == [["id", "note"], ["id"]]
    after = transaction(200, less, Delete(1, old_tuple=(text(1),)))
    one, other = former(subscribed(full)).form([transaction(100, full, insert(1, "a")), after], Lsn(50)).tables
    assert (one.inserts_only, other.inserts_only, other.changes["old_0"].to_pylist()) == (True, False, [1])
    former(subscribed(full)).form([after], Lsn(50))
    (table,) = (
        former(subscribed(full))
        .form([transaction(100, full, insert(1, "a")), transaction(200, less, Insert(1, (text(2),)))], Lsn(50))
        .tables
    )
    assert table.inserts_only


class Refusing(Routes):
    """By definitions that do not go with the identity that a relation has in the stream."""

    def refusals(self, relation, announced_as):
        assert announced_as(relation.relation_id) == relation
        if relation.replica_identity == "f":
            return ()
        return (Refusal("p", "f.sql:1:1: ", "t", "public.t", ("UPDATE",), "Column used …"),)


def test_the_first_change_that_the_definitions_cannot_take_stops_it():
    """INSERTs go on, and what is not refused; the relation's latest definition decides."""
    full = Relation(1, "public", "t", "f", tuple(Column(c.name, c.type_oid, -1, is_key=True) for c in T.columns))
    update = Update(1, (text(1), text("b")))
    whole = Update(1, (text(1), text("c")), old_tuple=(text(1), text("b")))
    one = subscribed(full, primary_key=("id",))

    def form(*transactions):
        made = Batcher("pgbridge_x", Refusing({("public", "t"): one}), lambda all_: [resolve(*i) for i in all_])
        return made.attempt(transactions, Lsn(50))

    first = transaction(100, T, insert(1, "a"), Delete(1, key_tuple=(text(9), NULL)), full, whole, whole)
    batch = form(first)
    assert batch.error is None
    assert len(batch.tables[0].changes) == 4
    error = form(first, transaction(200, T, insert(2, "b"), insert(3, "c"), update, update)).error
    assert error is not None
    assert error.message.startswith('cannot update table "t"\nDETAIL:  Column used …')
    assert error.hint.startswith('f.sql:1:1: publication "p" publishes UPDATE of "public.t"')
    assert (error.context.finish_lsn, error.context.command, error.context.relation) == (200, "UPDATE", "public.t")
    no_updates = replace(one, actions=frozenset({"insert"}))
    made = Batcher("pgbridge_x", Refusing({("public", "t"): no_updates}), lambda all_: [resolve(*i) for i in all_])
    assert made.form([transaction(200, T, insert(2, "b"), update)], Lsn(50)).tables[0].inserts_only
    late = Batcher(
        "pgbridge_x", Refusing({("public", "t"): replace(one, lsn=Lsn(201))}), lambda all_: [resolve(*i) for i in all_]
    )
    assert late.form([transaction(200, T, update)], Lsn(50)).tables == []


def test_a_missing_target_column_is_postgresqls_error():
    wider = Relation(1, "public", "t", "d", (*T.columns, Column("c", TEXT, -1, is_key=False)))
    with pytest.raises(ApplyError) as caught:
        former(subscribed(T)).form([transaction(100, wider, Insert(1, (text(1), text("a"), text("b"))))], Lsn(50))
    assert 'logical replication target relation "public.t" is missing replicated column: "c"' in str(caught.value)


def test_target_columns_that_are_not_published_do_not_matter():
    batch = former(subscribed(T, extra=[("own", pa.int64())])).form([transaction(100, T, insert(1, "a"))], Lsn(50))
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


def test_a_part_of_an_identity_is_no_key():
    """A column list may leave the rest out; a message from before it, or before a rename, has the whole key."""
    wide = Relation(1, "public", "t", "d", (*T.columns, Column("c", INT4, -1, is_key=True)))
    cut = replace(subscribed(wide), cut_identity=frozenset({"id", "c"}))
    assert key_of(T, cut) == ()
    assert key_of(wide, cut) == (0, 2)
    assert key_of(wide, replace(cut, cut_identity=frozenset({"id", "renamed"}))) == (0, 2)
    twice = transaction(100, T, insert(1, "a"), insert(1, "b"))
    (table,) = former(cut).form([twice], Lsn(50)).tables
    assert (table.key, table.inserts_only) == ((), True)


def test_a_value_that_cannot_be_decoded_names_column_row_and_transaction():
    with pytest.raises(ApplyError) as caught:
        former(subscribed(T)).form(
            [transaction(100, T, insert(1, "a")), transaction(200, insert(2, "b"), insert("x", "c"))], Lsn(50)
        )
    assert "finished at 0/C8" in str(caught.value) or caught.value.context.finish_lsn in {100, 200}
    assert caught.value.context.relation == "public.t"


def test_an_unrepresentable_value_is_an_error_with_its_row_or_null():
    date = Relation(1, "public", "t", "d", (Column("id", INT4, -1, is_key=True), Column("on", 1082, -1, is_key=False)))
    schema = target_schema([("id", pa.int32()), ("on", pa.date32())])
    table = Subscribed(Target("public", "t", "/lake/public/t", schema), INVALID, ())
    history = [transaction(100, date, insert(1, "2024-01-01")), transaction(200, insert(2, "infinity"))]
    with pytest.raises(ApplyError, match='column "on"') as caught:
        former(table).form(history, Lsn(50))
    assert caught.value.context.column == "on"
    assert caught.value.context.finish_lsn == 200
    assert 'unrepresentable = "null"' in caught.value.hint
    batch = former(table, unrepresentable="null").form(history, Lsn(50))
    assert batch.tables[0].changes["new_1"].null_count == 1


@pytest.mark.parametrize(
    ("identity", "primary_key", "refused"), [("d", (), True), ("f", ("on",), True), ("f", (), False)]
)
def test_an_unrepresentable_value_of_a_key_is_an_error_whatever_the_policy(identity, primary_key, refused):
    """As NULL it would find no row; where there is no key, only inserts are taken, and it may be NULL."""
    date = Relation(1, "public", "t", identity, (Column("on", 1082, -1, is_key=True),))
    schema = target_schema([("on", pa.date32())])
    table = Subscribed(Target("public", "t", "/lake/public/t", schema), INVALID, primary_key)
    history = [transaction(100, date, Insert(1, (text("infinity"),)))]
    if not refused:
        batch = former(table, unrepresentable="null").form(history, Lsn(50))
        assert batch.tables[0].changes["new_0"].null_count == 1
        return
    with pytest.raises(ApplyError, match="value 'infinity'") as caught:
        former(table, unrepresentable="null").form(history, Lsn(50))
    assert caught.value.context.column == "on"
    assert "row filter" in caught.value.hint


def test_definitions_shield_from_what_they_leave_out():
    """Of a column that is not published nothing is decoded; what a filter may leave out is told beside NULL."""

    @dataclass(frozen=True)
    class OnDay:
        columns = frozenset({"day"})

        def to_spark(self, resolve):
            return resolve("day").isNotNull()

    days = Relation(
        1, "public", "t", "d", tuple(Column(n, o, -1, is_key=n == "id") for n, o in (("id", INT4), ("day", 1082)))
    )
    schema = target_schema([("id", pa.int32()), ("day", pa.date32())])
    target = Subscribed(Target("public", "t", "/lake/t", schema), INVALID, ("id",))
    odd = transaction(100, days, Insert(1, (text(1), text("infinity"))))
    with pytest.raises(ApplyError, match="cannot be represented"):
        former(target).form([odd], Lsn(50))
    (changes,) = former(replace(target, columns=frozenset({"id"}))).form([odd], Lsn(50)).tables
    assert changes.changes.column_names == ["seq", "op", "old", "new_0"]
    for policy in ("error", "null"):
        filtered = replace(target, columns=frozenset({"id", "day"}), filters=RowFilters(insert=OnDay()))
        (changes,) = former(filtered, unrepresentable=policy).form([odd], Lsn(50)).tables
        assert changes.changes.select(["new_0", "new_1", "unheld_1"]).to_pylist() == [
            {"new_0": 1, "new_1": None, "unheld_1": "infinity"}
        ]


def test_tables_whose_dotted_names_are_alike_are_not_one():
    one, other = Relation(1, "a.b", "c", "d", T.columns), Relation(2, "a", "b.c", "d", T.columns)
    first, second = Insert(1, (text(1), text("one"))), Insert(2, (text(2), text("other")))
    batch = former(subscribed(one), subscribed(other)).form([transaction(100, one, other, first, second)], Lsn(50))
    found = {tables.target.path: tables.changes["new_1"].to_pylist() for tables in batch.tables}
    assert found == {"/lake/a.b/c": ["one"], "/lake/a/b.c": ["other"]}


def test_binary_values():
    binary = Insert(1, (Value(ValueKind.BINARY, struct.pack(">i", -7)), Value(ValueKind.BINARY, b"b")))
    batch = former(subscribed(T)).form([transaction(100, T, binary)], Lsn(50))
    assert batch.tables[0].changes.select(["new_0", "new_1"]).to_pylist() == [{"new_0": -7, "new_1": "b"}]


WIDER = Relation(1, "public", "t", "d", (*T.columns, Column("c", INT4, -1, is_key=False)))


def evolving(*attributes, known=((1, "id", INT4), (2, "note", TEXT)), tables=(), **options):
    """A former whose targets follow the stream; attributes are those of the publisher's catalog."""
    schemas = DefinitionTracker(
        "shop",
        known=lambda: {1: tuple(ColumnRow(number, name, oid, -1) for number, name, oid in known)},
        attributes=lambda _: attributes,
        types=lambda wanted: [resolve(*item) for item in wanted],
        schema_of=lambda _: None,
    )
    return former(*(tables or [subscribed(T)]), schemas=schemas, **options)


ID, NOTE = Attribute(1, "id", INT4, -1), Attribute(2, "note", TEXT, -1)
C = Attribute(3, "c", INT4, -1, has_missing=True, missing="7")


def test_a_column_with_a_constant_reaches_what_came_before_it_in_the_batch():
    """An INSERT from before it has the constant; an UPDATE keeps the target's, which is the constant, too."""
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
    """By number, not by name: and values from before have the wider type."""
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
    """As if the batch had ended before the column went."""
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
    """Each c is a column of its own; what the first one held goes to one that is set aside."""
    now = (ID, NOTE, Attribute(3, None, 0, -1), Attribute(4, "c", INT4, -1, has_missing=True, missing="8"))
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


def test_a_key_that_changes_takes_along_what_only_the_target_has():
    bridge = former(subscribed(T, extra=[("own", pa.int64())]))
    batch = bridge.form([transaction(100, T, Update(1, (text(2), text("b")), key_tuple=(text(1), NULL)))], Lsn(50))
    (table,) = batch.tables
    assert [column.name for column in table.columns] == ["id", "note", "own"]
    assert table.needs_fold
    assert table.changes["unchanged_2"].to_pylist() == [True]


class OfPartitions(Routes):
    """By definitions that publish partitions as their root."""

    def find(self, relation):
        assert relation.name == "t_1"
        return self.subscribed["public", "t"]


def test_a_truncate_of_a_root_knows_the_columns_that_it_has_by_then():
    """The stream has TRUNCATE of the partitions only; what the root had at the start may have other names."""
    schemas = DefinitionTracker(
        "shop",
        known=lambda: {1: (ColumnRow(1, "id", INT4, -1), ColumnRow(2, "note", TEXT, -1))},
        attributes=lambda _: (ID, Attribute(2, "text", TEXT, -1)),
        types=lambda wanted: [resolve(*item) for item in wanted],
        schema_of=lambda _: None,
    )
    routes = OfPartitions({("public", "t"): subscribed(T)})
    bridge = Batcher("pgbridge_x", routes, lambda all_: [resolve(*i) for i in all_], schemas=schemas)
    other = Relation(1, "public", "t_1", "d", (T.columns[0], Column("text", TEXT, -1, is_key=False)))
    (first,) = bridge.form([transaction(100, other, insert(1, "a"))], Lsn(50)).tables
    assert first.alterations == (RenameColumn("note", "text"),)
    (emptied,) = bridge.form([transaction(200, Truncate((1,)))], Lsn(108)).tables
    assert (emptied.truncated, emptied.empty) == (True, True)
    assert [field.name for field in emptied.target.schema] == ["id", "text"]


def test_what_is_not_applied_is_planned_again():
    """A batch that is divided, and one that is skipped."""
    bridge = evolving(ID, NOTE, C)
    history = [transaction(100, T, insert(1, "a")), transaction(200, WIDER, Insert(1, (text(3), NULL, NULL)))]
    batch = bridge.attempt(history, Lsn(50))
    bridge.rewind(batch)
    assert not bridge.attempt(history[:1], Lsn(50)).alters
    batch = bridge.attempt(history[1:], Lsn(108))
    assert batch.alters
    bridge.pass_over(batch)
    assert bridge.attempt([transaction(300, Insert(1, (text(4), NULL, NULL)))], Lsn(208)).alters


def test_what_follows_an_undecodable_transaction_is_decoded_by_all_that_it_announced():
    """Also by what came behind the bad row, which the server does not send again; not by what was rolled back."""
    swapped = Relation(1, "public", "t", "d", (*T.columns[:1], Column("c", TEXT, -1, is_key=False), T.columns[1]))
    bridge = former(subscribed(swapped), subscribed(LOG))
    bridge.form([transaction(100, T, insert(1, "a"))], Lsn(50))
    bad = transaction(200, insert("x", "bad"), swapped, LOG)
    bad.events.append((1, replace(T, xid=7)))
    bad.aborted.add(7)
    batch = bridge.attempt([bad], Lsn(108))
    assert batch.error is not None
    bridge.pass_over(batch)
    after = transaction(300, Insert(1, (text(2), text("c"), text("note"))), Insert(2, (text("x"),)))
    t, log = bridge.form([after], Lsn(208)).tables
    assert [column.name for column in t.columns] == ["id", "c", "note"]
    assert t.changes.select(["new_1", "new_2"]).to_pylist() == [{"new_1": "c", "new_2": "note"}]
    assert log.changes["new_0"].to_pylist() == ["x"]


def test_an_undecodable_transaction_that_is_divided_off_announces_in_its_turn():
    """What is before it is decoded by the definitions before it."""
    swapped = Relation(1, "public", "t", "d", (*T.columns[:1], Column("c", TEXT, -1, is_key=False), T.columns[1]))
    bridge = former(subscribed(swapped))
    history = [transaction(100, T, insert(1, "a")), transaction(200, insert("x", "bad"), swapped)]
    batch = bridge.attempt(history, Lsn(50))
    assert batch.error is not None
    bridge.rewind(batch)
    (table,) = bridge.form(history[:1], Lsn(50)).tables
    assert [column.name for column in table.columns] == ["id", "note"]
    bridge.pass_over(bridge.attempt(history[1:], Lsn(108)))
    (table,) = bridge.form([transaction(300, Insert(1, (text(2), NULL, NULL)))], Lsn(208)).tables
    assert [column.name for column in table.columns] == ["id", "c", "note"]


def test_a_change_that_cannot_be_followed_names_its_transaction_and_the_remedy():
    other = Relation(1, "public", "t", "d", (T.columns[0], Column("note", 2950, -1, is_key=False)))
    with pytest.raises(ApplyError, match="has another type now") as caught:
        evolving(ID, Attribute(2, "note", 2950, -1)).form(
            [transaction(100, T, insert(1, "a")), transaction(200, other, insert(1, "b"))], Lsn(50)
        )
    assert caught.value.hint == "copy the table afresh: pgbridge refresh shop --resync public.t"
    assert (caught.value.context.finish_lsn, caught.value.context.relation) == (200, "public.t")
    with pytest.raises(ApplyError, match='during message type "TRUNCATE"') as caught:
        evolving(ID, Attribute(2, "note", 2950, -1)).form([transaction(200, other, Truncate((1,)))], Lsn(50))
    assert caught.value.context.finish_lsn == 200


def test_only_published_columns_follow():
    """Of definitions with a column list the others are none of the target's business."""
    only = replace(subscribed(T), columns=frozenset({"id"}))
    batch = evolving(ID, NOTE, C, tables=[only]).form(
        [transaction(100, WIDER, Insert(1, (text(3), NULL, NULL)))], Lsn(50)
    )
    (table,) = batch.tables
    assert table.alterations == ()
    assert [column.name for column in table.columns] == ["id"]
    assert [row.state for row in batch.columns[1]] == ["live", "hidden", "hidden"]


NEW_NAME = Relation(1, "public", "renamed", "d", T.columns)
AGAIN = Relation(7, "public", "t", "d", T.columns)


def known(relation, lsn=INVALID, relid=1):
    return replace(subscribed(relation, lsn), relid=relid)


@pytest.mark.parametrize(
    ("change", "command"),
    [(insert(2, "b"), "INSERT"), (Truncate((2, 1), cascade=False, restart_identity=False), "TRUNCATE")],
)
def test_a_table_with_another_name_stops_before_it(change, command):
    """As a native subscriber, whose `logicalrep_rel_open` finds no table of that name."""
    bridge = former(known(T), subscribed(LOG))
    items = [transaction(100, T, LOG, insert(1, "a")), transaction(200, NEW_NAME, change)]
    batch = bridge.attempt(items, Lsn(50))
    assert batch.error is not None
    assert batch.error.message == 'logical replication target relation "public.renamed" does not exist'
    assert "pgbridge refresh" in batch.error.hint
    assert (batch.error.context.finish_lsn, batch.error.context.command) == (200, command)


def test_names_that_a_table_had_before_it_was_copied_are_passed_over():
    """A stream that lags has it under the old name: those changes are in the copy."""
    renamed = Relation(1, "public", "old", "d", T.columns)
    truncate = Truncate((1,), cascade=False, restart_identity=False)
    names: list[str] = []
    batch = former(known(T, Lsn(200)), ignored=names.append).form(
        [transaction(100, renamed, insert(1, "a"), truncate), transaction(200, T, insert(2, "b"))], Lsn(50)
    )
    (table,) = batch.tables
    assert isinstance(table.changes, pa.Table)
    assert (table.changes["new_0"].to_pylist(), table.truncated) == ([2], False)
    assert names == []


def test_tables_that_change_their_names_are_not_taken_for_each_other():
    other = Relation(2, "public", "log", "d", T.columns)
    taken = [replace(other, relation_id=1), replace(T, relation_id=2)]
    bridge = former(known(T), known(other, relid=2))
    with pytest.raises(ApplyError, match='table "public.t" has the name of "public.log" now') as caught:
        bridge.form([transaction(100, *taken, insert(1, "a"))], Lsn(50))
    assert caught.value.hint.endswith("--resync public.t --resync public.log")


def test_a_table_that_is_created_again_is_followed_by_its_name():
    """As natively; that its rows are others is told, once, and its relid is known when the batch is durable."""
    told: list[tuple[str, str]] = []
    routes = Routes({("public", "t"): known(T)}, replaced=lambda *table: told.append(table))
    bridge = Batcher("pgbridge_x", routes, lambda wanted: [resolve(*item) for item in wanted])
    first = bridge.form([transaction(100, T, insert(1, "a"))], Lsn(50))
    assert (first.relids, told) == ({}, [])
    items = [transaction(200, AGAIN, Insert(7, (text(2), text("b"))), Insert(7, (text(3), text("c"))))]
    for _ in range(2):
        batch = bridge.form(items, Lsn(108))
        assert batch.relids == {7: ("public", "t")}
        assert batch.rows == 2
        assert len(batch.tables) == 1
        bridge.rewind(batch)
    assert [table for table, _ in told] == ["public.t"] * 2
    bridge.form(items, Lsn(108))
    with pytest.raises(ApplyError, match='relation "public.renamed" does not exist'):
        bridge.form([transaction(300, replace(NEW_NAME, relation_id=7), Insert(7, (text(2), text("b"))))], Lsn(208))
