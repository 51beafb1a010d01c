"""Whatever happens, in whatever order: the tables equal the server's, or pgbridge refuses, and its remedy works."""

from __future__ import annotations

import os

import pytest

from tests.simulation.seeded import shortened, steps_of, violation

SEEDS = int(os.environ.get("PGBRIDGE_SEEDS", "300"))
_EACH = 25


@pytest.mark.parametrize("first", range(0, SEEDS, _EACH))
def test_equal_or_refused(tmp_path, first):
    for seed in range(first, min(first + _EACH, SEEDS)):
        steps = steps_of(seed)
        if violation(steps, tmp_path) is not None:
            least = shortened(steps, lambda fewer: violation(fewer, tmp_path) is not None)
            listed = "".join(f"    {step!r},\n" for step in least)
            pytest.fail(f"seed {seed}: {violation(least, tmp_path)}\nto try it again: violation([\n{listed}], folder)")
