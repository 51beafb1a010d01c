"""The fold agrees with a row-at-a-time model, also where a key change carries an unchanged TOAST value."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.apply import moved
from tests.bridge.apply.changes import KEY, TYPES, after_all, before_all, changes_table, merged, random_case


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), moves_keep_toast=st.booleans())
def test_fold_has_the_net_effect_of_the_changes(seed, moves_keep_toast):
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=moves_keep_toast) for number in range(4)]
    effects = moved.fold(changes_table(cases, rng), KEY, TYPES).to_pylist()
    assert merged(before_all(cases), effects) == after_all(cases)


def test_a_row_that_takes_the_key_of_a_moved_one_is_inserted_beside_it():
    """1 moves to 2 with its large value; a new 1 comes: the target's row 1 becomes 2, and 1 is inserted."""
    changes: list[dict[str, Any]] = [
        {"op": ord("U"), "old": ord("K"), "new_0": 0, "new_1": 2, "new_2": 7, "new_3": None, "old_0": 0, "old_1": 1,
         "unchanged_3": True},
        {"op": ord("I"), "old": 0, "new_0": 0, "new_1": 1, "new_2": 8, "new_3": "new", "old_0": None, "old_1": None,
         "unchanged_3": False},
    ]  # fmt: skip
    case = random_case(0, random.Random(0), moves_keep_toast=False)
    case.changes = changes
    effects = moved.fold(changes_table([case], random.Random(0)), KEY, TYPES).to_pylist()
    assert merged({(0, 1): (1, "large")}, effects) == {(0, 2): (7, "large"), (0, 1): (8, "new")}
