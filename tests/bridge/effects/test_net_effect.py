"""The net effect in Arrow: against a row-at-a-time model, against Spark's, and folded in parts.

Which row each effect is on, where rows move: `test_net_effect_of_many_random_histories` has the same at random.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgbridge.bridge.effects.events import ARRIVED, BEGINS, DELETE, DELETED, INSERT, INSERTED, UPDATE, UPDATED
from pgbridge.bridge.effects.net_effect import NO_KEY, Shape, fold, net_effect, reborn_apart, row_chains
from tests.bridge.apply.made_changes import (
    KEY,
    RowAtATime,
    after_all,
    before_all,
    changes_table,
    merged,
    random_case,
    rows_of,
)


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


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(5, 20))])
def test_net_effect_of_many_random_histories(seed):
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=True) for number in range(200)]
    changes = changes_table(cases, rng)
    whole = net_effect(changes, KEY)
    assert whole.clear
    assert whole.shape.moved
    assert merged(before_all(cases), rows_of(whole.table)) == after_all(cases)
    parts = in_parts(changes, rng, rng.choice([3, 50, 300]))
    assert merged(before_all(cases), rows_of(parts)) == after_all(cases)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("gaps", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 8))])
def test_on_a_table_with_other_rows(seed, gaps, overwrite):
    """Rows are missing or in the way, and changes are left out: the result is PostgreSQL's, or is said to be unclear.

    A row in the way stops the MERGE. That may be no conflict only if a row is missing that would move.
    """
    rng = random.Random(seed)
    clear = 0
    for number in range(200):
        case = random_case(number, rng, moves_keep_toast=True)
        case.changes = [change for change in case.changes if rng.random() >= gaps]
        table = {(number, key): (key, f"there {key}") for key in range(5) if rng.random() < 0.5}
        changes = changes_table([case], rng)
        for effects in (net_effect(changes, KEY).table, in_parts(changes, rng, 3)) if len(changes) else ():
            found = rows_of(effects)
            if any(row["unclear"] for row in found):
                continue
            there = [(row["match_0"], row["match_1"]) in table for row in found]
            leaves_missing = any(row["leaves"] and not here for row, here in zip(found, there, strict=True))
            in_the_way = any(row["first"] in BEGINS and here for row, here in zip(found, there, strict=True))
            expected = RowAtATime(table, overwrite=overwrite)
            for change in case.changes:
                expected.apply(change)
            if leaves_missing and (overwrite or in_the_way):
                continue  # each change is made in turn
            clear += 1
            if in_the_way and not overwrite:
                assert expected.stopped
                continue
            assert not expected.stopped
            assert merged(table, found) == expected.rows
            missing = [row for row, here in zip(found, there, strict=True) if row["first"] not in BEGINS and not here]
            for name, count in (("update_missing", "updates"), ("delete_missing", "deletes")):
                assert sum(row[count] for row in missing) == expected.conflicts[name]
    assert clear > 100


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
        "UM": (False, False, UPDATED, 2, 0, True, False),
    }
    table = history(*histories)
    names = ("ended", "born", "first", "updates", "deletes", "leaves", "unclear")
    one_by_one = fold([net_effect(table[at : at + 1], KEY).table for at in range(len(table))])
    for effects in (net_effect(table, KEY), one_by_one):
        found = {(row["match_0"], row["match_1"]): row for row in effects.table.to_pylist()}
        by_text = {text: tuple(found[case, 1][name] for name in names) for case, text in enumerate(histories)}
        assert by_text == histories
        taken = found.pop((len(histories) - 1, 2))
        assert tuple(taken[name] for name in names) == (True, True, ARRIVED, 0, 0, False, False)
        moved = {key: (row["new_0"], row["new_1"]) for key, row in found.items() if row["moved"]}
        assert moved == {(len(histories) - 1, 1): (len(histories) - 1, 2)}


def test_the_key_that_a_moved_row_has_left():
    """A new row there has no key to match; if the moved row goes, the new one can have the key."""
    table = history("MI", "MDI")
    table = table.set_column(table.column_names.index("old_1"), "old_1", pa.array([1, None, 1, 2, None]))
    for effects in (net_effect(table, KEY), fold([net_effect(table[at : at + 1], KEY).table for at in range(5)])):
        found = [
            (r["match_0"], r["match_1"], r["new_1"], r["born"]) for r in effects.table.to_pylist() if not r["ended"]
        ]
        assert (0, 1, 2, False) in found
        assert (None, None, 1, True) in found
        assert effects.shape.new in (1, 2)
        assert effects.clear


def test_a_row_that_is_born_under_the_key_of_one_that_ended_is_an_effect_of_its_own():
    """So it has none of the values of the other in columns that only the target has."""
    effect = net_effect(history("IU", "UDIU", "DI", "DID", "U"), KEY)
    found = reborn_apart(effect)
    rows = found.table.to_pylist()
    parted = [row for row in rows if row["match_0"] is None]
    assert [(row["new_0"], row["new_1"], row["born"], row["first"], row["updates"]) for row in parted] == [
        (1, 1, True, INSERTED, 0),
        (2, 1, True, INSERTED, 0),
    ]
    gone = {row["match_0"]: (row["updates"], row["deletes"], row["born"]) for row in rows if row["ended"]}
    assert gone == {1: (1, 1, False), 2: (0, 1, False), 3: (0, 1, True)}
    assert (found.shape.reborn, found.shape.deletes, found.shape.new) == (0, 3, 3)
    assert reborn_apart(found) is found


def test_the_shape_counts_each_kind():
    found = net_effect(history("IU", "ID", "UU", "UD", "DI", "M", "II"), KEY).shape
    assert found == Shape(unclear=1, leaves=1, moved=1, puts=3, deletes=1, reborn=1, new=2, brief=2)


def test_without_toast_marks_and_old_tuples():
    """Batches of INSERTs, or of UPDATEs that keep the key, have no such columns."""
    table = history("I", "IU", "U").drop_columns(["unchanged_3", "old_0", "old_1"])
    effects = net_effect(table, KEY)
    assert effects.table.column_names == [
        *("match_0", "match_1", "born", "ended", "first", "updates", "deletes", "leaves", "moved", "unclear"),
        *("new_0", "new_1", "new_2", "new_3"),
    ]
    assert [row["new_0"] for row in effects.table.to_pylist()] == [0, 1, 2]


@pytest.mark.parametrize("moves", [False, True])
def test_a_key_that_becomes_an_equal_one_is_the_last_one(moves):
    """-0.0 is 0.0, but PostgreSQL stores the one that came last."""
    rows = [(INSERT, 0.0, None, 0), (UPDATE, -0.0, None, 1), (DELETE, None, 1.0, 0), (INSERT, 1.0, None, 2)]
    rows += [(UPDATE, 3.0, 2.0, 3), (UPDATE, 2.0, 3.0, 4)] if moves else []
    table = pa.table(
        {
            "op": pa.array([row[0] for row in rows], pa.int16()),
            "old": pa.array([0 if row[2] is None else ord("K") for row in rows], pa.int16()),
            "new_0": pa.array([row[1] for row in rows], pa.float64()),
            "new_1": [row[3] for row in rows],
            "old_0": pa.array([row[2] for row in rows], pa.float64()),
        }
    )
    one_by_one = fold([net_effect(table[at : at + 1], (0,)).table for at in range(len(table))])
    for effects in (net_effect(table, (0,)), one_by_one):
        assert not effects.shape.moved
        found = {str(row["match_0"]): row["new_1"] for row in effects.table.to_pylist() if not row["ended"]}
        assert found == {"-0.0": 1, "1.0": 2} | ({"2.0": 4} if moves else {})


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


def chains(*effects):
    """Effects as (round, key before, key after, whether it begins): groups, and the effects with each mark."""
    rounds, *keys, begins = zip(*effects, strict=True)
    before, after = (np.array([NO_KEY if key is None else key for key in some]) for some in keys)
    found = row_chains(before, after, np.array(begins), np.array(rounds))
    marks = (np.flatnonzero(mark).tolist() for mark in (found.unclear, found.needless, found.keyless))
    return found.groups.tolist(), *marks


def insert(at, key):
    return at, key, key, True


def update(at, key):
    return at, key, key, False


def delete(at, key):
    return at, key, None, False


def move(at, old, new):
    """The new key is taken, and the row moves to it."""
    return (at, new, None, True), (at, old, new, False)


def test_a_row_is_followed_from_key_to_key():
    assert chains(*move(0, 1, 2), update(1, 2), *move(2, 2, 3), delete(3, 3)) == ([0, 1, 1, 3, 1, 1], [], [], [])


def test_a_key_that_was_freed_need_not_be_looked_at_again():
    assert chains(delete(0, 2), *move(1, 1, 2)) == ([0, 0, 2], [], [1], [])


def test_a_new_row_replaces_the_one_that_was_deleted():
    assert chains(delete(0, 1), insert(1, 1), update(2, 1)) == ([0, 0, 0], [], [], [])


def test_a_new_row_has_no_key_where_a_row_has_moved_away():
    assert chains(*move(0, 1, 2), insert(1, 1), update(2, 1)) == ([0, 1, 2, 2], [], [], [2])


def test_rows_that_change_places_in_one_round():
    """As a fold has it: both leave before either comes."""
    assert chains((0, 1, 2, False), (0, 2, 1, False), update(1, 1), delete(1, 2)) == ([0, 1, 1, 0], [], [], [])


def test_what_does_not_follow():
    assert chains(insert(0, 1), insert(1, 1))[1] == [1]
    assert chains(delete(0, 1), update(1, 1))[1] == [1]
    assert chains(update(0, 2), *move(1, 1, 2))[1] == [1]


def test_no_effects():
    none = np.zeros(0, np.int64)
    assert len(row_chains(none, none, none.astype(np.bool_), none).groups) == 0
