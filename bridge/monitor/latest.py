"""A value that is asked for in a thread of its own: an answer that does not come holds up nobody."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from bridge.runtime.threads import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERVAL_S: Final = 10.0
_OLD_S: Final = 3 * _INTERVAL_S

T = TypeVar("T")


class Latest(Closing, Generic[T]):
    """Asks again and again, and keeps the last answer for half a minute.

    Args:
        ask: Returns the value, or None for none. It may hang: then there is no value until it returns.
        interval_s: How long to wait before it is asked again.
        now_s: A clock that does not go back.
    """

    def __init__(
        self,
        ask: Callable[[], T | None],
        *,
        interval_s: float = _INTERVAL_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._interval_s = interval_s
        self._now_s = now_s
        self._answer: tuple[float, T | None] | None = None
        self._stop = threading.Event()
        # a daemon thread, because one that hangs must not hold up the end of the process
        self._thread = threading.Thread(target=self._run, name="latest", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def value(self) -> T | None:
        """The last answer; None if there is none, or it is older than half a minute."""
        answer = self._answer
        return answer[1] if answer is not None and self._now_s() - answer[0] <= _OLD_S else None

    def look(self) -> None:
        """Ask once."""
        value: T | None = None
        with contextlib.suppress(Exception):  # what is asked may be ending; there is no value then
            value = self._ask()
        self._answer = self._now_s(), value

    def close(self) -> None:
        """Stop asking, without waiting for an answer."""
        self._stop.set()

    def _run(self) -> None:
        self.look()
        while not self._stop.wait(self._interval_s):
            self.look()
