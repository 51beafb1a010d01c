"""Many share one call; an error is one caller's only."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pytest

from pgbridge.bridge.catalog import catalog
from pgbridge.bridge.catalog.catalog import Catalog
from pgbridge.bridge.runtime import threads
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.runtime.threads import Together
from pgbridge.protocol.lsn import Lsn

FULL = "database or disk is full"


class Gate:
    """A work whose calls are counted; the first waits until all others have come. Calls of these numbers fail."""

    def __init__(self, *fails: int) -> None:
        self._fails = fails
        self.open = threading.Event()
        self.begun = threading.Event()
        self.calls = 0
        self.done: list[int] = []

    def __call__(self, group: list[int]) -> list[int]:
        """Double each."""
        self.calls += 1
        number = self.calls
        if number == 1:
            self.begun.set()
            assert self.open.wait(60)
        if number in self._fails:
            raise StateError(FULL, retry=True)
        self.done += group
        return [2 * item for item in group]


def ask_all(gate: Gate, pool: ThreadPoolExecutor):
    """Have the first item done, and the others wait for it; return what becomes of each."""
    together = Together(gate)
    futures = [pool.submit(together.do, 0)]
    assert gate.begun.wait(60)
    futures += [pool.submit(together.do, item) for item in range(1, 40)]
    while len(together._waiting) < 39:
        assert not futures[0].done()
    gate.open.set()
    return futures


def test_those_that_wait_share_a_call():
    gate = Gate()
    with ThreadPoolExecutor(40) as pool:
        assert [future.result(30) for future in ask_all(gate, pool)] == [2 * item for item in range(40)]
    assert gate.calls == 2


def test_what_has_time_waits_after_a_call_that_succeeded(monkeypatch):
    """And goes with what others ask for meanwhile."""
    slept: list[float] = []
    gate = Gate(3)
    gate.open.set()
    together: Together[int, int] = Together(gate)

    def sleep(duration_s):
        slept.append(duration_s)
        if len(together._waiting) == 1 and duration_s:
            assert together.do(7) == 14

    monkeypatch.setattr(threads, "time", SimpleNamespace(monotonic=lambda: 1000.0, sleep=sleep))
    assert together.do(1, after_s=2.0) == 2
    assert together.do(2, after_s=2.0) == 4
    assert gate.done == [1, 2, 7]
    assert gate.calls == 2
    with pytest.raises(StateError, match=FULL):
        together.do(3)
    assert [duration_s for duration_s in slept if duration_s] == [2.0]


def test_an_error_is_raised_once_and_the_others_are_done():
    gate = Gate(1)
    with ThreadPoolExecutor(40) as pool:
        first, *others = ask_all(gate, pool)
        with pytest.raises(StateError, match=FULL):
            first.result(30)
        assert [future.result(30) for future in others] == [2 * item for item in range(1, 40)]
    assert gate.done == [*range(1, 40)]


def test_a_group_that_fails_fails_for_one_of_it_alone():
    """The others of the group are in the next one."""
    gate = Gate(2)
    with ThreadPoolExecutor(40) as pool:
        futures = ask_all(gate, pool)
        failed = [item for item, future in enumerate(futures) if future.exception(30) is not None]
    assert len(failed) == 1
    assert sorted(gate.done) == [item for item in range(40) if item not in failed]


@pytest.fixture
def begun(tmp_path):
    with closing(Catalog(tmp_path / "catalog.sqlite")) as opened:
        for name in ("s1", "s2"):
            opened.register(name, enabled=True)
            opened.create_origin(name, Lsn(0x100), "an incarnation", [])
        yield opened


def test_each_is_told_of_its_own_origin(begun):
    assert begun.advance_origin("s1", Lsn(0x200))
    assert not begun.advance_origin("s1", Lsn(0x180))
    assert not begun.advance_origin("unknown", Lsn(0x200))
    assert begun._advance_all([("s1", Lsn(0x200)), ("s2", Lsn(0x300))]) == [False, True]
    assert (begun.remote_lsn("s1"), begun.remote_lsn("s2")) == (0x200, 0x300)


def test_one_alone_does_not_wait_for_others(monkeypatch, tmp_path):
    monkeypatch.setattr(catalog, "_COMMIT_DELAY_S", 60.0)
    with closing(Catalog(tmp_path / "catalog.sqlite")) as opened:
        opened.register("s1", enabled=True)
        opened.create_origin("s1", Lsn(0x100), "an incarnation", [])
        for lsn in (0x200, 0x300):
            assert opened.advance_origin("s1", Lsn(lsn))
