"""The batch that is applied next: it grows while another one is applied, and while the stream is far behind."""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.batch.growing_batch import GrowingBatch
from pgbridge.bridge.receive.stream.queue import BatchLimits, TransactionQueue
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.stream.transactions import Item, divide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pgbridge.bridge.batch.batch import Batch
    from pgbridge.bridge.batch.batcher import Batcher
    from pgbridge.bridge.runtime.errors import ApplyError
    from pgbridge.bridge.track.progress import Progress

_RUN_ROWS: Final = 50_000
_FILTERED_RUN_ROWS: Final = 200_000
_RUN_BYTES: Final = 32 << 20
"""Transactions are decoded in batches of this size, which then join: a larger one would hold Python's lock for long,
and what comes while another one is applied would wait longer to be decoded. Where rows are filtered here, a run takes a
query of Spark's: 98 ms for 50 000 rows, and 155 for four times as many."""

_FAR_BEHIND_S: Final = 2.0
"""A batch whose last transaction is this old waits for more: the stream is still catching up."""

_PAUSE_S: Final = 0.2
"""A stream that is far behind, and sends nothing for this time, is waited for no longer."""

_GROW_S: Final = 30.0
"""A batch grows no longer than this while no other one is applied, so that the origin of a stream that is far behind
advances."""

_BURST_AGES: Final = 5.0
"""Several transactions of an idle stream within `max_age_s` are a burst: more are waited for, up to so many times as
long, until half of that time passes without any. A second batch would take longer than that."""

_FIRST_PAUSE_AGES: Final = 2.0
"""The first batch of a stream waits until so many times `max_age_s` pass without any: Spark may be young."""

_MOST_FAILURES: Final = 10

_FULL_SHARE: Final = 0.75
"""A batch at its limit is complete if folding its changes leaves this share of the limit: folding again and again for
little would take more time than it saves."""


@dataclass(slots=True)
class Growth:
    """What a subscription's streams know of batches that could not be applied as a whole.

    Attributes:
        apart_until_lsn: Batches do not join before the origin has reached this LSN; None if they do.
        failures: The number of joined batches that could not be applied.
        fence_lsn: No batch goes over this LSN (see `bridge.catalog.held`).
        leads_to_lsn: The LSN to skip that tables were brought back for: transactions before it come again.
    """

    apart_until_lsn: Lsn | None = None
    failures: int = 0
    fence_lsn: Lsn = INVALID
    leads_to_lsn: Lsn | None = None

    def apart(self, until_lsn: Lsn) -> None:
        """Batches are not to join before the origin has reached an LSN."""
        self.apart_until_lsn = max(self.apart_until_lsn or until_lsn, until_lsn)

    def fence(self, lsn: Lsn) -> None:
        """No batch is to go over an LSN; until it is reached, batches do not join."""
        self.fence_lsn = max(self.fence_lsn, lsn)
        self.apart(lsn)

    def failed(self, start_lsn: Lsn, end_lsn: Lsn) -> None:
        """A joined batch could not be applied: its transactions are to be received again, and applied apart.

        Each time, batches are kept apart for twice as long: what cannot be joined here may well come again.
        """
        self.apart(Lsn(end_lsn + (end_lsn - start_lsn) * (2**self.failures - 1)))
        self.failures = min(self.failures + 1, _MOST_FAILURES)

    def may_join(self, durable_lsn: Lsn) -> bool:
        """Whether batches may join."""
        if self.apart_until_lsn is not None and durable_lsn >= self.apart_until_lsn:
            self.apart_until_lsn = None
        return self.apart_until_lsn is None


@dataclass(slots=True)
class NextBatch:
    """Takes transactions from the queue, and forms the batch that is applied next.

    Attributes:
        limits: Limits of a batch: of the rows that it keeps, not of the changes that were received.
        most: How many transactions a batch may have, which then does not join others; None for any number.
    """

    queue: TransactionQueue
    progress: Progress
    batcher: Batcher
    limits: BatchLimits
    growth: Growth
    most: Callable[[], int | None]
    _start_lsn: Lsn = field(init=False)
    _growing: GrowingBatch | None = field(init=False, default=None)
    _grows_since_s: float = field(init=False, default=0.0)
    _is_first: bool = field(init=False, default=True)  # no batch was popped yet
    _was_idle: bool = field(init=False, default=False)  # the stream, before the growing batch
    _closed: bool = field(init=False, default=False)  # the growing batch is to be applied as it is
    _after: Batch | None = field(init=False, default=None)  # could not join the growing batch
    # taken from the queue, to be formed again, in commit order
    _again: deque[Sequence[Item]] = field(init=False, default_factory=deque)

    def __post_init__(self) -> None:
        self._start_lsn = self.progress.durable_lsn

    @property
    def there(self) -> bool:
        """Whether there are any transactions in it."""
        return self._growing is not None

    @property
    def behind_s(self) -> float:
        """How long before the server's last message the batch's last transaction was committed."""
        commit_time_us = self._growing.last.commit_time_us if self._growing is not None else 0
        return self.progress.behind_s(commit_time_us) if commit_time_us else 0.0

    @property
    def in_pieces(self) -> bool:
        """Whether transactions wait to be formed again."""
        return bool(self._again)

    def starts_at(self, lsn: Lsn) -> None:
        """Everything before `lsn` is durable."""
        self._start_lsn = lsn

    def complete(self, *, waited_for: bool) -> bool:
        """Whether it is there, and no more transactions are to join. `waited_for`: no other batch is under way."""
        growing = self._growing
        if growing is None:
            return False
        if self._closed or self._after is not None or not self._may_join():
            return True
        if self._fill(growing) >= 1.0:
            with self._apart_after_error():
                growing.compact()
            if self._fill(growing) >= _FULL_SHARE:
                return True
        return waited_for and time.monotonic() >= self._grows_since_s + _GROW_S

    def _fill(self, growing: GrowingBatch) -> float:
        return max(growing.rows / self.limits.max_rows, growing.memory_bytes / self.limits.max_bytes)

    def take(self, timeout_s: float, *, applied: Callable[[], bool] | None) -> Sequence[Item]:
        """Take the transactions that are formed next; empty if none came in time.

        Args:
            applied: Whether the batch under way has ended; None if there is none.

        Raises:
            BridgeError: The stream was lost, and all transactions before that are taken.
            ProtocolError: The same: the stream violates the protocol.
        """
        limits = self._run_limits
        if self._again:
            items: Sequence[Item] = self._again.popleft()
        elif applied is not None:
            items = self.queue.take(limits, timeout_s, full_only=True, until=applied)
            self._was_idle = False
        elif self._growing is not None:
            rows = self.queue.rows
            pause_s = _PAUSE_S if self._is_far_behind() else self._burst_pause_s()
            items = self.queue.take(limits, pause_s, full_only=True)
            if not items and not (pause_s and self.queue.rows > rows):
                self._closed = True
                items = self.queue.take(replace(limits, max_age_s=0.0), 0.0)
        else:
            items = self.queue.take(limits, timeout_s)
            self._was_idle = True
        if items and (most := self.most()) is not None:
            items, others = divide(items, most)
            if others:
                self._again.appendleft(others)
        return self._up_to_fence(items)

    def _up_to_fence(self, items: Sequence[Item]) -> Sequence[Item]:
        """The transactions up to the fence; the others are formed next."""
        fence_lsn = self.growth.fence_lsn
        number = sum(item.ending_by(fence_lsn) for item in items) if self._start_lsn < fence_lsn else 0
        if not number:
            return items
        here, others = divide(items, number)
        if others:
            self._again.appendleft(others)
        return here

    def form(self, items: Sequence[Item]) -> None:
        """Form transactions that were taken; they join the batch, or become the one after it."""
        self._put(self.batcher.attempt(items, self._start_lsn))

    def refuse(self, items: Sequence[Item], error: ApplyError) -> None:
        """Take transactions that are not formed, as if they could not be decoded: they can be skipped."""
        self._put(self.batcher.refuse(items, self._start_lsn, error))

    def _put(self, batch: Batch) -> None:
        self._start_lsn = batch.end_lsn
        if self._growing is None:
            self._grow(batch)
            return
        with self._apart_after_error():
            if not (self._may_join() and self._growing.join(batch)):
                self._after = batch

    def pop(self) -> Batch:
        """Take the batch; the one after it, if there is one, grows from now on."""
        assert self._growing is not None  # noqa: S101 - the caller has looked
        with self._apart_after_error():
            batch = self._growing.formed()
        self._growing, self._closed, self._is_first = None, False, False
        if self._after is not None:
            self._grow(self._after)
            self._after = None
        return batch

    def divide(self, batch: Batch, first: int) -> bool:
        """Form a batch that was popped again, as two.

        Args:
            first: How many transactions the first of the two has.

        Returns:
            False if that cannot be: its transactions, or those of a batch after it, are not there any more.
        """
        if not batch.divisible or not self.form_again_after(batch):
            return False
        self.growth.apart(batch.end_lsn)  # what joins its parts could not be divided again
        self.batcher.rewind(batch)
        self._start_lsn = batch.start_lsn
        self._again.extendleft(items for items in reversed(divide(batch.items, first)) if items)
        return True

    def form_again_after(self, batch: Batch) -> bool:
        """Form the batches again that were formed after one that was popped; returns False if that cannot be."""
        if self._growing is not None and not self._growing.whole:
            return False
        following = [self._growing.formed()] if self._growing is not None else []
        following += [self._after] if self._after is not None else []
        self._growing, self._after, self._closed = None, None, False
        self._start_lsn = batch.end_lsn
        self._again.extendleft(formed.items for formed in reversed(following) if formed.items)
        if following:
            self.batcher.rewind(following[0])
        return True

    def _grow(self, batch: Batch) -> None:
        self._growing, self._grows_since_s = GrowingBatch(batch), time.monotonic()

    def _is_far_behind(self) -> bool:
        assert self._growing is not None  # noqa: S101 - the caller has looked
        if self.progress.passed_lsn > self._growing.last.end_lsn and not self.queue.rows:
            return False  # after the last transaction came a keepalive: the server has no more
        newest_us = self.queue.last_commit_time_us  # forming may have taken as long as the batch seems to be behind
        return (self.progress.behind_s(newest_us) if newest_us else self.behind_s) >= _FAR_BEHIND_S

    def _burst_pause_s(self) -> float:
        """How long to wait for more of a burst; 0 if there is none, or it has lasted long enough."""
        assert self._growing is not None  # noqa: S101 - the caller has looked
        max_age_s = self.limits.max_age_s
        if not self._was_idle or time.monotonic() >= self._grows_since_s + (_BURST_AGES - 1.0) * max_age_s:
            return 0.0
        if self._is_first:
            return _FIRST_PAUSE_AGES * max_age_s
        return max_age_s / 2 if self._growing.last.transactions > 1 else 0.0

    @contextmanager
    def _apart_after_error(self) -> Iterator[None]:
        """After an unexpected error, what was formed so far is applied apart the next time."""
        try:
            yield
        except Exception:
            self.growth.apart(self._start_lsn)
            raise

    def _may_join(self) -> bool:
        return not self._again and self.growth.may_join(self.progress.durable_lsn) and self.most() is None

    @property
    def _run_limits(self) -> BatchLimits:
        run_rows = _FILTERED_RUN_ROWS if self.batcher.may_filter else _RUN_ROWS
        return BatchLimits(
            min(run_rows, self.limits.max_rows), min(_RUN_BYTES, self.limits.max_bytes), self.limits.max_age_s
        )
