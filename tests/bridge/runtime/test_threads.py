"""A thread of low priority: only that thread's, and the others wait for what it returns or raises."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from bridge.runtime.threads import Background


def nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a priority of its own only on Linux")
def test_only_its_thread_yields():
    before = nice()
    with Background("test", nice=3) as background:
        assert background.run(nice) == min(19, before + 3)
        assert background.run(nice) == min(19, before + 3)
    assert nice() == before


def test_what_it_raises_is_raised():
    with Background("test") as background, pytest.raises(ZeroDivisionError):
        background.run(divmod, 1, 0)


def test_no_more_than_the_most_nice():
    """In a process that is nice already."""
    code = "import os; os.nice(15); from bridge.runtime.threads import yield_to_others as y; y(10); print(os.nice(0))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"19"
