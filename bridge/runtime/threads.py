"""Threads that yield: while a machine's cores are busy, who decodes waits for who receives; and work in other threads.

A walsender waits as soon as its end of the socket is full, within a millisecond. Where the receiving threads share
cores with the decoding one, they have to get theirs at once, and the interpreter's lock as well. Decoding itself loses
nothing: there is nothing to decode before it is received.

A value can be asked for in a thread of its own (`Latest`): an answer that does not come holds up nobody. What many ask
for at the same time is done by few calls (`Together`).
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

# --- The context manager of an object that has a `close` method -------------------------------------------------------


class Closing(ABC):
    """Closes the object at the end of a `with` block, as `contextlib.closing` does."""

    @abstractmethod
    def close(self) -> None:
        """Release what the object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- Threads that yield -----------------------------------------------------------------------------------------------

T = TypeVar("T")
R = TypeVar("R")

RECEIVING: Final = 5
FORMING: Final = 10
"""Nice values. They are added to the process's own; PostgreSQL's processes beside it keep theirs."""

_SWITCH_S: Final = 0.0002
"""How long a thread may hold the interpreter's lock that another one waits for: 5 ms by default, in which a walsender
would fill its socket many times. Each thread that waits wakes up as often to see whether it is over, so it is that much
for each stream: with 300, two cores would do nothing else."""
_MOST_SWITCH_S: Final = 0.05

_MOST_NICE: Final = 19


def share_interpreter(streams: int) -> None:
    """Have threads that receive so many streams hand over the interpreter's lock soon, in the whole process."""
    sys.setswitchinterval(min(_MOST_SWITCH_S, _SWITCH_S * max(1, streams)))


def yield_to_others(nice: int) -> None:
    """Lower the calling thread's priority; threads that it starts later inherit it.

    Only on Linux, where a thread has a priority of its own. An ordinary user cannot raise it again.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, min(_MOST_NICE, os.getpriority(os.PRIO_PROCESS, thread) + nice))


# --- How long a worker waits between two attempts ---------------------------------------------------------------------

_FIRST_PAUSE_S = 0.5


def backoff_s(failures: int, longest_s: float) -> float:
    """Return the pause after so many failures in a row: it doubles with each, up to `longest_s`."""
    return min(longest_s, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))


def jittered_s(pause_s: float) -> float:
    """Return a random pause, up to a quarter shorter or longer: so workers do not all try again at the same time."""
    return pause_s * random.uniform(0.75, 1.25)  # noqa: S311 - nothing secret


# --- A call in a thread of its own, which the end of the process does not wait for ------------------------------------


def detached(call: Callable[[], T], name: str) -> Future[T]:
    """Begin a call; the threads of `concurrent.futures` would hold up the end of the process.

    Args:
        call: What to call.
        name: The thread's name.

    Returns:
        What it will return, or raise: every error, also one that ends a process.
    """
    answer: Future[T] = Future()
    threading.Thread(target=_answer, args=(answer, call), name=name, daemon=True).start()
    return answer


def _answer(answer: Future[T], call: Callable[[], T]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised where the answer is taken
        answer.set_exception(error)
    finally:
        del answer, call  # the error has this frame: what was called would stay until cycles are collected


def yielding(work: Callable[[], T], name: str, nice: int = FORMING) -> T:
    """Call a function in a thread of low priority; returns what it returns, or raises what it raises.

    Args:
        nice: How much lower the thread's priority is.
    """

    def run() -> T:
        yield_to_others(nice)
        return work()

    return detached(run, name).result()


# --- The work of many, done by few calls ------------------------------------------------------------------------------


@dataclass(eq=False)
class _Asked(Generic[T, R]):
    """One caller's item. `answers` is empty until a call has done it."""

    item: T
    answers: list[R] = field(default_factory=list)


class Together(Generic[T, R]):
    """Does by one call what several threads ask for while another call is under way.

    For what costs as much for many as for one: a transaction that waits for the disk, a commit to a table.

    Args:
        work: Does what was asked for; gives an answer for each, in their order.
        delay_s: How long a call waits for others to ask, if the one before was for several. One alone never waits.
    """

    def __init__(self, work: Callable[[list[T]], list[R]], *, delay_s: float = 0.0) -> None:
        self._work, self._delay_s = work, delay_s
        self._waiting: list[_Asked[T, R]] = []
        self._lock = threading.Lock()  # of `_waiting`
        self._turn = threading.Lock()
        self._several, self._ended_s = False, -math.inf

    def do(self, item: T, *, after_s: float = 0.0) -> R:
        """Have it done; returns its answer.

        Args:
            after_s: Of an item that has time: how long after the last call the next one may begin for it. Meanwhile it
                goes with what others ask for.

        Raises:
            Exception: As from `work`. Others that waited are not affected: they try by themselves.
        """
        mine: _Asked[T, R] = _Asked(item)
        with self._lock:
            self._waiting.append(mine)
        time.sleep(max(0.0, self._ended_s + after_s - time.monotonic()))
        with self._turn:
            if not mine.answers:
                self._do_all(mine)
        return mine.answers[0]

    def _do_all(self, mine: _Asked[T, R]) -> None:
        if self._several:
            time.sleep(self._delay_s)
        with self._lock:
            group, self._waiting = self._waiting, []
        self._several = len(group) > 1
        try:
            answers = self._work([asked.item for asked in group])
        except BaseException:
            with self._lock:
                self._waiting = [asked for asked in group if asked is not mine] + self._waiting
            raise
        self._ended_s = time.monotonic()
        for asked, answer in zip(group, answers, strict=True):
            asked.answers.append(answer)


# --- One thread in which many do something now and then ---------------------------------------------------------------


_AFTER_ERROR_S: Final = 60.0


class Turns:
    """A thread of the process in which each of many has its turns, one at a time. It is there while somebody is.

    Args:
        name: The thread's name.
        rest: After a turn the thread rests so many times as long as that took, so that turns which are due at the same
            time do not take all cores.
    """

    def __init__(self, name: str, rest: float) -> None:
        self._name, self._rest = name, rest
        self._changed = threading.Condition()
        self._due_s: dict[Callable[[], float], float] = {}
        self._under_way: Callable[[], float] | None = None
        self._runs = False

    def begin(self, turn: Callable[[], float], first_s: float) -> None:
        """Call `turn` after `first_s`, and then again and again: it returns after how many seconds.

        If it raises, it is called after a minute. The thread must not be held up by what may last for ever.
        """
        with self._changed:
            self._due_s[turn] = time.monotonic() + first_s
            self._changed.notify_all()
            if not self._runs:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._runs = True

    def within(self, turn: Callable[[], float], seconds: float) -> None:
        """Have a turn that has begun, and not ended, come that soon."""
        with self._changed:
            if turn in self._due_s:
                self._due_s[turn] = min(self._due_s[turn], time.monotonic() + seconds)
                self._changed.notify_all()

    def end(self, turn: Callable[[], float]) -> None:
        """Call `turn` no more; wait for the end of a call that is under way."""
        with self._changed:
            self._due_s.pop(turn, None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._under_way != turn)

    def _run(self) -> None:
        rests_until_s = 0.0
        while (turn := self._next(rests_until_s)) is not None:
            began_s, after_s = time.monotonic(), _AFTER_ERROR_S
            with contextlib.suppress(Exception):  # the others have their turns still
                after_s = turn()
            ended_s = time.monotonic()
            rests_until_s = ended_s + self._rest * (ended_s - began_s)
            with self._changed:
                self._under_way = None
                self._changed.notify_all()
            self.within(turn, after_s)

    def _next(self, rests_until_s: float) -> Callable[[], float] | None:
        """Wait for the next turn; None if nobody is left."""
        with self._changed:
            while self._due_s:
                turn = min(self._due_s, key=self._due_s.__getitem__)
                wait_s = max(self._due_s[turn], rests_until_s) - time.monotonic()
                if wait_s <= 0:
                    self._due_s[turn], self._under_way = math.inf, turn
                    return turn
                self._changed.wait(min(wait_s, threading.TIMEOUT_MAX))
            self._runs = False
            return None


# --- When a subscription's worker has last made progress, or had nothing to do ----------------------------------------


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


_INTERVAL_S: Final = 10.0
_OLD_S: Final = 3 * _INTERVAL_S


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
