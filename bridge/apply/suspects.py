"""Finds the work that ends Spark's JVM, so that one value or table does not take the others along.

All subscriptions share one JVM. When it dies, whatever was under way in it is suspected: copies of tables, batches, and
the forming of large transactions. After the next start each suspect is tried alone: the others wait for it, for some
minutes at most. A batch of several transactions that ends the JVM alone is tried again in smaller parts. What ends it
alone again and again is to blame: it is refused, with an error of its own subscription, until an operator asks for
another try. What comes through is not suspected any more.

It is kept in memory: after a restart of the daemon, with more memory perhaps, everything is tried anew.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from pgbridge.bridge.catalog.catalog_rows import owner_of
from pgbridge.bridge.runtime import errors, remedies
from pgbridge.bridge.spark.driver import OF_A_ROW, Driver
from pgbridge.bridge.spark.outcome import is_of_spark
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ENDS_ALONE: Final = 2
"""So many times a work may end the JVM alone: the kernel may have killed it once for another process's memory."""

_ENDS: Final = 8
"""A copy that is under way so many times when the JVM dies is to blame, too: it may take too long to be alone."""

_ALONE_S: Final = 120.0
_LONGEST_ALONE_S: Final = 1800.0
"""How long others wait for a suspect, or twice as long as it had run when the JVM died, up to the second."""

_COME_S: Final = 60.0
"""So long after the JVM's start others wait for suspects that have not come back, as of a server that is away."""

_JUST_S: Final = 60.0
"""A work that failed so short a time before the JVM's death was seen may have ended by it."""

_DIVIDED: Final = 16
_ANY: Final = 1 << 30
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """Something that Spark does.

    Attributes:
        name: The subscription, or its tablesync worker, as the catalog has it.
        step: The copy of a table; the forming of transactions; their commit as a batch.
        relation: The table that is copied.
        start_lsn: Where the transactions begin.
        end_lsn: Where the last one ends.
        transactions: How many there are.
    """

    name: str
    step: Literal["copy", "form", "apply"]
    relation: str | None = None
    start_lsn: Lsn = INVALID
    end_lsn: Lsn = INVALID
    transactions: int = 1

    def overlaps(self, other: Work) -> bool:
        """Whether it is the same copy, by whichever worker, or has some of the same transactions."""
        if self.step == "copy":  # the subscription leaves a table that it cannot copy to its tablesync worker
            return (owner_of(self.name), "copy", self.relation) == (owner_of(other.name), other.step, other.relation)
        same = (self.name, self.step) == (other.name, other.step)
        return same and self.start_lsn < other.end_lsn and other.start_lsn < self.end_lsn

    def is_behind(self, other: Work) -> bool:
        """Whether it cannot begin before another: a stream forms transactions, then applies them, one after another."""
        return self.name == other.name and "copy" not in {self.step, other.step}

    def __str__(self) -> str:
        if self.step == "copy":
            return f'the copy of table "{self.relation}" of subscription "{owner_of(self.name)}"'
        number = "the transaction" if self.transactions == 1 else f"{self.transactions:,} transactions"
        return f'{number} of subscription "{owner_of(self.name)}" from {self.start_lsn} to {self.end_lsn}'


@dataclass(slots=True, eq=False)
class _Suspect:
    work: Work
    ran_s: float
    ends: int = 0
    ends_alone: int = 0
    most: int = _ANY  # transactions of a part
    came: bool = False  # since the JVM's start

    @property
    def blamed(self) -> bool:
        return self.ends_alone >= _ENDS_ALONE or (self.work.step == "copy" and self.ends >= _ENDS)

    @property
    def alone_s(self) -> float:
        return min(max(_ALONE_S, 2 * self.ran_s), _LONGEST_ALONE_S)


@dataclass(slots=True, eq=False)
class _Running:
    work: Work
    suspect: _Suspect | None
    began_s: float
    alone: bool
    failed_s: float | None = None


class Suspects:
    """What is under way, and what of it is suspected. Its methods may be called by any thread.

    Args:
        now_s: The monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._driver: Driver | None = None
        self._changed = threading.Condition()
        self._running: list[_Running] = []
        self._failed: list[_Running] = []
        self._waiting: list[_Suspect] = []
        self._suspects: list[_Suspect] = []
        self._come_until_s = 0.0
        self._reason = ""
        self._stopping = False

    @contextmanager
    def under_way(
        self, work: Work, *, describe: Callable[[], str] = str, beat: Callable[[], object] = lambda: None
    ) -> Iterator[None]:
        """Do a work within; a suspect waits until nothing else is under way, and all others wait for it.

        Args:
            work: What is done.
            describe: Says, for an error, how large it is.
            beat: Called while it waits.

        Raises:
            EndsSpark: It has ended the JVM too often.
            ConnectionError: The JVM has died meanwhile.
        """
        running = self._enter(work, describe, beat)
        try:
            yield
        except BaseException as error:
            self._leave(running, failed=True, by_spark=is_of_spark(error))
            raise
        self._leave(running, failed=False)

    def _enter(self, work: Work, describe: Callable[[], str], beat: Callable[[], object]) -> _Running:
        with self._changed:
            suspect = self._suspect_of(work)
            if suspect is not None and suspect.blamed:
                raise self._refusal(suspect, describe())
            began_s = self._now_s()
            if suspect is not None:
                suspect.came = True
                self._waiting.append(suspect)
            try:
                while not self._may_begin(work, suspect, began_s):
                    self._changed.wait(_POLL_S)
                    beat()
            finally:
                if suspect is not None:
                    self._waiting.remove(suspect)
            if (reason := self._died()) is not None:  # it must not be suspected of that
                raise ConnectionError(f"Spark's JVM has died: {reason}")
            for other in self._running:
                other.alone = False
            running = _Running(work, suspect, self._now_s(), alone=not self._running)
            self._running.append(running)
            return running

    def _may_begin(self, work: Work, suspect: _Suspect | None, since_s: float) -> bool:
        now_s = self._now_s()
        if self._stopping or self._died() is not None:
            return True
        if suspect is not None:
            first = self._waiting[0] is suspect or now_s - since_s > _ALONE_S
            return first and (not self._running or now_s - since_s > _ALONE_S)
        tried = any(
            running.suspect is not None and running.alone and now_s - running.began_s <= running.suspect.alone_s
            for running in self._running
        )
        to_come = now_s < self._come_until_s and not all(
            awaited.came or awaited.blamed or awaited.work.is_behind(work) for awaited in self._suspects
        )
        return not (tried or self._waiting or to_come)

    def _leave(self, running: _Running, *, failed: bool, by_spark: bool = False) -> None:
        with self._changed:
            self._running.remove(running)
            now_s = self._now_s()
            self._failed = [earlier for earlier in self._failed if now_s - (earlier.failed_s or 0.0) <= _JUST_S]
            suspect = running.suspect
            if failed:
                running.failed_s = now_s
                if by_spark or self._died() is not None:  # an error of the server or of a value ends no JVM
                    self._failed.append(running)
            elif suspect in self._suspects and suspect is not None:
                if suspect.work.step != "copy" and running.work.end_lsn < suspect.work.end_lsn:
                    suspect.work = replace(suspect.work, start_lsn=running.work.end_lsn)
                else:
                    self._suspects.remove(suspect)
            self._changed.notify_all()

    def _suspect_of(self, work: Work) -> _Suspect | None:
        return next((suspect for suspect in self._suspects if suspect.work.overlaps(work)), None)

    def _refusal(self, suspect: _Suspect, size: str) -> errors.EndsSpark:
        work, owner = suspect.work, owner_of(suspect.work.name)
        ends = f"{suspect.ends_alone} times alone" if suspect.ends_alone >= _ENDS_ALONE else f"{suspect.ends} times"
        again = remedies.resync(owner, str(work.relation)) if work.step == "copy" else remedies.enable(owner)
        before = "" if work.step == "copy" else f"{remedies.disable(owner)}, then "
        return errors.EndsSpark(
            f"{work} has ended Spark's JVM {ends} ({self._reason}), and is not tried any more; {size}".rstrip("; "),
            hint=f'set a higher "spark.driver.memory" in [spark.conf] (a row takes up to {OF_A_ROW} times its '
            "size), and start the daemon again; "
            f"to try it once more as it is: {before}{again}",
        )

    def most_transactions(self, name: str, lsn: Lsn) -> int | None:
        """How many transactions after an LSN a subscription's batch may have; None if none of them is suspected."""
        if not self._suspects:  # asked for each batch
            return None
        with self._changed:
            most = [
                suspect.most for suspect in self._suspects if suspect.work.name == name and lsn < suspect.work.end_lsn
            ]
        return min(most, default=None)

    def jvm_died(self, reason: str) -> list[str]:
        """The JVM has died, and no work is under way any more: return what is suspected of it, as text."""
        with self._changed:
            now_s = self._now_s()
            there = [*self._running, *(ended for ended in self._failed if now_s - (ended.failed_s or 0.0) <= _JUST_S)]
            self._reason, self._failed = reason, []
            for running in there:
                suspect = self._suspect_of(running.work)
                if suspect is None:
                    suspect = _Suspect(running.work, 0.0)
                    self._suspects.append(suspect)
                suspect.ends += 1
                suspect.ran_s = max(suspect.ran_s, (running.failed_s or now_s) - running.began_s)
                if running.suspect is None or not running.alone:
                    continue
                suspect.work = running.work
                if running.work.transactions > 1:
                    suspect.most = max(1, running.work.transactions // _DIVIDED)
                else:
                    suspect.ends_alone += 1
            return [str(running.work) for running in there]

    def _died(self) -> str | None:
        return None if self._driver is None else self._driver.lost()

    def jvm_started(self, driver: Driver) -> None:
        """Another JVM runs, a driver's: suspects come first."""
        with self._changed:
            self._driver = driver
            self._come_until_s = self._now_s() + _COME_S
            for suspect in self._suspects:
                suspect.came = False

    def forget(self, subscription: str | None = None) -> None:
        """An operator wants another try: nothing of a subscription is suspected any more, or of all."""
        with self._changed:
            self._suspects = [
                suspect
                for suspect in self._suspects
                if subscription is not None and owner_of(suspect.work.name) != subscription
            ]
            self._changed.notify_all()

    def stop_waiting(self) -> None:
        """The process is to stop: nothing waits any more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()


SUSPECTS: Final = Suspects()
"""Those of this process, as there is one JVM."""
