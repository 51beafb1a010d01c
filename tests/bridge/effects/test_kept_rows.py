"""Kept rows become what a net effect makes of them."""

import random

import pyarrow as pa
import pytest

from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.effects.kept_rows import rows_after
from pgbridge.bridge.effects.net_effect import net_effect
from tests.bridge.apply.made_targets import changes_of

NAMES = ["id", "first"]
"""Effects have a column of such a name, too."""


def rows(count):
    return pa.table({"id": pa.array(range(count), pa.int64()), "first": pa.array(["x"] * count, pa.string())})


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_of_rows(seed):
    chosen = random.Random(seed)
    held = {key: f"r{key}" for key in range(chosen.randrange(12))}
    table = pa.table({"id": pa.array(held, pa.int64()), "first": pa.array(held.values(), pa.string())})
    for _ in range(10):
        changes: list[tuple[object, ...]] = []
        sound, before = True, dict(held)
        for number in range(chosen.randrange(1, 8)):
            key = chosen.randrange(12)
            is_there = (key in held) != (chosen.random() < 0.02)
            sound &= is_there == (key in held)
            if not is_there:
                changes.append((INSERT, None, key, f"i{number}"))
                held[key] = f"i{number}"
            elif chosen.random() < 0.4:
                changes.append((DELETE, key, None, None))
                held.pop(key, None)
            else:
                changes.append((UPDATE, None, key, f"u{number}"))
                held[key] = f"u{number}"
        effect = net_effect(changes_of(changes, pa.int64(), pa.string()), (0,))
        after = rows_after(table, effect.table, (0,), NAMES, ["new_0", "new_1"]) if effect.clear else None
        if not sound:
            assert after is None
            held = before
            continue
        if effect.shape.reborn:
            held = before  # such effects are merged
            continue
        assert after is not None
        table = after
        assert dict(zip(*table.to_pydict().values(), strict=True)) == held


def test_an_unchanged_value_is_the_row_s_and_a_key_that_is_there_twice_is_left_to_spark():
    changes = changes_of([(UPDATE, None, 1, None), (INSERT, None, 5, "new")], pa.int64(), pa.string())
    effects = net_effect(changes.append_column("unchanged_1", pa.array([True, False])), (0,)).table
    values = ["match_0", "new_1"]
    after = rows_after(rows(3), effects, (0,), NAMES, values)
    assert after is not None
    assert sorted(after.to_pylist(), key=str) == [{"id": i, "first": "new" if i == 5 else "x"} for i in (0, 1, 2, 5)]
    assert rows_after(pa.concat_tables([rows(3), rows(2)]), effects, (0,), NAMES, values) is None
    assert rows_after(rows(0), effects[1:], (0,), NAMES, values) is not None
    assert rows_after(rows(0), effects, (0,), NAMES, values) is None
