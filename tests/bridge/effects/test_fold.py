"""The fold agrees with a row-at-a-time model, also if a key change carries an unchanged TOAST value."""

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from pgbridge.bridge.effects import fold
from pgbridge.bridge.effects.conflicts import Tally
from pgbridge.bridge.effects.events import BEGINS
from tests.bridge.apply.made_changes import (
    KEY,
    TYPES,
    RowAtATime,
    after_all,
    before_all,
    changes_table,
    merged,
    random_case,
    rows_of,
)


def folded(changes, before, *, overwrite=False):
    """Fold changes of a table; returns the effects, and the conflicts."""
    tally = Tally()
    return rows_of(fold.fold(changes, KEY, TYPES, before.keys(), tally, overwrite=overwrite)), tally


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), moves_keep_toast=st.booleans())
def test_fold_has_the_net_effect_of_the_changes(seed, moves_keep_toast):
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=moves_keep_toast) for number in range(4)]
    effects, tally = folded(changes_table(cases, rng), before_all(cases))
    assert merged(before_all(cases), effects) == after_all(cases)
    assert tally.counts == {}


@settings(max_examples=500, deadline=None)
@given(seed=st.integers(0, 2**32), overwrite=st.booleans(), gaps=st.booleans())
def test_fold_agrees_with_row_at_a_time_whatever_the_target_has(seed, overwrite, gaps):
    """The target lacks rows and has additional ones; with `gaps`, some changes are not published."""
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=True) for number in range(2)]
    before = {key: row for key, row in before_all(cases).items() if rng.random() < 0.8}
    before |= {(rng.randrange(2), rng.randrange(5)): (7, "own") for _ in range(rng.randrange(3))}
    for case in cases:
        case.changes = [change for change in case.changes if not gaps or rng.random() < 0.7]
    changes = changes_table(cases, rng)
    model = RowAtATime(before, overwrite=overwrite)
    for change in changes.to_pylist():
        model.apply(change)
    if model.stopped is not None:
        with pytest.raises(fold.Exists) as caught:
            folded(changes, before, overwrite=overwrite)
        assert (caught.value.name, caught.value.key) == model.stopped
        return
    effects, tally = folded(changes, before, overwrite=overwrite)
    assert merged(before, effects) == model.rows
    assert tally.counts == model.conflicts
    begins = {(effect["match_0"], effect["match_1"]) for effect in effects if effect["first"] in BEGINS}
    assert overwrite or not begins.intersection(before), "a MERGE would raise insert_exists"


def test_a_new_row_with_the_key_of_a_moved_row_is_inserted():
    """Row 1 moves to 2 with its large value, then a new 1 is inserted: the target's row 1 becomes 2, and 1 is new."""
    changes: list[dict[str, Any]] = [
        {"op": ord("U"), "old": ord("K"), "new_0": 0, "new_1": 2, "new_2": 7, "new_3": None, "old_0": 0, "old_1": 1,
         "unchanged_3": True},
        {"op": ord("I"), "old": 0, "new_0": 0, "new_1": 1, "new_2": 8, "new_3": "new", "old_0": None, "old_1": None,
         "unchanged_3": False},
    ]  # fmt: skip
    case = random_case(0, random.Random(0), moves_keep_toast=False)
    case.changes = changes
    effects, _ = folded(changes_table([case], random.Random(0)), {(0, 1): (1, "large")})
    assert merged({(0, 1): (1, "large")}, effects) == {(0, 2): (7, "large"), (0, 1): (8, "new")}


def test_keys_of_arrays_and_nan_are_found():
    (nan, items, nested) = fold.key_of_values([float("nan"), [1, float("nan")], 1.5])
    assert (nan, items, nested) == fold.key_of_values([float("nan"), [1, float("nan")], 1.5])
    assert math.isnan(nan)
    assert hash(items) is not None
