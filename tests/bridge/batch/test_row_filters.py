"""What an UPDATE becomes by a server's verdicts on both of its rows, and whose the first error is."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from pgbridge.bridge.batch.routes import Subscribed
from pgbridge.bridge.batch.row_filters import (
    RowFilters,
    ServerFilters,
    beyond_spark,
    with_lost_values,
    with_new_operations,
)
from pgbridge.bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, OLD_TUPLE, UPDATE
from pgbridge.bridge.rowfilter.server_filter import ServerFilter, VerdictError
from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.bridge.targets.target import Target, target_schema
from pgbridge.protocol.bulk.columns import RowMessages
from pgbridge.protocol.codec.messages import Column, Delete, Insert, Relation, Update, Value, ValueKind
from pgbridge.protocol.codec.pgoutput import encode
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.values.types import resolve
from pgbridge.protocol.values.value_array import show
from tests.bridge.batch.streamed import NULL, UNCHANGED, PythonVerdicts, T, batcher, subscribed, text, transaction


@dataclass(frozen=True)
class Filter:
    """A row filter that looks at these columns."""

    columns: frozenset[str]

    def to_spark(self, resolve):
        raise NotImplementedError


A, B = Filter(frozenset({"id", "a"})), Filter(frozenset({"b"}))


@pytest.mark.parametrize(
    ("filters", "columns"),
    [
        (RowFilters(), set()),
        (RowFilters(insert=A), {"id", "a"}),
        (RowFilters(delete=B), {"b"}),
        (RowFilters(A, B, B), {"id", "a", "b"}),
    ],
)
def test_the_columns_of_all_actions_filters(filters, columns):
    assert filters.columns == columns
    assert bool(filters) is bool(columns)


RELATION = Relation(1, "public", "t", "f", (Column("id", 23, -1, True), Column("note", 25, -1, False)))


def test_rows_that_spark_has_no_equal_of():
    """A text, and a date or a timestamp that is infinite or far away, is computed with as it is.

    Of a text that is no UTF-8 there is only what messages show.
    """
    oids = (1700, 1114, 1082, 1007, 25)  # numeric(5, 2), timestamp, date, int4[], text
    types = [resolve(oid, (5 << 16 | 2) + 4 if oid == 1700 else -1) for oid in oids]
    texts = {
        "unheld_0": ["NaN", None, None, None, None, None],
        "oldunheld_1": [None, "infinity", "294246-12-31 00:00:00", "294247-01-01 00:00:00", None, None],
        "unheld_2": [None, None, None, None, "5874897-12-31", None],
        "unheld_3": [None, None, None, None, None, "{{1},{2}}"],
        "unheld_4": [None, None, "", "__HIVE_DEFAULT_PARTITION__", show(b"M\xfcller"), None],
    }
    table = pa.table({name: pa.array(values, pa.string()) for name, values in texts.items()})
    assert beyond_spark(table, types, {0, 1, 2, 3}).tolist() == [True, False, False, True, False, True]
    assert beyond_spark(table, types, {1, 2}).tolist() == [False, False, False, True, False, False]
    assert beyond_spark(table, types, {4}).tolist() == [False, False, False, False, True, False]


def row(key, note):
    return tuple(one if isinstance(one, Value) else Value(ValueKind.TEXT, str(one).encode()) for one in (key, note))


def own_filter(name, *columns):
    return ServerFilter(name, name, "t", columns or ("note",), (None,) * len(columns or ("note",)))


class Server:
    """Accepts values that begin with "y"; raises an error for "error"."""

    def __init__(self):
        self.asked = []

    def verdicts(self, row_filter, types, rows):
        self.asked.append((row_filter.expression, types, [tuple(value.data for value in values) for values in rows]))
        for i, values in enumerate(rows):
            if values[-1].data == b"error":
                raise VerdictError(i, "division by zero")
        return np.array([values[-1].data.startswith(b"y") for values in rows])


def passing(filters, *messages):
    found, becomes = filters.passing(RowMessages([encode(m) for m in messages]), RELATION, np.arange(len(messages)))
    return dict(zip(found.tolist(), becomes.tolist(), strict=True))


def test_what_becomes_of_changes():
    server = Server()
    one = own_filter("f")
    filters = ServerFilters(server, one, one, one)
    messages = [Insert(1, row(1, "yes")), Insert(1, row(2, "no")), Delete(1, old_tuple=row(3, "yes"))]
    messages += [Delete(1, key_tuple=row(4, Value(ValueKind.NULL)))]
    messages += [Update(1, row(5, "yes")), Update(1, row(6, "no"))]
    messages += [
        Update(1, row(7, new), old_tuple=row(7, old)) for old, new in itertools.product(("no", "yes"), repeat=2)
    ]
    messages += [Update(1, row(8, UNCHANGED), old_tuple=row(8, "yes"))]
    assert passing(filters, *messages) == {
        0: INSERT, 2: DELETE, 4: UPDATE, 7: INSERT, 8: DELETE, 9: UPDATE, 10: UPDATE
    }  # fmt: skip
    assert len(server.asked) == 1
    assert server.asked[0][:2] == ("f", [25])


def test_an_action_without_a_filter_passes():
    filters = ServerFilters(Server(), insert=own_filter("f"))
    messages = [
        Insert(1, row(1, "no")),
        Update(1, row(2, "no"), old_tuple=row(2, "no")),
        Delete(1, old_tuple=row(3, "n")),
    ]
    assert passing(filters, *messages) == {1: UPDATE, 2: DELETE}


def test_values_are_those_of_the_filters_columns_in_its_order():
    server = Server()
    passing(ServerFilters(server, insert=own_filter("f", "note", "id")), Insert(1, row(1, "yes")))
    assert server.asked == [("f", [25, 23], [(b"yes", b"1")])]


def test_the_first_error_of_all_filters():
    filters = ServerFilters(Server(), own_filter("i"), own_filter("u"), own_filter("d"))
    messages = [Delete(1, old_tuple=row(0, "y")), Update(1, row(1, "y"), old_tuple=row(1, "error"))]
    messages += [Insert(1, row(2, "error")), Update(1, row(3, "error"))]
    with pytest.raises(VerdictError, match="division by zero") as caught:
        passing(filters, *messages)
    assert caught.value.row == 1


@dataclass(frozen=True)
class Above:
    """`n > limit`, and `day` is not infinite, which a date of Delta cannot be."""

    limit: int
    columns: frozenset[str] = frozenset({"n", "day"})

    def true(self, row):
        return row["n"] is not None and row["day"] != "infinity" and 1 // (row["n"] - 7) >= 0 and row["n"] > self.limit

    def to_spark(self, resolve):
        raise NotImplementedError


COLUMNS = {"id": 23, "n": 23, "day": 1082, "note": 25, "secret": 25}
_TYPES = {23: pa.int32(), 25: pa.string(), 1082: pa.date32()}


def a_value(rng, name, identity):
    """A value as text; None for NULL. In an identity of several columns all are held."""
    days = [None, "2020-01-01", "infinity"] if identity == "f" else [None, "2020-01-01"]
    some = {"id": "123", "n": [None, "3", "8", "20", "20", "7" if rng.random() < 0.1 else "8"], "day": days}
    return rng.choice(some.get(name, ["abc", None]))


def random_message(rng, identity):
    """A change as (operation, old row or None, new row or None), and its message; "kept" is unchanged TOAST."""
    old, new = ({name: a_value(rng, name, identity) for name in COLUMNS} for _ in range(2))
    operation = rng.choice([INSERT, UPDATE, UPDATE, UPDATE, DELETE])
    if operation == UPDATE and rng.random() < 0.5:
        new["note"] = "kept"
    keyed = dict(old) if identity == "f" else {name: old[name] if name in {"id", "n", "day"} else None for name in old}
    has_old = operation == DELETE or (operation == UPDATE and (identity == "f" or rng.random() < 0.5))
    tuples = {"old_tuple" if identity == "f" else "key_tuple": sent(keyed)} if has_old else {}
    if operation == INSERT:
        return (INSERT, None, new), Insert(1, sent(new))
    if operation == DELETE:
        return (DELETE, keyed, None), Delete(1, **tuples)
    return (UPDATE, keyed if has_old else None, new), Update(1, sent(new), **tuples)


def sent(values):
    """The tuple of a row."""
    kinds = {"kept": UNCHANGED, None: Value(ValueKind.NULL)}
    return tuple(kinds.get(one) or Value(ValueKind.TEXT, one.encode()) for one in values.values())


def expected(filters, changes, published, policy):
    """PostgreSQL's table, a change at a time: the changes that pass, and how many lack a value; or an error.

    Of the errors in one transaction, the first one of a filter, else the first one of a value.
    """
    of = {INSERT: filters.insert, UPDATE: filters.update, DELETE: filters.delete}
    made, lost, refused = [], 0, None
    for seq, (sent_as, old, sent_new) in enumerate(changes):
        operation, new = sent_as, sent_new and dict(sent_new)
        if new and new["note"] == "kept" and old and old["note"] is not None:
            new["note"] = old["note"]
        row_filter = of[operation]
        if row_filter is not None:
            read = [
                None if row is None else row | {"n": None if row["n"] is None else int(row["n"])} for row in (old, new)
            ]
            try:
                was, is_now = (row is None or row_filter.true(row) for row in read)
            except ZeroDivisionError:
                return "row filter", 0
            if operation == UPDATE and old is not None:
                operation = {(0, 1): INSERT, (1, 0): DELETE, (1, 1): UPDATE}.get((int(was), int(is_now)), 0)
            elif not (was and is_now):
                operation = 0
        if not operation:
            continue
        for name in published:
            kept_in = [row for row in (new if operation != DELETE else None, old) if row is not None][:1]
            odd = kept_in and kept_in[0][name] == "infinity" and (operation != DELETE or name == "id")
            if odd and policy == "error":
                refused = refused or (name, 0)
        values = {name: new[name] for name in published} if operation != DELETE else {}
        if values.get("note") == "kept" and operation == INSERT:
            lost += 1
            values["note"] = None
        values = {name: None if text == "infinity" else text for name, text in values.items()}
        made.append((seq, operation, values, old["id"] if old and operation != INSERT else None))
    return refused or (made, lost)


def received(changes, lost):
    """The same of what was formed."""
    names, rows = [column.name for column in changes.columns], []
    for row in changes.changes.to_pylist():
        texts = {
            name: "kept" if row.get(f"unchanged_{i}") else row[f"new_{i}"] and str(row[f"new_{i}"])
            for i, name in enumerate(names)
        }
        has_old = row["old"] != NO_OLD
        old = str(row.get("old_0")) if has_old else None
        rows.append((row["seq"], row["op"], texts if row["op"] != DELETE else {}, old))
    return rows, lost


@pytest.mark.parametrize("identity", ["f", "i"])
@pytest.mark.parametrize("policy", ["error", "null"])
def test_random_changes(identity, policy):
    """Old tuples of each kind, unchanged values, values that no column holds, and columns that only filters look at."""
    key = {"id"} if identity == "f" else {"id", "n", "day"}
    relation = Relation(1, "public", "t", identity, tuple(Column(n, o, -1, n in key) for n, o in COLUMNS.items()))
    target = Target("public", "t", "/t", target_schema((name, _TYPES[oid]) for name, oid in COLUMNS.items()))
    errors = 0
    for seed in range(150):
        rng = random.Random(seed)
        made = [random_message(rng, identity) for _ in range(rng.randrange(1, 12))]
        listed = rng.choice([None, frozenset({"id", "note"}), frozenset({"id", "day", "note"})])
        if identity == "i":
            listed = None  # it has the whole identity
        insert, update = (rng.choice([None, Above(5), Above(10)]) for _ in range(2))
        filters = RowFilters(insert, update, Above(rng.choice([5, 10])))
        table = Subscribed(target, INVALID, ("id",) if identity == "f" else (), columns=listed, filters=filters)
        formed = batcher(table, unrepresentable=policy, verdicts=PythonVerdicts())
        batch = formed.attempt([transaction(100, relation, *(message for _, message in made))], Lsn(50))
        published = [name for name in COLUMNS if listed is None or name in listed]
        want = expected(filters, [change for change, _ in made], published, policy)
        if isinstance(want[0], str):
            errors += 1
            assert batch.error is not None, seed
            assert (batch.error.context.column or "row filter") == want[0], seed
            continue
        assert batch.error is None, seed
        (changes,) = batch.tables or [None]
        assert (received(changes, changes.lost) if changes else ([], 0)) == want, seed
    assert errors


def test_an_error_of_a_filter_names_its_transaction():
    relation = Relation(1, "public", "t", "d", tuple(Column(n, o, -1, n == "id") for n, o in COLUMNS.items()))
    target = Target("public", "t", "/t", target_schema((name, _TYPES[oid]) for name, oid in COLUMNS.items()))
    table = Subscribed(target, INVALID, filters=RowFilters(Above(5)))
    first, second = (Insert(1, sent(dict.fromkeys(COLUMNS, "1") | {"n": n, "day": None})) for n in ("8", "7"))
    made = batcher(table, verdicts=PythonVerdicts())
    with pytest.raises(ApplyError, match="row filter: .*by zero") as raised:
        made.form([transaction(100, relation, first), transaction(200, first, second)], Lsn(50))
    context = raised.value.context
    assert (context.finish_lsn, context.xid, context.command, context.relation) == (Lsn(200), 200, "INSERT", "public.t")


def test_a_row_that_comes_into_the_servers_filter_again_keeps_no_value():
    """The publisher sends INSERT with an unchanged TOAST value, and no old row: to its subscriber it is NULL."""
    deleted, inserted = Delete(1, key_tuple=(text(1), NULL)), Insert(1, (text(1), UNCHANGED))
    (table,) = batcher(subscribed(T)).form([transaction(100, T, deleted, inserted)], Lsn(50)).tables
    assert table.lost == 1
    effect = table.net_effect().table
    assert (effect["unchanged_1"].to_pylist(), effect["new_1"].to_pylist()) == ([False], [None])


def test_changes_with_their_new_operations():
    changes = pa.table(
        {
            "seq": [0, 1, 2, 3],
            "op": pa.array([UPDATE] * 4, pa.int16()),
            "old": pa.array([OLD_TUPLE, KEY_TUPLE, OLD_TUPLE, NO_OLD], pa.int16()),
            "new_1": [None, None, "x", None],
            "unchanged_1": [True, True, False, True],
        }
    )
    found, lost = with_lost_values(with_new_operations(changes, np.array([INSERT, DELETE, INSERT, UPDATE], np.uint8)))
    assert lost == 1
    assert found["op"].to_pylist() == [INSERT, DELETE, INSERT, UPDATE]
    assert found["old"].to_pylist() == [NO_OLD, KEY_TUPLE, NO_OLD, NO_OLD]
    assert found["unchanged_1"].to_pylist() == [False, True, False, True]
    assert found.schema.field("op").type == pa.int16()
