"""Between the daemon and what supervises it: signals tell it what to do, and it tells systemd its state.

SIGTERM and SIGINT: the first one asks the process to stop, a second one ends it at once. SIGHUP has it read its
configuration file again; if its terminal was closed, it asks it to stop.

The protocol to systemd is that of sd_notify(3): one datagram with lines `VARIABLE=value`. Without systemd, which means
without NOTIFY_SOCKET, nothing is sent.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
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


@contextmanager
def interruptible() -> Iterator[None]:
    """Have the first SIGINT, SIGTERM or SIGHUP end the block with a KeyboardInterrupt; those after it are ignored.

    A signal that the process was started to ignore stays ignored, as by nohup. Only the main thread may enter it.

    Raises:
        KeyboardInterrupt: There was a signal, whatever was raised after it: Python's locks may answer an interrupt
            with a RuntimeError.
    """
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)  # somebody may be in a hurry
        ended = True
        raise KeyboardInterrupt

    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    except Exception:
        if ended:
            raise KeyboardInterrupt from None
        raise


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


_FEEDS: Final = 10
"""WATCHDOG=1 is sent at most so many times within the watchdog's time."""

_PATIENCE_S: Final = 1.0
"""How long to wait for room in systemd's queue, which has ten messages by default: none should be lost, but a systemd
that is stuck must not stop the daemon."""


def is_fed(fed_s: float, beats_s: Iterable[float]) -> bool:
    """Whether the watchdog is fed again: every worker has made progress, or has waited for work, since the last time.

    So the watchdog's time is how long a worker may be without progress.

    Args:
        fed_s: When it was last fed.
        beats_s: When each worker's heart has last beaten.
    """
    return all(beat_s > fed_s for beat_s in beats_s)


def status_line(states: Mapping[str, str]) -> str:
    """Return the line that `systemctl status` shows, from the subscriptions' states."""
    subscriptions = ", ".join(f"{name} {state}" for name, state in states.items())
    return f"{len(states)} subscription{'' if len(states) == 1 else 's'}: {subscriptions}"


class Service:
    """The daemon as a service of systemd. No method raises: a datagram that cannot be sent is dropped.

    Args:
        environment: The process's environment.
        pid: The process's id.
        now_s: The monotonic clock.
    """

    def __init__(self, environment: Mapping[str, str], pid: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._watchdog_s = _watchdog_s(environment, pid)
        self._now_s = now_s
        self._fed_s = now_s()
        self._was_ready = False
        self._status = ""

    @property
    def listens(self) -> bool:
        """Whether there is a systemd to tell."""
        return self._address is not None

    def ready(self) -> None:
        """The daemon runs, or has read its configuration file again."""
        self._send("READY=1")
        if not self._was_ready:  # systemd's watchdog begins now
            self._was_ready, self._fed_s = True, self._now_s()

    def reloading(self) -> None:
        """The daemon reads its configuration file again; `ready` is the end of that."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """The daemon has begun to stop."""
        self._send("STOPPING=1")

    def status(self, line: str) -> None:
        """Show a line in `systemctl status`."""
        if line != self._status:
            self._status = line
            self._send(f"STATUS={line}")

    def turn(self, beats_s: Iterable[float]) -> None:
        """The daemon's main loop has turned: feed the watchdog, if every worker has made progress (see `is_fed`)."""
        now_s = self._now_s()
        if (
            self._watchdog_s is not None
            and now_s - self._fed_s >= self._watchdog_s / _FEEDS
            and is_fed(self._fed_s, beats_s)
        ):
            self._fed_s = now_s
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.settimeout(_PATIENCE_S)
            notify.sendto("\n".join(lines).encode(), self._address)


def _address(text: str) -> str | None:
    """Return the socket's address: a path, or a name in the abstract namespace, which is written with @."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None


def _watchdog_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Return the watchdog's time; None if there is none, or it is another process's (sd_watchdog_enabled(3))."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(microseconds) / 1e6 or None
