"""Unchanged TOAST values come from the old tuples that have them; the others stay marked."""

from __future__ import annotations

import pyarrow as pa

from bridge.apply.batch.unchanged_toast import from_old_tuples
from bridge.apply.effects.operations import KEY_TUPLE, NO_OLD, OLD_TUPLE, UPDATE


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
