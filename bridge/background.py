"""Threads that yield: while a machine's cores are busy, who decodes waits for who receives.

A walsender waits as soon as its end of the socket is full, within a millisecond. Where the receiving threads share
cores with the decoding one, they have to get theirs at once, and the interpreter's lock as well. Decoding itself loses
nothing: there is nothing to decode before it is received.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from bridge.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

RECEIVING: Final = 5
FORMING: Final = 10
"""Nice values. They are added to the process's own; PostgreSQL's processes beside it keep theirs."""

_SWITCH_S: Final = 0.0002
"""How long a thread may hold the interpreter's lock that another one waits for: 5 ms by default, in which a walsender
would fill its socket many times."""

_MOST_NICE: Final = 19


def share_interpreter() -> None:
    """Have threads hand over the interpreter's lock soon. It holds for the whole process."""
    sys.setswitchinterval(_SWITCH_S)


def yield_to_others(nice: int) -> None:
    """Lower the calling thread's priority; threads that it starts later inherit it.

    Only on Linux, where a thread has a priority of its own. An ordinary user cannot raise it again.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, min(_MOST_NICE, os.getpriority(os.PRIO_PROCESS, thread) + nice))


class Background(Closing):
    """A thread of low priority that others wait for.

    Args:
        name: The thread's name.
        nice: How much lower its priority is.
    """

    def __init__(self, name: str, nice: int = FORMING) -> None:
        self._pool = ThreadPoolExecutor(1, name, initializer=yield_to_others, initargs=(nice,))

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function there, and return what it returns, or raise what it raises."""
        return self._pool.submit(work, *args, **kwargs).result()

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()
