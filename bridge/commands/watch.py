"""`pgbridge status --watch`: looks again and again, on a terminal in place, else block after block."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from bridge.commands.look import Look, Rates
from bridge.detached import detached
from bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from bridge.commands.look import Seen

DEFAULT_S = 2.0
LEAST_S = 0.5
MOST_S = 86_400.0

_TURN_S = 0.1
"""How long a signal or an answer waits at most."""

_LATE_S = 1.0
"""A look that takes longer is shown to be under way."""


class View(Protocol):
    """Where looks are shown."""

    def show(self, look: Look) -> None:
        """Show a look."""

    def wait(self, seconds: int) -> None:
        """Show for how long the next look has been under way; called when the number or the screen has changed."""

    def leave(self) -> None:
        """Give the terminal back, before the process is suspended."""

    def enter(self) -> None:
        """Take it again."""


class Signals(Protocol):
    """What has come from the terminal."""

    @property
    def ended(self) -> bool:
        """Whether the command is to end."""

    def resized(self) -> bool:
        """Whether the screen's size has changed since the last call."""

    def suspended(self) -> bool:
        """Whether the process is to be suspended; asked once for each time."""

    def suspend(self) -> None:
        """Suspend the process until somebody continues it."""


class Watch:
    """Looks, waits, and looks again, until a signal ends it.

    Args:
        look: Looks once; called in a thread of its own, one call after the other.
        view: Where it is shown.
        signals: The signals.
        interval_s: Between the end of a look and the next one.
        clock: A clock that does not go back, in seconds.
        pause: Waits for a look to end, for some seconds at most.
    """

    def __init__(
        self,
        look: Callable[[], Seen],
        view: View,
        signals: Signals,
        interval_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[Future[Seen] | None, float], None] | None = None,
    ) -> None:
        self._look = look
        self._view = view
        self._signals = signals
        self._interval_s = interval_s
        self._clock = clock
        self._pause = pause or _pause
        self._rates = Rates()
        self._seen_once = False

    def run(self) -> None:
        """Watch until a signal comes; a look under way is not waited for.

        Raises:
            BridgeError: The first look has failed. A later one's error is shown.
        """
        begun_s, told_s = self._clock(), 0
        under_way: Future[Seen] | None = detached(self._look, "look")
        while not self._signals.ended:
            now_s = self._clock()
            if under_way is not None and under_way.done():
                self._show(under_way, now_s)
                begun_s, told_s, under_way = now_s + self._interval_s, 0, None
            elif under_way is None and now_s >= begun_s:
                under_way = detached(self._look, "look")
            waited_s = int(now_s - begun_s) if under_way is not None and now_s - begun_s >= _LATE_S else 0
            if self._signals.resized() or waited_s != told_s:
                told_s = waited_s
                self._view.wait(waited_s)
            if self._signals.suspended():
                self._view.leave()
                self._signals.suspend()
                self._view.enter()
            self._pause(under_way, _TURN_S)

    def _show(self, answer: Future[Seen], now_s: float) -> None:
        moment = datetime.now(UTC)
        try:
            seen = answer.result()
        except BridgeError as error:
            if not self._seen_once:
                raise
            self._view.show(Look(moment, None, problem=str(error)))
            return
        self._seen_once = True
        self._rates.add(seen.document, now_s)
        self._view.show(Look(moment, seen.document, seen.running))


def _pause(under_way: Future[Seen] | None, seconds: float) -> None:
    if under_way is None:
        time.sleep(seconds)
        return
    try:
        under_way.exception(seconds)
    except TimeoutError:
        return
