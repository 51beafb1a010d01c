"""A table of changes knows whether a key change carries an unchanged value."""

from __future__ import annotations

import random

import pyarrow.compute as pc

from bridge.apply.batch import table_changes as c
from tests.bridge.apply.made_changes import changes_table, random_case


def test_needs_fold_exactly_if_a_key_change_carries_an_unchanged_value():
    rng = random.Random(5)
    for seed in range(200):
        case = random_case(0, random.Random(seed), moves_keep_toast=True)
        changes = changes_table([case], rng)
        assert c.needs_fold(changes) == any(change["old"] and change["unchanged_3"] for change in case.changes)


def test_needs_no_fold_without_unchanged_values():
    changes = changes_table([random_case(0, random.Random(1), moves_keep_toast=False)], random.Random(1))
    assert not c.needs_fold(changes.drop_columns(["unchanged_3"]))
    assert pc.any(changes["unchanged_3"]).as_py() is not None
