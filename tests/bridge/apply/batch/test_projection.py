"""Which columns of a relation its target's changes keep."""

from __future__ import annotations

import pyarrow as pa

from bridge.apply.batch.table_changes import Subscribed
from bridge.apply.batch.wanted import cast, chosen, old_columns, wanted_columns
from bridge.apply.delta.filtering import RowFilters
from bridge.apply.target import Target, TargetColumn
from protocol.lsn import INVALID
from protocol.messages import Column, Relation
from protocol.values.types import resolve

INT4, INT8 = resolve(23, -1), resolve(20, -1)
COLUMNS = tuple(TargetColumn(name, INT4) for name in "abc")
RELATION = Relation(1, "public", "t", "d", tuple(Column(name, 23, -1, is_key=name == "b") for name in "abc"))


class LooksAt:
    """A filter of a column."""

    def __init__(self, name):
        self.columns = frozenset({name})

    def to_spark(self, resolve):
        return resolve(*self.columns)


def subscribed(columns=None, looked_at=None):
    filters = None if looked_at is None else RowFilters(insert=LooksAt(looked_at))
    listed = None if columns is None else frozenset(columns)
    return Subscribed(Target("public", "t", "/t", ()), INVALID, (), columns=listed, filters=filters)


def test_what_is_published_or_looked_at():
    assert wanted_columns(COLUMNS, subscribed()) is None
    assert wanted_columns(COLUMNS, subscribed("a")) == [0]
    assert wanted_columns(COLUMNS, subscribed("a", looked_at="c")) == [0, 2]


def test_a_key_is_complete_or_none():
    assert chosen(COLUMNS, (1,), None, subscribed()) == (COLUMNS, (1,))
    assert chosen(COLUMNS, (1,), [1, 2], subscribed("bc")) == (COLUMNS[1:], (0,))
    assert chosen(COLUMNS, (1,), [0, 1], subscribed("a", looked_at="b")) == (COLUMNS[:2], ())


def test_old_values():
    """Without a key, rows are found by all of them."""
    assert old_columns(COLUMNS, RELATION, subscribed(), ()) == {0, 1, 2}
    assert old_columns(COLUMNS, RELATION, subscribed(), (1,)) == {1}
    assert old_columns(COLUMNS, RELATION, subscribed("b", looked_at="c"), (0,)) == {1, 2}


def test_values_in_the_targets_types():
    table = pa.table({"op": pa.array([1]), "new_0": pa.array([5], pa.int32()), "old_0": pa.array([4], pa.int32())})
    wider = cast(table, [INT4], [TargetColumn("a", INT8)])
    assert (wider["new_0"].type, wider["old_0"].type) == (pa.int64(), pa.int64())
    assert cast(table, [INT4], [TargetColumn("a", INT4)]) is table
