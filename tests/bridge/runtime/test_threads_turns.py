"""Turns: one at a time, in one thread, when they are due or are asked for; and none once they have ended."""

from __future__ import annotations

import threading
import time

from pgbridge.bridge.runtime.threads import Turns, detached


def test_turns_are_taken_one_at_a_time_until_they_end():
    turns, at_once, calls = Turns("turns", rest=0), [], []
    done = threading.Event()

    def one(name):
        def turn():
            at_once.append(name)
            assert at_once == [name]
            calls.append(name)
            at_once.remove(name)
            if calls.count("a") > 2 and calls.count("b") > 2:
                done.set()
            return 0.0 if name == "a" else 0.001

        return turn

    both = [one("a"), one("b")]
    for turn in both:
        turns.begin(turn, 0.0)
    assert done.wait(60)
    for turn in both:
        turns.end(turn)
    before = len(calls)
    turns.within(both[0], 0.0)  # it has ended
    turns.begin(both[1], 0.0)  # another thread
    while len(calls) == before:
        time.sleep(0.001)
    turns.end(both[1])
    assert set(calls[before:]) == {"b"}


def test_the_end_of_turns_waits_for_the_one_under_way_and_a_turn_can_be_asked_for():
    turns, began, may_end = Turns("turns", rest=1_000_000), threading.Event(), threading.Event()

    def turn():
        began.set()
        may_end.wait(10)
        return 1_000.0

    turns.begin(turn, 1_000.0)
    assert not began.wait(0.05)
    turns.within(turn, 0.0)
    assert began.wait(60)
    ending = detached(lambda: turns.end(turn), "ending")
    assert not ending.done()
    may_end.set()
    ending.result(10)


def test_who_has_turns_rests_after_each():
    turns, at_s = Turns("turns", rest=5), []

    def turn():
        at_s.append(time.monotonic())
        time.sleep(0.02)
        return 0.0

    turns.begin(turn, 0.0)
    while len(at_s) < 2:
        time.sleep(0.001)
    turns.end(turn)
    assert at_s[1] - at_s[0] >= 0.12


def test_a_turn_that_raises_takes_nobody_elses():
    turns, came = Turns("turns", rest=0), threading.Event()

    def raising():
        raise RuntimeError

    def other():
        came.set()
        return 1_000.0

    turns.begin(raising, 0.0)
    turns.begin(other, 0.05)
    assert came.wait(60)
    turns.end(raising)
    turns.end(other)
