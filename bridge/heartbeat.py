"""When a subscription's worker has last made progress, or had nothing to do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Heartbeat:
    """The worker's threads call `beat`; the daemon reads `at_s`.

    It beats when a step has ended, and while the worker waits for what may rightly take for ever: the next transaction,
    the pause after an error, the server's transactions before a slot, another session's lock, a turn to copy. It does
    not beat while a commit is under way, or a copy that does not advance.

    Attributes:
        at_s: When it has last beaten, by the monotonic clock. A new one begins as if it had just beaten.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.at_s = now_s()

    def beat(self) -> None:
        """The worker makes progress, or waits."""
        self.at_s = self._now_s()

    def beating(self, stopping: Callable[[], bool]) -> Callable[[], bool]:
        """Return a function that does the same as `stopping`, which is called during a wait, and beats."""

        def beat_too() -> bool:
            self.beat()
            return stopping()

        return beat_too
