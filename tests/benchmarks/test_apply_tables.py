"""Changes are of rows that the table has, or does not have, as their kind says."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pytest

from benchmarks.apply_tables import KEYS, RANDOM, SERIAL, Case, Size
from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.effects.net_effect import net_effect


@pytest.mark.parametrize("keys", KEYS)
def test_mixed_changes_are_of_different_rows(keys):
    changes = Case(Size(1_000, keys), "mixed", 100).changes_of(1)
    counts = dict(zip(*np.unique(changes["op"].to_numpy(), return_counts=True), strict=True))
    assert counts == {UPDATE: 70, INSERT: 20, DELETE: 10}
    effect = net_effect(changes, (0,))
    assert effect.clear
    assert len(effect.table) == 100
    assert (effect.shape.puts, effect.shape.new, effect.shape.deletes) == (70, 20, 10)


def test_serial_changes_are_of_the_newest_rows():
    changes = Case(Size(1_000, SERIAL), "update", 50).changes_of(2)
    found = pc.min_max(changes["new_0"]).as_py()
    assert 900 <= found["min"] < found["max"] <= 999
    assert Case(Size(1_000, SERIAL), "insert", 50).changes_of(2)["new_0"].combine_chunks().is_valid().true_count == 50


def test_random_keys_are_the_same_in_spark_and_here(spark):
    size = Size(50, RANDOM)
    made = spark.range(50).selectExpr(*size.expressions()).toArrow()
    assert made.schema.names == [column.name for column in size.columns]
    changed = Case(size, "update", 50).changes_of(3)
    assert set(changed["new_0"].to_pylist()) == set(made["id"].to_pylist())
    assert set(changed["new_7"].to_pylist()) == set(made["amount"].to_pylist())
