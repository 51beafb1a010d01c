"""Values, identities and columns that stop a batch, or become NULL. Each error names its transaction and column."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes, Subscribed
from pgbridge.bridge.batch.row_filters import RowFilters
from pgbridge.bridge.publication.replica_identity import Refusal
from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.bridge.targets.target import Target, target_schema
from pgbridge.protocol.codec.messages import Column, Delete, Insert, Relation, Update
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.values.types import resolve
from tests.bridge.batch.streamed import (
    INT4,
    NULL,
    TEXT,
    PythonVerdicts,
    T,
    batcher,
    insert,
    subscribed,
    text,
    transaction,
)


def test_an_unknown_relation_is_an_error_with_its_transaction():
    with pytest.raises(ApplyError, match='during message type "INSERT" in transaction 200, finished at 0/C8') as caught:
        batcher(subscribed(T)).form([transaction(100, T), transaction(200, Insert(9, (NULL,)))], Lsn(50))
    assert caught.value.context.finish_lsn == 200


def test_changes_without_any_identity_are_refused_with_what_to_run():
    nothing = Relation(2, "public", "log", "n", (Column("note", TEXT, -1, is_key=False),))
    with pytest.raises(ApplyError, match="no key to find its rows by") as caught:
        batcher(subscribed(nothing)).form([transaction(100, nothing, Delete(2, key_tuple=(text("x"),)))], Lsn(50))
    assert "ALTER TABLE public.log ADD PRIMARY KEY" in caught.value.hint
    assert "ALTER TABLE public.log REPLICA IDENTITY FULL" in caught.value.hint
    assert "--resync public.log" in caught.value.hint
    assert caught.value.context.relation == "public.log"


class Refusing(Routes):
    """Routes whose publications do not fit the replica identity in the stream."""

    def identity_refusals(self, relation, definition_of):
        assert definition_of(relation.relation_id) == relation
        if relation.replica_identity == "f":
            return ()
        return (Refusal("p", "f.sql:1:1: ", "t", "public.t", ("UPDATE",), "Column used …"),)


def test_the_first_change_that_the_definitions_cannot_take_stops_it():
    """INSERTs and actions that are not refused pass. The relation's latest definition decides."""
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
        batcher(subscribed(T)).form([transaction(100, wider, Insert(1, (text(1), text("a"), text("b"))))], Lsn(50))
    assert 'logical replication target relation "public.t" is missing replicated column: "c"' in str(caught.value)


def test_a_value_that_cannot_be_decoded_names_column_row_and_transaction():
    with pytest.raises(ApplyError) as caught:
        batcher(subscribed(T)).form(
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
        batcher(table).form(history, Lsn(50))
    assert caught.value.context.column == "on"
    assert caught.value.context.finish_lsn == 200
    assert 'unrepresentable = "null"' in caught.value.hint
    batch = batcher(table, unrepresentable="null").form(history, Lsn(50))
    assert batch.tables[0].changes["new_1"].null_count == 1


@pytest.mark.parametrize(
    ("identity", "primary_key", "refused"), [("d", (), True), ("f", ("on",), True), ("f", (), False)]
)
def test_an_unrepresentable_value_of_a_key_is_an_error_whatever_the_policy(identity, primary_key, refused):
    """As NULL it would find no row. A table without a key has only INSERTs, so it may be NULL there."""
    date = Relation(1, "public", "t", identity, (Column("on", 1082, -1, is_key=True),))
    schema = target_schema([("on", pa.date32())])
    table = Subscribed(Target("public", "t", "/lake/public/t", schema), INVALID, primary_key)
    history = [transaction(100, date, Insert(1, (text("infinity"),)))]
    if not refused:
        batch = batcher(table, unrepresentable="null").form(history, Lsn(50))
        assert batch.tables[0].changes["new_0"].null_count == 1
        return
    with pytest.raises(ApplyError, match="value 'infinity'") as caught:
        batcher(table, unrepresentable="null").form(history, Lsn(50))
    assert caught.value.context.column == "on"
    assert "row filter" in caught.value.hint


def test_definitions_shield_from_what_they_leave_out():
    """Unpublished columns are not decoded. A value of a row that a filter rejects need not be held."""

    @dataclass(frozen=True)
    class OnDay:
        passes: bool
        columns = frozenset({"day"})

        def true(self, row):
            return (row["day"] == "infinity") is self.passes

        def to_spark(self, resolve):
            raise NotImplementedError

    days = Relation(
        1, "public", "t", "d", tuple(Column(n, o, -1, is_key=n == "id") for n, o in (("id", INT4), ("day", 1082)))
    )
    schema = target_schema([("id", pa.int32()), ("day", pa.date32())])
    target = Subscribed(Target("public", "t", "/lake/t", schema), INVALID, ("id",))
    odd = transaction(100, days, Insert(1, (text(1), text("infinity"))))
    with pytest.raises(ApplyError, match="cannot be represented"):
        batcher(target).form([odd], Lsn(50))
    (changes,) = batcher(replace(target, columns=frozenset({"id"}))).form([odd], Lsn(50)).tables
    assert changes.changes.column_names == ["seq", "op", "old", "new_0"]
    for passes in (True, False):
        filtered = replace(target, columns=frozenset({"id", "day"}), filters=RowFilters(insert=OnDay(passes)))
        batch = batcher(filtered, unrepresentable="null", verdicts=PythonVerdicts()).form([odd], Lsn(50))
        rows = [changes.changes.select(["new_0", "new_1"]).to_pylist() for changes in batch.tables]
        assert rows == ([[{"new_0": 1, "new_1": None}]] if passes else [])
        strict = batcher(filtered, verdicts=PythonVerdicts()).attempt([odd], Lsn(50))
        assert (strict.error is not None) is passes
        assert strict.error is None or strict.error.context.column == "day"
