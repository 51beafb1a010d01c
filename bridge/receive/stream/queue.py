"""Whole transactions on their way from the receiver to the apply worker, bounded in bytes."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbridge.protocol.lsn import Lsn
    from pgbridge.protocol.stream.transactions import Item

_ITEM_OVERHEAD_BYTES = 500
"""Memory of a transaction or a run beside its rows, so that a million empty ones count as well."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """A batch is full at the first limit it reaches; the transaction that reaches it is still in the batch."""

    max_rows: int
    max_bytes: int
    max_age_s: float


class TransactionQueue:
    """A queue between two threads: one puts transactions, the other takes batches.

    Args:
        max_bytes: How much memory its transactions may hold; a larger transaction still passes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._transactions: deque[tuple[Item, float]] = deque()
        self._memory_bytes = 0
        self._bytes = 0
        self._rows = 0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    @property
    def rows(self) -> int:
        """The number of row messages in it."""
        return self._rows

    @property
    def failed(self) -> bool:
        """Whether the receiver has ended (see `fail`)."""
        return self._failure is not None

    @property
    def last_commit_time_us(self) -> int:
        """When the last transaction in it was committed: microseconds since 2000-01-01 UTC; 0 if it is empty."""
        with self._changed:
            last = self._transactions[-1][0] if self._transactions else None
        return int(last.commit_times_us[-1]) if last is not None else 0

    def put(self, transaction: Item) -> None:
        """Hand over a transaction, or a run of them; never blocks (see `wait_for_room`)."""
        with self._changed:
            self._transactions.append((transaction, time.monotonic()))
            self._count(transaction, 1)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Record why the receiver ended: `take` raises `error` once everything before it is taken."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def wake(self) -> None:
        """Have a waiting `take` check its conditions again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until the queue is below its limit; False if it is not after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._memory_bytes < self._max_bytes, timeout_s)

    def take(
        self,
        limits: BatchLimits,
        timeout_s: float,
        *,
        full_only: bool = False,
        until: Callable[[], bool] = lambda: False,
    ) -> list[Item]:
        """The transactions of the next batch, in commit order; empty if none came before the timeout.

        Waits until a limit is reached: with lag, batches are as large as the limits allow; without, a batch holds
        the transactions that came within `max_age_s` of its first (with `full_only`, its age is no limit).

        Args:
            limits: Limits of the batch.
            timeout_s: How long to wait.
            full_only: Take nothing before a limit is reached.
            until: Ends the wait when it returns True after a `wake`.

        Raises:
            BaseException: The error of `fail`, once the queue is empty.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                now = time.monotonic()
                ready_at = self._transactions[0][1] + limits.max_age_s if self._transactions else deadline
                if self._transactions and (
                    self._full(limits) or (not full_only and (now >= ready_at or self._failure))
                ):
                    return self._pop(limits)
                if not self._transactions and self._failure is not None:
                    raise self._failure
                if now >= deadline or until():
                    return []
                self._changed.wait((deadline if full_only else min(ready_at, deadline)) - now)

    def take_until(
        self, end_lsn: Lsn, passed_lsn: Callable[[], Lsn], limits: BatchLimits, timeout_s: float
    ) -> tuple[list[Item], bool]:
        """The next transactions up to `end_lsn`, for a batch whose boundaries are already recorded.

        Args:
            end_lsn: The batch's end: any LSN, also one within a record. A transaction is before it as for the server,
                whose stream may begin there the next time.
            passed_lsn: Returns the LSN up to which everything has been put.
            limits: How many to take at once: they are taken when one of these is reached, or when the last has come.
            timeout_s: How long to wait for transactions that are missing.

        Returns:
            The transactions, and whether these are the last (the stream may not have some any more). None, and False,
            if more may come.

        Raises:
            BaseException: The error of `fail`, if transactions are missing.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._failure or passed_lsn() >= end_lsn or self._full(limits), timeout_s
            ):
                return [], False
            complete = passed_lsn() >= end_lsn
            if not complete and not self._full(limits) and self._failure is not None:
                raise self._failure
            taken = self._pop(limits, end_lsn)
            first = self._transactions[0][0] if self._transactions else None
            return taken, complete and not (first is not None and first.committing_before(end_lsn))

    def _full(self, limits: BatchLimits) -> bool:
        """Whether a batch is complete, or the queue takes no more before one is taken."""
        enough = self._rows >= limits.max_rows or self._bytes >= limits.max_bytes
        return enough or self._memory_bytes >= self._max_bytes

    def _pop(self, limits: BatchLimits, end_lsn: Lsn | None = None) -> list[Item]:
        """Remove transactions up to the first that reaches a limit, and none that a stream from `end_lsn` on has."""
        taken: list[Item] = []
        rows = size = 0
        while self._transactions and rows < limits.max_rows and size < limits.max_bytes:
            first = self._transactions[0][0]
            count = first.reaching(limits.max_rows - rows, limits.max_bytes - size)
            if end_lsn is not None:
                count = min(count, first.committing_before(end_lsn))
            if not count:
                break
            transaction = self._popleft(count)
            rows += transaction.n_rows
            size += transaction.received_bytes
            taken.append(transaction)
        self._changed.notify_all()
        return taken

    def _popleft(self, count: int) -> Item:
        """Remove the first `count` transactions of the first item."""
        item, since_s = self._transactions.popleft()
        self._count(item, -1)
        first, rest = item.split(count)
        if rest is not None:
            self._transactions.appendleft((rest, since_s))
            self._count(rest, 1)
        return first

    def _count(self, transaction: Item, times: int) -> None:
        self._memory_bytes += times * (transaction.memory_bytes + _ITEM_OVERHEAD_BYTES)
        self._bytes += times * (transaction.received_bytes + _ITEM_OVERHEAD_BYTES)
        self._rows += times * transaction.n_rows
