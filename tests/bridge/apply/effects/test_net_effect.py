"""The net effect in Arrow: against a row-at-a-time model, against Spark's, and folded in parts."""

import random
from typing import Any

import pyarrow as pa
import pytest

from bridge.apply.delta import net_effect as spark_net_effect
from bridge.apply.effects.net_effect import (
    ARRIVED,
    DELETED,
    INSERTED,
    LEFT,
    UPDATED,
    Shape,
    fold,
    net_effect,
)
from tests.bridge.apply.made_changes import (
    KEY,
    TOAST,
    after_all,
    before_all,
    changes_table,
    merged,
    random_case,
)

EVENTS = {
    spark_net_effect.INSERTED: INSERTED,
    spark_net_effect.ARRIVED: ARRIVED,
    spark_net_effect.UPDATED: UPDATED,
    spark_net_effect.LEFT: LEFT,
    spark_net_effect.DELETED: DELETED,
}


def rows_of(effects: pa.Table) -> list[dict[str, Any]]:
    """Effects with the action that `merged` reads."""
    return [{**row, "action": "delete" if row["ended"] else "put"} for row in effects.to_pylist()]


def comparable(rows):
    """Effects by key, without values that have no meaning: those of a row that ended, and of unclear events."""
    found = {}
    for row in rows:
        of_row = {name: row[name] for name in ("born", "first", "updates", "deletes", "leaves", "unclear", "action")}
        if row["action"] == "put" and not row["unclear"]:
            of_row |= {"new_0": row["new_0"], "new_1": row["new_1"], "new_2": row["new_2"]}
            of_row["new_3"] = "unchanged" if row.get("unchanged_3") else row["new_3"]
        key = tuple(row[f"match_{k}"] for k in KEY)
        assert key not in found
        found[key] = of_row
    return found


def in_parts(changes: pa.Table, rng: random.Random, mean_rows: int) -> pa.Table:
    """The effects of changes that are folded in parts, and the parts folded again in another way."""
    parts = []
    while len(changes):
        rows = rng.randrange(1, 2 * mean_rows)
        parts.append(net_effect(changes[:rows], KEY).table)
        changes = changes[rows:]
    while len(parts) > 1:
        at = rng.randrange(len(parts) - 1)
        parts[at : at + 2] = [fold(parts[at : at + 2]).table]
    return parts[0]


@pytest.mark.parametrize("seed", range(20))
def test_net_effect_of_many_random_histories(seed):
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=False) for number in range(200)]
    changes = changes_table(cases, rng)
    whole = net_effect(changes, KEY)
    assert whole.clear
    assert merged(before_all(cases), rows_of(whole.table)) == after_all(cases)
    parts = in_parts(changes, rng, rng.choice([3, 50, 300]))
    assert comparable(rows_of(parts)) == comparable(rows_of(whole.table))


@pytest.mark.parametrize(("seed", "gaps"), [(1, 0.0), (2, 0.0), (3, 0.3), (4, 0.6)])
def test_spark_computes_the_same(spark, seed, gaps):
    """Also where changes are missing, so that events do not follow from each other."""
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=False) for number in range(300)]
    for case in cases:
        case.changes = [change for change in case.changes if rng.random() >= gaps]
    changes = changes_table(cases, rng)
    ours = net_effect(changes, KEY)
    theirs = spark_net_effect.net_effect(spark.createDataFrame(changes), KEY, (TOAST,)).collect()
    expected = comparable([{**row.asDict(), "first": EVENTS[row["first"]]} for row in theirs])
    assert comparable(rows_of(ours.table)) == expected
    assert comparable(rows_of(in_parts(changes, rng, 40))) == expected
    assert ours.clear == (gaps == 0)


def history(*texts):
    """Changes by their initial letters, each text of a case of its own; M moves the row."""
    rows: list[dict[str, Any]] = []
    for case, text in enumerate(texts):
        for op in text:
            old, new = (1, None) if op == "D" else (1, 2) if op == "M" else (None, 1)
            row: dict[str, Any] = {"op": ord("U" if op == "M" else op), "old": ord("K") if old else 0}
            row |= {"new_0": case if new else None, "new_1": new, "old_0": case if old else None, "old_1": old}
            rows.append({"seq": len(rows), "unchanged_3": False, **row})
    return pa.Table.from_pylist(rows, schema=changes_table([], random.Random(0)).schema)


def test_what_a_key_went_through():
    """Each case is one key, or two of a key change, with the events it has; as a whole, and change by change."""
    histories = {
        "IUD": (True, True, INSERTED, 0, 0, False, False),
        "UUD": (True, False, UPDATED, 2, 1, False, False),
        "UDIU": (False, True, UPDATED, 1, 1, False, False),
        "DIDI": (False, True, DELETED, 0, 1, False, False),
        "II": (False, True, INSERTED, 0, 0, False, True),
        "DU": (False, False, DELETED, 1, 1, False, True),
        "DD": (True, False, DELETED, 0, 2, False, True),
        "UI": (False, True, UPDATED, 1, 0, False, True),
        "IDU": (False, True, INSERTED, 0, 0, False, True),
        "UM": (True, False, UPDATED, 2, 0, True, False),
    }
    table = history(*histories)
    names = ("ended", "born", "first", "updates", "deletes", "leaves", "unclear")
    one_by_one = fold([net_effect(table[at : at + 1], KEY).table for at in range(len(table))])
    for effects in (net_effect(table, KEY), one_by_one):
        found = {(row["match_0"], row["match_1"]): row for row in effects.table.to_pylist()}
        by_text = {text: tuple(found[case, 1][name] for name in names) for case, text in enumerate(histories)}
        assert by_text == histories
        moved_to = found.pop((len(histories) - 1, 2))
        assert tuple(moved_to[name] for name in names) == (False, True, ARRIVED, 0, 0, False, False)


def test_the_shape_counts_each_kind():
    found = net_effect(history("IU", "ID", "UU", "UD", "DI", "M", "II"), KEY).shape
    assert found == Shape(unclear=1, leaves=1, puts=2, deletes=2, reborn=1, new=3, brief=1)


def test_without_toast_marks_and_old_tuples():
    """Batches of INSERTs, or of UPDATEs that keep the key, have no such columns."""
    table = history("I", "IU", "U").drop_columns(["unchanged_3", "old_0", "old_1"])
    effects = net_effect(table, KEY)
    assert effects.table.column_names == [
        *("match_0", "match_1", "born", "ended", "first", "updates", "deletes", "leaves", "unclear"),
        *("new_0", "new_1", "new_2", "new_3"),
    ]
    assert [row["new_0"] for row in effects.table.to_pylist()] == [0, 1, 2]


def test_no_changes():
    assert len(net_effect(history(), KEY).table) == 0


def test_a_part_without_marks_knows_all_its_values():
    """The first part has an unchanged value, the second one has no such column, or the other way round."""
    unchanged = history("U").set_column(9, "unchanged_3", pa.array([True]))
    known = history("U").drop_columns(["unchanged_3"])
    known = known.set_column(known.column_names.index("new_3"), "new_3", pa.array(["known"]))
    for parts in ([unchanged, known], [known, unchanged]):
        effects = fold([net_effect(part, KEY).table for part in parts]).table
        assert [(row["new_3"], row["unchanged_3"]) for row in effects.to_pylist()] == [("known", False)]
