"""The loop over batches: one is applied while the next one, if it is full already, is formed."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bridge import faults

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from bridge.apply.batch import Batch, BatchFormer
    from bridge.apply.worker import BatchApplier
    from bridge.receive.queue import BatchLimits, TransactionQueue
    from bridge.receive.walreceiver import WalReceiver
    from bridge.track.catalog import Catalog
    from bridge.track.progress import Progress

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


class ApplyLoop:
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
        former: BatchFormer,
        applier: BatchApplier,
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

    def run(self) -> None:
        """Apply until the control says stop; a batch under way is always waited for.

        Raises:
            BridgeError: The stream was lost, or a batch could not be formed or applied.
            ProtocolError: The stream is not what the protocol says.
        """
        self._finish_begun()
        with ThreadPoolExecutor(1, f"batch {self._name}") as pool:
            under_way: Future[None] | None = None
            formed: Batch | None = None
            while True:
                if under_way is not None and under_way.done():
                    under_way.result()
                    under_way = None
                if under_way is None and not self._going_on():
                    return
                if under_way is None and formed is not None:
                    under_way, formed = pool.submit(self._apply, formed), None
                if under_way is not None and (formed is not None or not self._going_on()):
                    wait([under_way], timeout=_TURN_S)
                    continue
                taken = self._queue.take(self._limits, _TURN_S, full_only=under_way is not None)
                if taken:
                    formed = self._former.form(taken, self._formed_lsn)
                    self._formed_lsn = formed.end_lsn
                elif under_way is None:
                    self._idle()

    def _going_on(self) -> bool:
        if not self._control.going_on(self._progress):
            return False
        if time.monotonic() < self._report_due_s:
            return True
        self._report_due_s = time.monotonic() + _REPORT_INTERVAL_S
        return self._control.report(self._progress)

    def _finish_begun(self) -> None:
        """A batch that was begun and not finished is formed again, with the boundaries it had."""
        intent = self._catalog.batch(self._name)
        if intent is None:
            return
        self._log.info("finishing a batch", start_lsn=str(intent.start_lsn), end_lsn=str(intent.end_lsn))
        while self._going_on():
            taken = self._queue.take_until(intent.end_lsn, lambda: self._progress.passed_lsn, _TURN_S)
            if taken is not None:
                batch = self._former.form(taken, intent.start_lsn, intent.end_lsn)
                self._formed_lsn = batch.end_lsn
                self._apply(batch)
                return
            self._receiver.ask_for_position()

    def _apply(self, batch: Batch) -> None:
        started_s = time.monotonic()
        self._applier.apply(batch)
        self._progress.durable(batch.end_lsn)
        faults.reach("before_confirm")
        self._control.progressed()
        self._log.info(
            "batch applied",
            end_lsn=str(batch.end_lsn),
            transactions=batch.transactions,
            rows=batch.rows,
            tables=len(batch.tables),
            seconds=round(time.monotonic() - started_s, 2),
        )

    def _idle(self) -> None:
        """Nothing to apply: move past WAL that holds nothing for us, once it is recorded."""
        quiet_lsn = self._progress.quiet_lsn()
        if quiet_lsn is not None:
            self._catalog.advance_origin(self._name, quiet_lsn)
            self._progress.durable(quiet_lsn)
            self._formed_lsn = max(self._formed_lsn, quiet_lsn)
            self._control.progressed()
        elif self._control.in_a_hurry:
            self._receiver.ask_for_position()
