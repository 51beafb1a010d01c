"""What an UPDATE becomes by a server's verdicts on both of its rows, and whose the first error is."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from bridge.batch.row_filters import RowFilters, ServerFilters, beyond_spark, with_new_operations
from bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, OLD_TUPLE, UPDATE
from bridge.rowfilter.on_server.server_filter import ServerFilter, VerdictError
from protocol.bulk.columns import RowMessages
from protocol.codec.messages import Column, Delete, Insert, Relation, Update, Value, ValueKind
from protocol.codec.pgoutput import encode
from protocol.values.types import resolve


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
UNCHANGED = Value(ValueKind.UNCHANGED_TOAST)


def test_rows_that_spark_has_no_equal_of():
    """A text, and a date or a timestamp that is infinite or far away, is computed with as it is."""
    oids = (1700, 1114, 1082, 1007)  # numeric(5, 2), timestamp, date, int4[]
    types = [resolve(oid, (5 << 16 | 2) + 4 if oid == 1700 else -1) for oid in oids]
    texts = {
        "unheld_0": ["NaN", None, None, None, None, None],
        "oldunheld_1": [None, "infinity", "294246-12-31 00:00:00", "294247-01-01 00:00:00", None, None],
        "unheld_2": [None, None, None, None, "5874897-12-31", None],
        "unheld_3": [None, None, None, None, None, "{{1},{2}}"],
    }
    table = pa.table({name: pa.array(values, pa.string()) for name, values in texts.items()})
    assert beyond_spark(table, types, {0, 1, 2, 3}).tolist() == [True, False, False, True, False, True]
    assert beyond_spark(table, types, {1, 2}).tolist() == [False, False, False, True, False, False]


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
    found, lost = with_new_operations(changes, np.array([INSERT, DELETE, INSERT, UPDATE], np.uint8))
    assert lost == 1
    assert found["op"].to_pylist() == [INSERT, DELETE, INSERT, UPDATE]
    assert found["old"].to_pylist() == [NO_OLD, KEY_TUPLE, NO_OLD, NO_OLD]
    assert found["unchanged_1"].to_pylist() == [False, True, False, True]
    assert found.schema.field("op").type == pa.int16()
