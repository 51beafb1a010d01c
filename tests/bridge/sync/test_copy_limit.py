"""Copies take turns: never more than the limit, first come first served, and nobody waits who is to stop."""

from __future__ import annotations

import threading
import time

import pytest

from bridge.errors import SyncError
from bridge.sync.copy_limit import CopyLimit


class Copies:
    """Threads that take a turn each, and end it when told; `order` has their names as they came to it."""

    def __init__(self, limit: CopyLimit) -> None:
        self.limit = limit
        self.order: list[str] = []
        self.may_end = {name: threading.Event() for name in "abcdef"}
        self.threads: list[threading.Thread] = []

    def start(self, name: str) -> None:
        before = len(self.limit._waiting) + self.limit._under_way
        thread = threading.Thread(target=self._copy, args=(name,))
        self.threads.append(thread)
        thread.start()
        wait_until(lambda: len(self.limit._waiting) + self.limit._under_way == before + 1)

    def _copy(self, name: str) -> None:
        with self.limit.turn():
            self.order.append(name)
            self.may_end[name].wait(30)

    def end(self) -> None:
        for event in self.may_end.values():
            event.set()
        for thread in self.threads:
            thread.join(30)


def wait_until(condition):
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.01)


def test_in_the_order_in_which_they_came():
    copies = Copies(CopyLimit(2))
    for name in "abcdef":
        copies.start(name)
    wait_until(lambda: len(copies.order) == 2)
    copies.may_end["b"].set()
    wait_until(lambda: len(copies.order) == 3)
    assert copies.order == ["a", "b", "c"]
    assert copies.limit._under_way == 2
    copies.end()
    assert sorted(copies.order) == list("abcdef")
    assert copies.limit._under_way == 0


def test_without_a_limit():
    copies = Copies(CopyLimit())
    for name in "abcdef":
        copies.start(name)
    wait_until(lambda: len(copies.order) == 6)
    copies.end()


def test_who_is_to_stop_leaves_the_line():
    turns = CopyLimit(1)
    with turns.turn(), pytest.raises(SyncError, match="stopped while it waited"), turns.turn(lambda: True):
        pass
    with turns.turn(lambda: True):
        assert turns._under_way == 1


def test_a_copy_that_fails_gives_its_turn_back():
    turns = CopyLimit(1)
    with pytest.raises(ValueError, match="no"), turns.turn():
        raise ValueError("no")
    with turns.turn():
        pass


def test_another_limit_while_copies_run():
    """A higher one lets those go on that wait; a lower one lets those end that run."""
    copies = Copies(CopyLimit(1))
    for name in "abc":
        copies.start(name)
    copies.limit.change(3)
    wait_until(lambda: len(copies.order) == 3)
    copies.limit.change(1)
    copies.start("d")
    copies.may_end["a"].set()
    copies.may_end["b"].set()
    wait_until(lambda: copies.limit._under_way == 1)
    assert len(copies.order) == 3
    copies.may_end["c"].set()
    wait_until(lambda: len(copies.order) == 4)
    copies.end()
