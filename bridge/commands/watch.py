"""`pgbridge status --watch`: looks again and again, on a terminal in place, else block after block."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from bridge.commands.state import ServerPositions, opened
from bridge.commands.status import collect
from bridge.runtime.errors import BridgeError
from bridge.runtime.threads import detached
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

# --- One look at the subscriptions for `pgbridge status --watch`, and how fast they move between two ------------------

_SERVERS_S = 3.0


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen.

    Attributes:
        time: When, in UTC.
        document: The document of `pgbridge status --json`; None if nothing could be seen.
        running: Whether a daemon runs.
        problem: Why nothing could be seen; empty if something was.
    """

    time: datetime
    document: dict[str, Any] | None
    running: bool = False
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the document of `--watch --json`."""
        time = self.time.isoformat(timespec="milliseconds")
        if self.document is None:
            return {"time": time, "error": self.problem}
        return {"time": time, "running": self.running, **self.document}


@dataclass(frozen=True, slots=True)
class Seen:
    """A document, and whether a daemon runs."""

    document: dict[str, Any]
    running: bool


class Looker:
    """Looks again and again, whether the daemon runs or not.

    Args:
        config_file: The configuration file. It is read at each look, for it may have changed.
    """

    def __init__(self, config_file: Path) -> None:
        self._config_file = config_file
        self._servers = ServerPositions(_SERVERS_S)

    def look(self) -> Seen:
        """Look once; it takes a few seconds at most.

        Raises:
            ConfigError: The configuration cannot be used.
            StateError: The state directory cannot be used.
        """
        with opened(self._config_file) as state:
            document = collect(state.config, state.catalog, running=state.running, servers=self._servers)
            return Seen(document, state.running)


class Rates:
    """How fast each subscription applies WAL: by how much its `remote_lsn` has moved since the look before."""

    def __init__(self) -> None:
        self._before: dict[str, Lsn] = {}
        self._before_s = 0.0

    def add(self, document: dict[str, Any], now_s: float) -> None:
        """Give each subscription of a document its `applied_bytes_per_s`; None if that is not known.

        Args:
            document: The document, which is changed.
            now_s: When it was made, by a clock that does not go back.
        """
        passed_s, before = now_s - self._before_s, self._before
        self._before_s, self._before = now_s, {}
        for entry in document["subscriptions"]:
            name, rate = entry["name"], None
            if entry["remote_lsn"] is not None:
                lsn = self._before[name] = Lsn.parse(entry["remote_lsn"])
                if passed_s > 0 and name in before and lsn >= before[name]:
                    rate = round((lsn - before[name]) / passed_s)
            entry["applied_bytes_per_s"] = rate


# --- `pgbridge status --watch` ----------------------------------------------------------------------------------------

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
