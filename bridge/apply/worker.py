"""The loop over batches: one is applied while the next one, if it is full already, is formed.

What cannot be applied is divided; what is to be skipped is looked for one transaction at a time, as PostgreSQL's
apply worker does (`maybe_start_skipping_changes`, `clear_subscription_skip_lsn` in worker.c).
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from bridge import faults
from bridge.errors import ApplyError, BridgeError, OutcomeUnknown
from protocol.errors import ProtocolError
from protocol.transactions import TransactionRun, divide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structlog.typing import FilteringBoundLogger

    from bridge.apply.applier import Applier
    from bridge.apply.batch.batch import Batch
    from bridge.apply.batch.batcher import Batcher
    from bridge.receive.queue import BatchLimits, TransactionQueue
    from bridge.receive.walreceiver import WalReceiver
    from bridge.track.catalog import Catalog
    from bridge.track.progress import Progress
    from protocol.lsn import Lsn
    from protocol.transactions import Item

_TURN_S = 0.25
"""How long the loop waits for transactions before it looks at everything else."""

_REPORT_INTERVAL_S = 1.0


class Control(Protocol):
    """Who runs the loop."""

    @property
    def in_a_hurry(self) -> bool:
        """The server shall be asked where it stands, rather than waited for."""

    def going_on(self, progress: Progress) -> bool:
        """Whether to go on; cheap, asked at each turn."""

    def report(self, progress: Progress) -> bool:
        """Take note of where the loop stands, about once a second; whether to go on."""

    def progressed(self) -> None:
        """Something became durable."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A running stream's parts: who fills the queue, and the positions both sides share."""

    receiver: WalReceiver
    queue: TransactionQueue
    progress: Progress


class ApplyWorker:
    """Takes transactions from a stream, forms batches, applies them.

    Args:
        subscription: The subscription's name.
        stream: Where transactions come from.
        former: Decodes them.
        applier: Makes batches durable.
        catalog: Where intents and the origin are.
        limits: When a batch is full.
        control: Who says when to stop.
        log: The subscription's logger.
    """

    def __init__(
        self,
        subscription: str,
        stream: Stream,
        former: Batcher,
        applier: Applier,
        catalog: Catalog,
        *,
        limits: BatchLimits,
        control: Control,
        log: FilteringBoundLogger,
    ) -> None:
        self._name = subscription
        self._receiver, self._queue, self._progress = stream.receiver, stream.queue, stream.progress
        self._former = former
        self._applier = applier
        self._catalog = catalog
        self._limits = limits
        self._control = control
        self._log = log
        self._formed_lsn = self._progress.durable_lsn
        self._report_due_s = 0.0
        self._under_way: tuple[Batch, Future[None]] | None = None
        self._formed: Batch | None = None
        # What was taken from the queue and has to be formed again, in order.
        self._divided: deque[Sequence[Item]] = deque()

    def run(self) -> None:
        """Apply until the control says stop; a batch under way is always waited for.

        A batch that cannot be applied is divided until the transaction is found that cannot: what comes before it
        is applied.

        Raises:
            ApplyError: A transaction could not be applied; nothing of it is in the targets, and its context names it.
            BridgeError: The stream was lost.
            ProtocolError: The stream is not what the protocol says.
        """
        if not self._recover():
            return
        with ThreadPoolExecutor(1, f"batch {self._name}") as pool:
            while True:
                self._reap()
                if self._under_way is None and not self._going_on():
                    return
                if self._under_way is None and self._formed is not None:
                    self._begin(self._formed, pool)
                if self._under_way is not None and (self._formed is not None or not self._going_on()):
                    wait([self._under_way[1]], timeout=_TURN_S)
                    continue
                try:
                    items = self._next()
                except (BridgeError, ProtocolError):
                    if self._under_way is not None:
                        wait([self._under_way[1]])
                        self._reap()
                    self._pass_quiet()  # the next stream begins there, perhaps beyond what ended this one
                    raise
                if items:
                    self._form(items)
                elif self._under_way is None:
                    self._idle()

    def _next(self) -> Sequence[Item]:
        """What the next batch is formed of; empty when nothing came in time."""
        if self._divided:
            items = self._divided.popleft()
        else:
            items = self._queue.take(self._limits, _TURN_S, full_only=self._under_way is not None)
        if items and self._one_at_a_time():
            items, others = divide(items, 1)
            if others:
                self._divided.appendleft(others)
        return items

    def _one_at_a_time(self) -> bool:
        """A transaction may have to be skipped, or the next one is the one that could not be applied before."""
        if self._catalog.skip_lsn(self._name) is not None:
            return True
        error = self._catalog.last_error(self._name)
        return error is not None and error.finish_lsn is not None

    def _form(self, items: Sequence[Item], start_lsn: Lsn | None = None, end_lsn: Lsn | None = None) -> None:
        self._formed = self._former.attempt(items, start_lsn or self._formed_lsn, end_lsn)
        self._formed_lsn = self._formed.end_lsn

    def _begin(self, batch: Batch, pool: ThreadPoolExecutor) -> None:
        """Start to apply a batch, or to skip it; or divide it, where that is not for all of it."""
        skip_lsn = self._catalog.skip_lsn(self._name)
        if batch.transactions > 1 and (skip_lsn is not None or batch.error is not None):
            self._divide(batch, 1 if skip_lsn is not None else _before(batch))
            return
        self._formed = None
        if skip_lsn is not None and skip_lsn == batch.finish_lsn and batch.committed:
            self._applier.undo(fence=True)  # of a life before this one
            self._former.pass_over(batch)
            self._under_way = batch, pool.submit(self._skip, batch, skip_lsn)
            return
        if batch.error is not None:
            raise batch.error
        if batch.alters:
            # begun in a life before this one, as another one: that has to come before all else of it
            self._applier.undo(fence=True)
        self._under_way = batch, pool.submit(self._apply, batch, skip_lsn if batch.tables else None)

    def _reap(self) -> None:
        """Look at the batch under way, if it has ended."""
        if self._under_way is None or not self._under_way[1].done():
            return
        (batch, future), self._under_way = self._under_way, None
        try:
            future.result()
        except OutcomeUnknown:
            raise
        except ApplyError as error:
            if batch.transactions <= 1 or self._catalog.batch(self._name) is not None:
                raise
            self._log.warning("a batch failed: dividing it", error=str(error), transactions=batch.transactions)
            self._divide(batch, batch.transactions // 2)

    def _divide(self, batch: Batch, first: int) -> None:
        """Have a batch that is formed, or was applied and undone, formed again as two.

        An intent that still stands is of a life before this one.
        """
        self._applier.undo(fence=True)
        following = [self._formed] if self._formed is not None and self._formed is not batch else []
        self._former.rewind(batch)
        self._formed, self._formed_lsn = None, batch.start_lsn
        again = [*divide(batch.items, first), *(formed.items for formed in following)]
        self._divided.extendleft(items for items in reversed(again) if items)

    def _going_on(self) -> bool:
        if not self._control.going_on(self._progress):
            return False
        if time.monotonic() < self._report_due_s:
            return True
        self._report_due_s = time.monotonic() + _REPORT_INTERVAL_S
        return self._control.report(self._progress)

    def _recover(self) -> bool:
        """A batch that was begun and not finished is formed again as it was; or undone, if that was begun.

        So is one that changes columns, or a table in parts: the publisher's catalog, by which that was planned, may
        have changed since; and one from before the machine was started anew: Delta leaves out what is in its log, be
        its data on disk or not.

        Returns:
            False when the control says stop before all of the batch has come: its intent stands, and any other batch
            would be applied on top of what it has committed.
        """
        intent = self._catalog.batch(self._name)
        if intent is None:
            return True
        boundaries = {"start_lsn": str(intent.start_lsn), "end_lsn": str(intent.end_lsn)}
        if intent.undoing or intent.alters or intent.rebooted:
            self._log.info("undoing a batch", **boundaries)
            self._applier.undo(fence=True)
            self._former.open_again()
            return True
        self._log.info("finishing a batch", **boundaries)
        while self._going_on():
            taken = self._queue.take_until(intent.end_lsn, lambda: self._progress.passed_lsn, _TURN_S)
            if taken is not None:
                self._form(taken, intent.start_lsn, intent.end_lsn)
                return True
            self._receiver.request_keepalive()
        return False

    def _apply(self, batch: Batch, skip_lsn: Lsn | None) -> None:
        started_s = time.monotonic()
        self._applier.apply(batch, clear_skip_lsn=skip_lsn)
        if skip_lsn is not None:
            self._log.warning(
                f'skip-LSN of subscription "{self._name}" cleared',
                detail=f"Remote transaction's finish WAL location (LSN) {batch.finish_lsn} "
                f"did not match skip-LSN {skip_lsn}.",
            )
        self._durable(batch)
        self._log.info(
            "batch applied",
            end_lsn=str(batch.end_lsn),
            transactions=batch.transactions,
            rows=batch.rows,
            tables=len(batch.tables),
            seconds=round(time.monotonic() - started_s, 2),
        )

    def _skip(self, batch: Batch, skip_lsn: Lsn) -> None:
        self._log.info(f"logical replication starts skipping transaction at LSN {skip_lsn}", xid=batch.xid)
        path = self._applier.skip(batch, skip_lsn, self._catalog.state_dir / "skipped")
        self._durable(batch)
        self._log.warning(
            f"logical replication completed skipping transaction at LSN {skip_lsn}",
            xid=batch.xid,
            rows=batch.rows,
            kept_in=str(path),
        )

    def _durable(self, batch: Batch) -> None:
        self._progress.durable(batch.end_lsn)
        faults.reach("before_confirm")
        self._control.progressed()

    def _idle(self) -> None:
        """Nothing to apply."""
        if not self._pass_quiet() and self._control.in_a_hurry:
            self._receiver.request_keepalive()

    def _pass_quiet(self) -> bool:
        """Move past WAL that holds nothing for us, once it is recorded; whether that was done."""
        quiet_lsn = self._progress.quiet_lsn()
        if quiet_lsn is None:
            return False
        if not self._catalog.advance_origin(self._name, quiet_lsn):
            return False
        self._progress.durable(quiet_lsn)
        self._formed_lsn = max(self._formed_lsn, quiet_lsn)
        self._control.progressed()
        return True


def _before(batch: Batch) -> int:
    """How many of a batch's transactions come before the one that could not be decoded; that one, where it is first."""
    assert batch.error is not None  # noqa: S101 - the caller has looked
    finish_lsn = batch.error.context.finish_lsn
    number = 0
    for item in batch.items:
        if isinstance(item, TransactionRun):
            here = int(np.searchsorted(item.commit_lsns, np.uint64(finish_lsn)))
            number += here
            if here < len(item):
                break
        elif item.commit_lsn == finish_lsn:
            break
        else:
            number += 1
    return max(number, 1) if number < batch.transactions else batch.transactions // 2
