"""The net effect, computed by Spark, agrees with a row-at-a-time model over random histories."""

import random
from typing import Any

import pyarrow as pa
import pytest

from bridge.lake.changes.net_effect import net_effect
from tests.bridge.apply.made_changes import KEY, TOAST, after_all, before_all, changes_table, merged, random_case


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


def test_what_a_key_went_through(spark):
    """Each case is one key, or two of a key change, with the events it has."""
    histories = {
        "IUD": ("delete", True, "insert", 0, 0, False, False),
        "UUD": ("delete", False, "update", 2, 1, False, False),
        "UDIU": ("put", True, "update", 1, 1, False, False),
        "DIDI": ("put", True, "delete", 0, 1, False, False),
        "II": ("put", True, "insert", 0, 0, False, True),
        "DU": ("put", False, "delete", 1, 1, False, True),
        "DD": ("delete", False, "delete", 0, 2, False, True),
        "UI": ("put", True, "update", 1, 0, False, True),
        "IDU": ("put", True, "insert", 0, 0, False, True),
        "UM": ("delete", False, "update", 2, 0, True, False),
    }
    rows: list[dict[str, Any]] = []
    for case, text in enumerate(histories):
        for op in text:
            old, new = (1, None) if op == "D" else (1, 2) if op == "M" else (None, 1)
            row: dict[str, Any] = {
                "op": ord("U" if op == "M" else op),
                "old": ord("K") if old else 0,
                "unchanged_3": False,
            }
            row |= {"new_0": case if new else None, "new_1": new, "old_0": case if old else None, "old_1": old}
            rows.append({"seq": len(rows), **row})
    table = pa.Table.from_pylist(rows, schema=changes_table([], random.Random(0)).schema)
    effects = {(effect["match_0"], effect["match_1"]): effect for effect in effects_of(spark, table)}
    names = ("action", "born", "first", "updates", "deletes", "leaves", "unclear")
    found = {text: tuple(effects[case, 1][name] for name in names) for case, text in enumerate(histories)}
    assert found == histories
    moved_to = effects.pop((len(histories) - 1, 2))
    assert tuple(moved_to[name] for name in names) == ("put", True, "arrive", 0, 0, False, False)


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
