"""Whatever happens, in whatever order: the tables equal the server's, or pgbridge refuses, and its remedy works.

`make soak` has ten thousand seeds, by PGBRIDGE_SEEDS.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.seeded import POINTS, Step, shortened, steps_of, violation

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


@pytest.mark.soak  # half a minute
@pytest.mark.parametrize("plant", PLANTED, ids=[plant.__name__ for plant in PLANTED])
def test_a_planted_fault_is_noticed(tmp_path, plant):
    """Without one of the decisions, one of the first thousand seeds ends otherwise than it may."""
    assert any(violation(steps_of(seed), tmp_path, plant) is not None for seed in range(1000))


@pytest.mark.parametrize("last", range(0, 60, 6))
def test_a_flush_that_nobody_remembers(tmp_path, last):
    """It failed, the undo was killed, the state directory is lost: then the power goes."""
    steps = [Step("live"), Step("insert", 6), Step("fail_flush"), Step("kill", POINTS.index("undo_begun"))]
    assert violation([*steps, Step("lose_state"), Step("live"), Step("cut_power", last)], tmp_path) is None


LIVES = {
    "a former life": [Step("stand_by"), Step("insert", 6), Step("save_state"), Step("live"), Step("live")],
    "this life": [Step("live"), Step("insert", 6), Step("live"), Step("save_state"), Step("insert", 6), Step("live")],
}
"""Of which a table is put back to what it had when the state was saved."""


@pytest.mark.parametrize("before", LIVES.values(), ids=LIVES)
def test_a_table_is_put_back_after_a_recovery(tmp_path, before):
    """Its log alone would not tell."""
    steps = [*before, Step("lose_state", 2), Step("live"), Step("put_back_tables", 6)]
    assert violation(steps, tmp_path) is None


def test_a_table_is_put_back_to_a_life_that_the_server_has_lost(tmp_path):
    """It has written as much again meanwhile, on the same timeline: by its LSN the table would be further."""
    put_back_in_the_window = Step("in_the_window", 36343)
    steps = [put_back_in_the_window, Step("insert", 6), Step("live"), Step("save_state"), Step("live")]
    assert violation([*steps, Step("insert", 4), Step("put_back_tables", 6)], tmp_path) is None


def test_a_failure_is_shortened_to_what_it_takes(tmp_path):
    """Here to one step, whatever is around it."""
    steps = steps_of(1)
    assert len(steps) > 3
    wanted = steps[len(steps) // 2]
    assert shortened(steps, lambda fewer: wanted in fewer) == [wanted]
    assert violation([], tmp_path) is None
