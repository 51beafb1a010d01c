"""The daemon's signals.

SIGTERM and SIGINT: the first one asks the process to stop, a second one ends it at once. SIGHUP has it read its
configuration file again; if its terminal was closed, it asks it to stop.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

EXIT_AT_ONCE = 130


class StopSignals:
    """Records that the process is to stop. It is polled, because a signal handler must not take a lock.

    Attributes:
        hangups: How often the configuration file was to be read again.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._in_terminal = False
        self.hangups = 0

    def install(self) -> StopSignals:
        """Handle the signals from now on. Only the main thread may call it."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        before = signal.signal(signal.SIGHUP, self._on_hangup)
        self._in_terminal = before != signal.SIG_IGN and _has_terminal()  # nohup has it ignored
        return self

    @property
    def name(self) -> str | None:
        """The name of the first signal; None before it."""
        return None if self._number is None else signal.Signals(self._number).name

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._number is not None:
            os._exit(EXIT_AT_ONCE)  # work that is not recorded is done again at the next start
        self._number = number

    def _on_hangup(self, number: int, _frame: FrameType | None) -> None:
        if self._in_terminal and not _has_terminal():  # it was closed: nobody would see the daemon go on
            self._number = self._number or number
        else:
            self.hangups += 1


def interrupt() -> None:
    """Have the first SIGINT, SIGTERM or SIGHUP raise a KeyboardInterrupt; those after it are ignored.

    A signal that the process was started to ignore stays ignored, as by nohup. Only the main thread may call it.
    """
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]

    def end(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)  # somebody may be in a hurry
        raise KeyboardInterrupt

    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
