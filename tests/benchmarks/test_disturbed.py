"""A disturbed run is made again, and variants take turns."""

from __future__ import annotations

import time
from types import SimpleNamespace

import psutil
import pytest

from benchmarks.disturbed import busy_s, in_turn, is_disturbed, stolen_s, undisturbed


@pytest.mark.parametrize(
    ("stolen", "kept", "left"), [([0.4], 0.4, []), ([5, 0.4, 7], 0.4, [5]), ([5, 6, 7, 8, 9], 8, [5, 6, 7])]
)
def test_last_of_four_tries_counts_whatever_it_is(stolen, kept, left):
    waiting = iter(stolen)
    left_out: list[SimpleNamespace] = []
    run = undisturbed(lambda: SimpleNamespace(seconds=10, stolen_s=next(waiting)), left_out)
    assert run.stolen_s == kept
    assert [one.stolen_s for one in left_out] == left


def test_a_tenth_is_neglected():
    assert not is_disturbed(SimpleNamespace(seconds=10, stolen_s=1))
    assert is_disturbed(SimpleNamespace(seconds=10, stolen_s=1.1))


def test_each_is_first_in_turn():
    assert [in_turn("abc", number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_all_processes_count_as_busy():
    before_s, own_s = busy_s(), time.process_time()
    sum(range(3_000_000))
    assert busy_s() - before_s > 0.5 * (time.process_time() - own_s)


def test_a_machine_that_does_not_count_stolen_time(monkeypatch):
    assert stolen_s() >= 0
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=1.0))
    assert stolen_s() == 0
