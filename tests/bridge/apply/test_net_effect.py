"""The net effect, computed by Spark, agrees with a row-at-a-time model over random histories."""

import random

import pytest

from bridge.apply.net_effect import net_effect
from tests.bridge.apply.changes import KEY, TOAST, after_all, before_all, changes_table, merged, random_case


def effects_of(spark, table, toast=(TOAST,)):
    """The effects of changes, collected."""
    return [row.asDict() for row in net_effect(spark.createDataFrame(table), KEY, toast).collect()]


@pytest.mark.parametrize("seed", range(3))
def test_net_effect_of_many_random_histories(spark, seed):
    """Each case is a history of its own; 400 of them run as one job."""
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=False) for number in range(400)]
    effects = effects_of(spark, changes_table(cases, rng))
    assert merged(before_all(cases), effects) == after_all(cases)


def test_a_row_that_came_and_went_has_no_effect(spark):
    cases = [random_case(number, random.Random(number), moves_keep_toast=False) for number in range(50)]
    rng = random.Random(0)
    effects = effects_of(spark, changes_table(cases, rng))
    before, after = before_all(cases), after_all(cases)
    touched = {(effect["match_0"], effect["match_1"]) for effect in effects}
    assert all(key in before or key in after for key in touched)


def test_without_toast_marks_and_old_tuples(spark):
    """The columns are not there in batches that need none; the effect is the same."""
    rng = random.Random(9)
    cases = []
    for number in range(600):
        case = random_case(number, rng, moves_keep_toast=False)
        if all(change["old"] == 0 and not change["unchanged_3"] for change in case.changes):
            cases.append(case)
    assert len(cases) > 10
    table = changes_table(cases, rng).drop_columns(["unchanged_3", "old_0", "old_1"])
    effects = effects_of(spark, table, toast=())
    assert merged(before_all(cases), effects) == after_all(cases)
