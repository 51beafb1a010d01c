"""A thread of low priority: only that thread's, and the others wait for what it returns or raises.

The last answer is there at once, whatever becomes of the next one.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from functools import partial

import pytest

from pgbridge.bridge.runtime.threads import Latest, detached, yielding


def nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a priority of its own only on Linux")
def test_only_its_thread_yields():
    before = nice()
    assert yielding(nice, "test", 3) == min(19, before + 3)
    assert nice() == before


def test_what_it_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        yielding(lambda: divmod(1, 0), "test")


def test_what_was_called_is_let_go_with_the_answer():
    """A failed batch would stay in memory until cycles are collected."""

    class Batch:
        def fail(self):
            raise ZeroDivisionError

    batch = Batch()
    there = weakref.ref(batch)
    answer = detached(partial(Batch.fail, batch), "test")
    with pytest.raises(ZeroDivisionError):
        answer.result()
    del batch, answer
    gc.disable()
    try:
        end_s = time.monotonic() + 10
        while there() is not None:
            assert time.monotonic() < end_s
            time.sleep(0.01)
    finally:
        gc.enable()


def test_no_more_than_the_most_nice():
    """In a process that is nice already."""
    of_threads = "from pgbridge.bridge.runtime.threads import yield_to_others as y"
    code = f"import os; os.nice(15); {of_threads}; y(10); print(os.nice(0))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"19"


def test_a_value_grows_old():
    now_s = [100.0]
    latest = Latest(lambda: 7, now_s=lambda: now_s[0])
    assert latest.value() is None
    latest.look()
    now_s[0] += 30
    assert latest.value() == 7
    now_s[0] += 1
    assert latest.value() is None


def test_an_error_is_no_value():
    answers = [7]
    latest = Latest(answers.pop)
    latest.look()
    assert latest.value() == 7
    latest.look()
    assert latest.value() is None


def test_an_answer_that_does_not_come_holds_up_neither_readers_nor_the_end():
    asked, never = threading.Event(), threading.Event()

    def ask() -> int:
        asked.set()
        never.wait(60)
        return 7

    with Latest(ask, interval_s=0) as latest:
        latest.start()
        assert asked.wait(60)
        assert latest.value() is None
    never.set()


def test_it_asks_until_it_is_closed():
    enough, count = threading.Event(), [0]

    def ask() -> int:
        count[0] += 1
        if count[0] == 3:
            enough.set()
        return count[0]

    with Latest(ask, interval_s=0) as latest:
        latest.start()
        assert enough.wait(60)
    latest._thread.join(10)
    assert not latest._thread.is_alive()
    assert latest.value() == count[0]
