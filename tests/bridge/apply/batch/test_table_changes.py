"""What a table of changes holds."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.batch import table_changes as c
from tests.bridge.apply.made_changes import changes_table, random_case


def test_moves_exactly_when_a_key_change_carries_an_unchanged_value():
    rng = random.Random(5)
    for seed in range(200):
        case = random_case(0, random.Random(seed), moves_keep_toast=True)
        changes = changes_table([case], rng)
        assert c.moves(changes) == any(change["old"] and change["unchanged_3"] for change in case.changes)


def test_nothing_moves_without_marks():
    changes = changes_table([random_case(0, random.Random(1), moves_keep_toast=False)], random.Random(1))
    assert not c.moves(changes.drop_columns(["unchanged_3"]))
    assert pc.any(changes["unchanged_3"]).as_py() is not None


def test_texts_of_values_that_cannot_be_held_go_with_them():
    """Kept where the old value is, renumbered, and taken from the old tuple with an unchanged value."""
    decoded = pa.table(
        {
            "op": pa.array([c.UPDATE, c.UPDATE], pa.uint8()), "old": pa.array([c.OLD_TUPLE, c.NO_OLD], pa.uint8()),
            **{f"{kind}_{i}": pa.nulls(2, pa.date32()) for kind in ("new", "old") for i in range(2)},
            "unchanged_1": pa.array([True, False]),
            "unheld_0": pa.array([None, "infinity"]), "oldunheld_1": pa.array(["-infinity", None]),
        }
    )  # fmt: skip
    changes = c.from_rows(decoded, pa.array([0, 1]), {0}, [1])
    texts = {name: changes[name].to_pylist() for name in changes.column_names if "unheld" in name}
    assert texts == {"unheld_0": ["-infinity", None]}
    changes = c.from_rows(decoded, pa.array([0, 1]), {0, 1})
    assert changes["unheld_0"].to_pylist() == [None, "infinity"]
    assert changes["oldunheld_1"].to_pylist() == ["-infinity", None]


def test_an_unchanged_value_is_that_of_the_old_tuple_or_stays():
    """A partition whose identity is its key sends it as the whole row, where its root has FULL: NULL is no value."""
    decoded = pa.table(
        {
            "op": pa.array([c.UPDATE] * 4, pa.uint8()),
            "old": pa.array([c.OLD_TUPLE, c.OLD_TUPLE, c.KEY_TUPLE, c.NO_OLD], pa.uint8()),
            "new_0": pa.array([1, 2, None, 4], pa.int32()),
            "old_0": pa.array([5, 6, 7, None], pa.int32()),
            "unchanged_0": [False, False, True, False],
            "new_1": pa.array([None] * 4, pa.string()),
            "old_1": pa.array(["large", None, None, None]),
            "unchanged_1": [True] * 4,
        }
    )
    changes = c.from_rows(decoded, pa.array(range(4)), (0,))
    assert changes["new_0"].to_pylist() == [1, 2, 7, 4]
    assert changes["unchanged_0"].to_pylist() == [False] * 4
    assert changes["new_1"].to_pylist() == ["large", None, None, None]
    assert changes["unchanged_1"].to_pylist() == [False, True, True, True]
    assert "old_1" not in changes.column_names
