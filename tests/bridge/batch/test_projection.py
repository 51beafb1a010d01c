"""The columns of a relation that a target's changes keep."""

from __future__ import annotations

import pyarrow as pa

from pgbridge.bridge.batch.projection import (
    as_changes,
    from_old_tuples,
    in_target_types,
    keep,
    kept_positions,
    old_positions,
)
from pgbridge.bridge.batch.routes import Subscribed
from pgbridge.bridge.effects.events import KEY_TUPLE, NO_OLD, OLD_TUPLE, UPDATE
from pgbridge.bridge.targets.target import Target, TargetColumn
from pgbridge.protocol.codec.messages import Column, Relation
from pgbridge.protocol.lsn import INVALID
from pgbridge.protocol.values.types import resolve


def test_an_unchanged_value_is_that_of_the_old_tuple_or_stays():
    """A partition with a key sends it as a whole row if its root has FULL: the NULLs in it are not values."""
    decoded = pa.table(
        {
            "op": pa.array([UPDATE] * 4, pa.uint8()),
            "old": pa.array([OLD_TUPLE, OLD_TUPLE, KEY_TUPLE, NO_OLD], pa.uint8()),
            "new_0": pa.array([1, 2, None, 4], pa.int32()),
            "old_0": pa.array([5, 6, 7, None], pa.int32()),
            "unchanged_0": [False, False, True, False],
            "new_1": pa.array([None] * 4, pa.string()),
            "old_1": pa.array(["large", None, None, None]),
            "unchanged_1": [True] * 4,
        }
    )
    changes = from_old_tuples(decoded)
    assert changes["new_0"].to_pylist() == [1, 2, 7, 4]
    assert changes["unchanged_0"].to_pylist() == [False] * 4
    assert changes["new_1"].to_pylist() == ["large", None, None, None]
    assert changes["unchanged_1"].to_pylist() == [False, True, True, True]


INT4, INT8 = resolve(23, -1), resolve(20, -1)
COLUMNS = tuple(TargetColumn(name, INT4) for name in "abc")
RELATION = Relation(1, "public", "t", "d", tuple(Column(name, 23, -1, is_key=name == "b") for name in "abc"))


def subscribed(columns=None):
    listed = None if columns is None else frozenset(columns)
    return Subscribed(Target("public", "t", "/t", ()), INVALID, (), columns=listed)


def test_what_is_published():
    assert kept_positions(RELATION.columns, subscribed()) is None
    assert kept_positions(RELATION.columns, subscribed("a")) == [0]


def test_a_key_is_complete_or_none():
    assert keep(COLUMNS, (1,), None) == (COLUMNS, (1,))
    assert keep(COLUMNS, (1,), [1, 2]) == (COLUMNS[1:], (0,))
    assert keep(COLUMNS, (1,), [0]) == (COLUMNS[:1], ())


def test_old_values():
    """Without a key, rows are found by all columns."""
    assert old_positions(COLUMNS, RELATION, subscribed(), ()) == {0, 1, 2}
    assert old_positions(COLUMNS, RELATION, subscribed(), (1,)) == {1}


def test_values_in_the_targets_types():
    table = pa.table({"op": pa.array([1]), "new_0": pa.array([5], pa.int32()), "old_0": pa.array([4], pa.int32())})
    wider = in_target_types(table, [INT4], [TargetColumn("a", INT8)])
    assert (wider["new_0"].type, wider["old_0"].type) == (pa.int64(), pa.int64())
    assert in_target_types(table, [INT4], [TargetColumn("a", INT4)]) is table


def test_texts_of_values_that_cannot_be_held_go_with_them():
    """Kept where the old value is, renumbered, and taken from the old tuple with an unchanged value."""
    decoded = pa.table(
        {
            "op": pa.array([UPDATE, UPDATE], pa.uint8()), "old": pa.array([OLD_TUPLE, NO_OLD], pa.uint8()),
            **{f"{kind}_{i}": pa.nulls(2, pa.date32()) for kind in ("new", "old") for i in range(2)},
            "unchanged_1": pa.array([True, False]),
            "unheld_0": pa.array([None, "infinity"]), "oldunheld_1": pa.array(["-infinity", None]),
        }
    )  # fmt: skip
    changes = as_changes(from_old_tuples(decoded), pa.array([0, 1]), {0}, [1])
    texts = {name: changes[name].to_pylist() for name in changes.column_names if "unheld" in name}
    assert texts == {"unheld_0": ["-infinity", None]}
    changes = as_changes(from_old_tuples(decoded), pa.array([0, 1]), {0, 1})
    assert changes["unheld_0"].to_pylist() == [None, "infinity"]
    assert changes["oldunheld_1"].to_pylist() == ["-infinity", None]
