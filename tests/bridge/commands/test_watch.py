"""The loop of `status --watch`: by a clock that the test moves, and by signals that it sends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from bridge.commands.watch import Seen, Watch
from bridge.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from bridge.commands.watch import Look


class Stage:
    """The clock, the view, the signals, and what is looked at; each event is in `told`, with its time.

    Args:
        end_s: When SIGINT comes; the clock begins at 0.
    """

    def __init__(self, end_s: float) -> None:
        self.end_s = end_s
        self.now_s = 0.0
        self.takes_s = 0.0
        self.told: list[tuple[float, str]] = []
        self.looks: list[Look] = []
        self.at: dict[float, Callable[[], None]] = {}
        self.position = 0
        self.error: Exception | None = None
        self._resized = self._suspended = False
        self._speak = threading.Event()

    def look(self) -> Seen:
        """Look; it takes `takes_s`, in which the position moves on."""
        if self.takes_s:
            self._speak.wait(60)
            self._speak.clear()
        if self.error is not None:
            raise self.error
        self.position += 100
        entry = {"name": "s", "remote_lsn": f"0/{self.position:X}"}
        return Seen({"subscriptions": [entry]}, running=True)

    def run(self, interval_s: float = 2.0) -> list[tuple[float, str]]:
        """Watch until SIGINT; return what was told."""
        Watch(self.look, self, self, interval_s, clock=lambda: self.now_s, pause=self.pause).run()
        return self.told

    def pause(self, under_way: Future[Seen] | None, seconds: float) -> None:
        """Move the clock; an answer comes when it is due."""
        if under_way is not None and not self.takes_s:
            under_way.exception(60)
            return
        self.now_s = round(self.now_s + seconds, 3)
        if under_way is not None and self.now_s >= self.takes_s + self.begun_s:
            self._speak.set()
            under_way.exception(60)
        elif under_way is None:
            self.begun_s = self.now_s
        if self.now_s in self.at:
            self.at[self.now_s]()

    begun_s = 0.0

    # --- the view ---

    def _tell(self, what: str) -> None:
        self.told.append((self.now_s, what))

    def show(self, look: Look) -> None:
        self.looks.append(look)
        self._tell("error" if look.problem else "shown")

    def wait(self, seconds: int) -> None:
        self._tell(f"waiting {seconds}")

    def leave(self) -> None:
        self._tell("left")

    def enter(self) -> None:
        self._tell("entered")

    # --- the signals ---

    @property
    def ended(self) -> bool:
        return self.now_s >= self.end_s

    def resize(self) -> None:
        self._resized = True

    def stop(self) -> None:
        self._suspended = True

    def resized(self) -> bool:
        resized, self._resized = self._resized, False
        return resized

    def suspended(self) -> bool:
        suspended, self._suspended = self._suspended, False
        return suspended

    def suspend(self) -> None:
        self._tell("suspended")


def test_it_looks_until_ctrl_c():
    stage = Stage(7.0)
    assert stage.run() == [(0.0, "shown"), (2.0, "shown"), (4.0, "shown"), (6.0, "shown")]
    rates = [look.document["subscriptions"][0]["applied_bytes_per_s"] for look in stage.looks if look.document]
    assert rates == [None, 50, 50, 50]


def test_a_resize_is_drawn_at_once():
    stage = Stage(2.0)
    stage.at = {0.5: stage.resize}
    assert stage.run() == [(0.0, "shown"), (0.5, "waiting 0")]


def test_a_look_that_takes_long_is_waited_for_and_told():
    """There is never a second one beside it, and Ctrl-C does not wait for it."""
    stage = Stage(2.0 + 3.5 + 2.0 + 1.5)
    stage.takes_s = 0.0
    stage.at = {1.0: lambda: setattr(stage, "takes_s", 3.5)}
    assert stage.run() == [
        (0.0, "shown"),
        (3.0, "waiting 1"),
        (4.0, "waiting 2"),
        (5.0, "waiting 3"),
        (5.5, "shown"),
        (8.5, "waiting 1"),
    ]


def test_suspended_and_continued():
    """The terminal is as the shell knows it meanwhile."""
    stage = Stage(1.0)
    stage.at = {0.5: stage.stop}
    assert stage.run() == [(0.0, "shown"), (0.5, "left"), (0.5, "suspended"), (0.5, "entered")]


def test_a_first_look_that_fails_ends_it():
    stage = Stage(9.0)
    stage.error = ConfigError("no file")
    with pytest.raises(ConfigError, match="no file"):
        stage.run()


def test_a_later_one_is_shown_and_it_goes_on():
    stage = Stage(7.0)
    stage.at = {
        1.0: lambda: setattr(stage, "error", ConfigError("no\x1b file")),
        3.0: lambda: stage.__setattr__("error", None),
    }
    assert stage.run() == [(0.0, "shown"), (2.0, "error"), (4.0, "shown"), (6.0, "shown")]
    assert stage.looks[1].problem == "no\x1b file"


def test_a_bug_ends_it():
    stage = Stage(7.0)
    stage.at = {1.0: lambda: setattr(stage, "error", ZeroDivisionError())}
    with pytest.raises(ZeroDivisionError):
        stage.run()
