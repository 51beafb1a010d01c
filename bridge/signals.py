"""SIGTERM and SIGINT: the first signal asks the process to stop, a second one ends it at once."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

EXIT_AT_ONCE = 130


class StopSignals:
    """Records that the process is to stop. It is polled, because a signal handler must not take a lock."""

    def __init__(self) -> None:
        self._number: int | None = None

    def install(self) -> StopSignals:
        """Handle the signals from now on. Only the main thread may call it."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        return self

    @property
    def name(self) -> str | None:
        """The name of the first signal; None before it."""
        return None if self._number is None else signal.Signals(self._number).name

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._number is not None:
            os._exit(EXIT_AT_ONCE)  # work that is not recorded is done again at the next start
        self._number = number
