"""The apply worker's loop (`LogicalRepApplyLoop` in worker.c): one batch is applied while the next one grows.

Transactions are formed to batches of some ten thousand rows. While one is applied, and while the stream is far behind,
later ones join the next one, so a batch grows with the lag.

A batch that cannot be applied is divided until the transaction that fails is alone. One that others have joined cannot
be divided: its transactions are received again, and are applied in batches that do not join. While there is a skip LSN,
batches are single transactions, so that it is compared with each (`maybe_start_skipping_changes`); a transaction that
is applied instead clears it (`clear_subscription_skip_lsn`).
"""

from __future__ import annotations

import time
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from pgbridge.bridge.apply.next_batch import NextBatch
from pgbridge.bridge.apply.suspects import SUSPECTS, Work
from pgbridge.bridge.batch.batch import Batch
from pgbridge.bridge.runtime import errors, faults, threads
from pgbridge.bridge.runtime.observer import BatchReport
from pgbridge.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from pgbridge.bridge.apply.context import Context, Control, Sink, Stream
    from pgbridge.bridge.batch.batcher import Batcher
    from pgbridge.bridge.receive.stream.queue import BatchLimits
    from pgbridge.protocol.lsn import Lsn
    from pgbridge.protocol.stream.transactions import Item

_POLL_S = 0.25
"""Longest wait for transactions, or for the batch under way, before the loop checks everything else."""

_IDLE_POLLS, _IDLE_POLL_S = 40, 1.0
"""The same after so many waits without a transaction, which ends a wait: idle subscriptions may be hundreds."""

_REPORT_INTERVAL_S = 1.0

_MANY_ROWS = 10_000
"""So many are formed in a thread of low priority: decoding them takes longer than to hand them to it, many times."""


class _UnderWay(NamedTuple):
    """What the other thread does: it applies or skips a batch; None for maintenance."""

    batch: Batch | None
    future: Future[None]


class _ReceiveAgain(Exception):
    """A batch that others had joined has to be applied in parts."""


class ApplyWorker:
    """Takes transactions from a stream, forms batches of them within the limits (see `NextBatch`) and applies these."""

    def __init__(
        self,
        context: Context,
        stream: Stream,
        batcher: Batcher,
        applier: Sink,
        control: Control,
        *,
        limits: BatchLimits,
        commit_interval_s: float = 0.0,
    ) -> None:
        self._name, self._origin_name = context.name, context.subscription.origin_name
        self._catalog, self._log, self._heartbeat = context.catalog, context.log, context.heartbeat
        self._receiver, self._queue, self._progress = stream.receiver, stream.queue, stream.progress
        self._batcher = batcher
        self._applier = applier
        self._control = control
        self._maintenance, self._observer = stream.maintenance, stream.observer
        self._certify, self._record = stream.certify, stream.record or (lambda: None)
        self._formed_s = 0.0
        self._next = NextBatch(
            stream.queue, stream.progress, batcher, limits, stream.growth, most=self._most_transactions
        )
        self._commit_interval_s = commit_interval_s
        self._begins_s = 0.0  # when the next batch may begin, if it is not full
        self._report_due_s = 0.0
        self._under_way: _UnderWay | None = None
        self._holds_memory = False
        self._idle_polls = 0  # in a row

    def run(self) -> bool:
        """Apply batches until the control stops the loop; waits for the batch under way before it returns.

        Returns:
            Whether the stream has to begin again at the origin's LSN: a batch that others had joined could not be
            applied. Nothing of it is in the targets.

        Raises:
            ApplyError: A transaction could not be applied; the context names it. Those before it are applied, and
                nothing of it is in the targets, unless the catalog has an intent, which the next start settles.
            OutcomeUnknown: Spark is gone; the batch's intent stands.
            BridgeError: The stream was lost.
            ProtocolError: The stream violates the protocol.
        """
        try:
            self._loop()
        except _ReceiveAgain:
            return True
        finally:
            if self._under_way is not None:
                wait([self._under_way.future])
        return False

    def _loop(self) -> None:
        while True:
            self._reap()
            may_begin = self._waited_for()
            complete = self._next.complete(waited_for=may_begin is None)
            if self._under_way is None:
                if not self._should_continue():
                    return
                if complete:
                    if not self._maintain(self._next.behind_s):
                        self._begin()
                    continue
            elif complete or not self._should_continue():
                wait([self._under_way.future], timeout=_POLL_S)
                continue
            try:
                items = self._next.take(self._poll_s, applied=may_begin)
            except (errors.BridgeError, ProtocolError):
                with suppress(_ReceiveAgain):  # the next stream has it again
                    self._finish_received()
                raise
            self._idle_polls = 0 if items or self._under_way is not None or self._next.there else self._idle_polls + 1
            if items:
                self._form(items)
            elif self._idle_polls:
                self._idle()
                self._maintain(None)

    @property
    def _poll_s(self) -> float:
        return _POLL_S if self._idle_polls < _IDLE_POLLS else _IDLE_POLL_S

    def _waited_for(self) -> Callable[[], bool] | None:
        """What tells that the next batch may begin: another one is applied, or it is too soon; None if it may."""
        if self._under_way is not None:
            return self._under_way.future.done
        return self._may_begin if self._next.there and not self._may_begin() else None

    def _may_begin(self) -> bool:
        return self._queue.failed or time.monotonic() >= self._begins_s

    def _finish_received(self) -> None:
        """Apply what was formed before the stream was lost."""
        while self._under_way is not None or self._next.there or self._next.in_pieces:
            if self._under_way is not None:
                wait([self._under_way.future])
                self._reap()
            elif not self._control.should_continue(self._progress):
                break  # the next stream has it again
            elif self._next.there:
                self._begin()
            else:
                self._form(self._next.take(0.0, applied=None))
        self._pass_quiet()  # the next stream starts there, perhaps beyond what ended this one

    def _form(self, items: Sequence[Item]) -> None:
        """Form transactions; many of them yield to the receiving threads."""
        began_s = time.monotonic()
        here = Batch.of(items, self._progress.durable_lsn)
        try:
            with self._in_spark("form", here):  # large ones are staged there
                if here.rows < _MANY_ROWS:
                    self._next.form(items)
                else:
                    threads.yielding(partial(self._next.form, items), f"form {self._name}")
        except errors.ApplyError as error:
            if not isinstance(error.__cause__, errors.EndsSpark):
                raise
            self._next.refuse(items, error)
        self._formed_s += time.monotonic() - began_s

    @contextmanager
    def _in_spark(self, step: Literal["form", "apply"], batch: Batch) -> Iterator[None]:
        """Within, Spark works for these transactions: they may have to wait, and must not end it again and again."""
        work = Work(self._name, step, None, batch.start_lsn, batch.end_lsn, batch.transactions)
        try:
            with SUSPECTS.under_way(work, describe=lambda: _size_text(batch), beat=self._heartbeat.beat):
                yield
        except errors.EndsSpark as error:
            by_id = {rel.relid: rel.qualified_name for rel in self._catalog.rels(self._name)}
            names = list(dict.fromkeys(changes.target.qualified_name for changes in batch.tables))
            relation = by_id.get(batch.largest_row[1]) or ", ".join(names) or None
            context = errors.ApplyContext(self._origin_name, batch.finish_lsn, batch.xid, relation)
            raise errors.ApplyError(error.message, context, hint=error.hint) from error

    def _most_transactions(self) -> int | None:
        """How many transactions a batch has: one, if one may have to be skipped, or could not be applied before."""
        if self._catalog.skip_lsn(self._name) is not None:
            return 1
        error = self._catalog.last_error(self._name)
        if error is not None and error.finish_lsn is not None:
            return 1
        return SUSPECTS.most_transactions(self._name, self._progress.durable_lsn)

    def _begin(self) -> None:
        """Start to apply or to skip the next batch; divide it first if that concerns only some of its transactions."""
        batch, skip_lsn = self._next.pop(), self._catalog.skip_lsn(self._name)
        if batch.transactions > 1 and (skip_lsn is not None or batch.error is not None):
            self._divide(batch, 1 if skip_lsn is not None else _transactions_before_error(batch))
            return
        if skip_lsn is not None and skip_lsn == batch.finish_lsn and batch.committed:
            # a transaction is skipped as a whole: tables that have it already must not
            if self._applier.bring_back():
                self._next.growth.leads_to_lsn = skip_lsn
                self._receive_again(batch)
            if not self._next.form_again_after(batch):
                self._receive_again(batch)
            self._batcher.forget_plan(batch)
            self._submit(batch, partial(self._skip, batch, skip_lsn))
            return
        if batch.error is not None:
            raise batch.error
        if batch.unclear:
            self._receive_again(batch)
        formed_s, self._formed_s = self._formed_s, 0.0
        self._begins_s = time.monotonic() + self._commit_interval_s
        mismatched = skip_lsn if batch.tables and not self._leads_to(skip_lsn, batch) else None
        self._submit(batch, partial(self._apply, batch, mismatched, formed_s))

    def _leads_to(self, skip_lsn: Lsn | None, batch: Batch) -> bool:
        """Whether a batch comes again that preceded the transaction to skip, because tables were brought back."""
        if skip_lsn is None or batch.finish_lsn >= skip_lsn:
            return False
        if skip_lsn == self._next.growth.leads_to_lsn:
            return True
        error = self._catalog.last_error(self._name)
        return error is not None and error.finish_lsn == skip_lsn

    def _submit(self, batch: Batch | None, work: Callable[[], None]) -> None:
        self._under_way = _UnderWay(batch, threads.detached(work, f"batch {self._name}"))
        self._under_way.future.add_done_callback(lambda _: self._queue.wake())

    def _maintain(self, behind_s: float | None) -> bool:
        """Start to maintain a table, if one needs it more than the next batch is needed; return whether one does."""
        if self._maintenance is None or not self._maintenance.due(behind_s):
            return False
        self._submit(None, partial(self._maintenance.run_one, behind_s))
        return True

    def _reap(self) -> None:
        """Take the result of the batch under way, if it has ended; divide the batch if it failed."""
        if self._under_way is not None and not self._under_way.future.done():
            return
        self._heartbeat.beat()
        if self._under_way is None:
            return
        (batch, future), self._under_way = self._under_way, None
        self._holds_memory = True
        try:
            future.result()
        except errors.OutcomeUnknown:
            raise
        except errors.ApplyError as error:
            if batch is None or batch.transactions <= 1 or self._catalog.batch(self._name) is not None:
                raise
            self._log.warning("a batch failed: dividing it", error=str(error), transactions=batch.transactions)
            self._divide(batch, batch.transactions // 2)

    def _divide(self, batch: Batch, first: int) -> None:
        """Have a batch formed again as two. It was formed only, or its applying failed and was undone.

        If it, or one that was formed after it, cannot be divided, its transactions are received again.
        """
        if not self._next.divide(batch, first):
            self._receive_again(batch)

    def _receive_again(self, batch: Batch) -> NoReturn:
        self._log.info("receiving transactions again, to apply them in parts", start_lsn=str(batch.start_lsn))
        self._next.growth.failed(batch.start_lsn, batch.end_lsn)
        raise _ReceiveAgain

    def _should_continue(self) -> bool:
        if not self._control.should_continue(self._progress):
            return False
        if time.monotonic() < self._report_due_s:
            return True
        self._report_due_s = time.monotonic() + _REPORT_INTERVAL_S
        return self._control.report(self._progress)

    def _apply(self, batch: Batch, skip_lsn: Lsn | None, formed_s: float) -> None:
        started_s = time.monotonic()
        self._certify()
        self._record()
        with self._in_spark("apply", batch):
            seconds = {"form": formed_s, **self._applier.apply(batch, clear_skip_lsn=skip_lsn)}
        if skip_lsn is not None:
            self._log.warning(
                f'skip-LSN of subscription "{self._name}" cleared',
                detail=f"Remote transaction's finish WAL location (LSN) {batch.finish_lsn} "
                f"did not match skip-LSN {skip_lsn}.",
            )
        if not self._applier.holds:
            self._durable(batch.end_lsn, batch, seconds["commit"])
        self._observer.applied(
            BatchReport(batch.end_lsn, batch.commit_time_us, batch.transactions, batch.rows, len(batch.tables), seconds)
        )
        self._log.info(
            "batch applied",
            end_lsn=str(batch.end_lsn),
            transactions=batch.transactions,
            rows=batch.rows,
            tables=len(batch.tables),
            seconds=round(time.monotonic() - started_s, 2),
        )

    def _skip(self, batch: Batch, skip_lsn: Lsn) -> None:
        self._certify()
        self._log.info(f"logical replication starts skipping transaction at LSN {skip_lsn}", xid=batch.xid)
        path = self._applier.skip(batch, skip_lsn, self._catalog.state_dir / "skipped")
        self._durable(batch.end_lsn, batch)
        self._log.warning(
            f"logical replication completed skipping transaction at LSN {skip_lsn}",
            xid=batch.xid,
            rows=batch.rows,
            kept_in=str(path),
        )

    def _durable(self, end_lsn: Lsn, batch: Batch | None = None, commit_s: float = float("inf")) -> None:
        self._record()
        self._progress.durable(end_lsn)
        self._observer.durable(end_lsn)
        faults.reach("before_confirm")
        self._receiver.confirm()
        self._control.origin_advanced()
        if self._maintenance is not None and batch is not None:
            self._maintenance.committed((changes.target.path for changes in batch.tables), commit_s)

    def _idle(self) -> None:
        """Advance the origin past WAL without changes for us, or request a keepalive."""
        if self._holds_memory:
            pa.default_memory_pool().release_unused()  # of the batches before the stream went quiet
            self._holds_memory = False
        if not self._pass_quiet() and self._control.wants_keepalive:
            self._receiver.request_keepalive()

    def _pass_quiet(self) -> bool:
        """Advance the origin past WAL that has no changes for us; returns whether it advanced."""
        if self._applier.holds:
            passed_lsn = self._progress.passed_lsn  # read first: all that was sent until then is handed over
            released_lsn = self._applier.release(passed_lsn, self._progress.handed_over_lsn)
            if released_lsn is None:
                return False  # the next batch begins where the last one that is held has ended
            self._durable(released_lsn)
        quiet_lsn = self._progress.quiet_lsn()
        if quiet_lsn is None:
            return False
        self._certify()
        if not self._catalog.advance_origin(self._name, quiet_lsn):
            return False
        self._record()
        self._progress.durable(quiet_lsn)
        self._observer.durable(quiet_lsn)
        self._receiver.confirm()
        self._next.starts_at(quiet_lsn)
        self._control.origin_advanced()
        return True


def _size_text(batch: Batch) -> str:
    size_bytes, _ = batch.largest_row
    return f"its largest row has {size_bytes >> 20:,} MB" if size_bytes else ""


def _transactions_before_error(batch: Batch) -> int:
    """How many transactions of a batch precede the one that could not be decoded; 1 if that one is the first."""
    assert batch.error is not None  # noqa: S101 - the caller has looked
    finish_lsn = batch.error.context.finish_lsn
    number = 0
    for item in batch.items:
        here = np.flatnonzero(item.commit_lsns == np.uint64(finish_lsn))
        if len(here):
            number += int(here[0])
            break
        number += len(item)
    return max(number, 1) if number < batch.transactions else batch.transactions // 2
