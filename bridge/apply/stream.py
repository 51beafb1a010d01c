"""One stream of a subscription: received from its slot, formed into batches, and applied to Delta tables.

Two workers run streams: the subscription's own (`bridge.service.subscriber`), and the one that brings added tables up
to it (`bridge.sync.tablesync_worker`). Each has its own slot, origin and batches; what is here is the same for both.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pgbridge.bridge.apply.applier import Applier
from pgbridge.bridge.apply.conflict_log import ConflictLog, conflict_rows
from pgbridge.bridge.apply.context import Control, Maintenance, Sink, Stream
from pgbridge.bridge.apply.handler import ChangeBatch, HandlerApplier
from pgbridge.bridge.apply.next_batch import Growth
from pgbridge.bridge.apply.stream_events import StreamEvents
from pgbridge.bridge.apply.undo import BatchUndo
from pgbridge.bridge.apply.worker import ApplyWorker
from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.catalog import catalog_rows, held, refresh
from pgbridge.bridge.config.tables import BEGINNING_ANEW
from pgbridge.bridge.effects.divided import Spill
from pgbridge.bridge.evolution.tracker import DefinitionTracker
from pgbridge.bridge.lake import location, source
from pgbridge.bridge.lake.changes.verdicts import SparkVerdicts
from pgbridge.bridge.lake.commit import messages
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.receive.stream import undecodable
from pgbridge.bridge.receive.stream.masking import stream_masks
from pgbridge.bridge.receive.stream.pgoutput_options import StreamingFallback, pgoutput_options
from pgbridge.bridge.receive.stream.queue import BatchLimits, TransactionQueue
from pgbridge.bridge.receive.stream.walreceiver import StreamOptions, WalReceiver
from pgbridge.bridge.recovery import manifest_table
from pgbridge.bridge.runtime import errors, faults, remedies
from pgbridge.bridge.runtime.observer import Observer
from pgbridge.bridge.track.progress import Progress
from pgbridge.bridge.track.spool import SpoolFolder, spool_folder
from pgbridge.protocol.errors import UnsupportedBinary
from pgbridge.protocol.lsn import INVALID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.apply.context import Context
    from pgbridge.bridge.apply.published import Published
    from pgbridge.bridge.batch.routes import Subscribed
    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.receive.slot import ReplicationConnection
    from pgbridge.protocol.codec.walsender import PgoutputOptions
    from pgbridge.protocol.stream.transactions import Item

_IN_PROGRESS_BYTES = 64 << 20
"""Memory for transactions in progress; more goes to spool files. It is logical_decoding_work_mem's default, from which
on the server streams or spills them too."""


@dataclass(frozen=True, slots=True)
class StreamHistory:
    """What a worker's streams leave to the next one.

    Attributes:
        fallback: Decides whether a stream does without `streaming`.
        growth: Decides whether a stream's batches join.
        maintenance: Knows the tables' debts; None if they are not maintained.
        observer: Is told what the stream receives and applies.
        handler: Gets the batches, in place of Delta tables.
        redefined: Called when the stream announces a table anew.
    """

    fallback: StreamingFallback = field(default_factory=StreamingFallback)
    growth: Growth = field(default_factory=Growth)
    maintenance: Maintenance | None = None
    observer: Observer = field(default_factory=Observer)
    handler: Handling | None = None
    redefined: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Handling:
    """A function that gets the batches.

    Attributes:
        function: The function.
        other: Makes a subscribed table of any published table (`HandledTables.other`).
    """

    function: Callable[[ChangeBatch], object]
    other: Callable[[str, str], Subscribed]


class Admission(Protocol):
    """Checks the server on the connection that streams (`bridge.sync.server_check`)."""

    def admit(self, replication: ReplicationConnection) -> None:
        """Check the server just before it streams; raises an error if it must not."""

    def admitted(self) -> None:
        """Check the slot when it streams; the same."""

    def certify(self) -> None:
        """Record on which timeline all is that was received, before it is recorded as durable."""

    def close(self) -> None:
        """The stream has ended."""


def stream(
    context: Context,
    published: Published,
    subscribed: Mapping[tuple[str, str], Subscribed],
    history: StreamHistory,
    *,
    check: Admission,
    control: Control,
    ignored: Callable[[str], None] = lambda _: None,
) -> bool:
    """Receive and apply a subscription's stream from its origin's LSN on, until `control` says stop.

    It also ends when the fallback does, so that the next stream has `streaming` again.

    Args:
        published: What the subscription gets.
        subscribed: The tables that follow the stream.
        history: What the worker's earlier streams have left to this one.
        check: Checks the server on the connection that streams.
        control: Says when to stop.
        ignored: Called with each published table that has changes and does not follow the stream.

    Returns:
        Whether the next stream is to begin at once: the fallback has ended, a joined batch has to be received again, or
        a table waits for its resync from now on.

    Raises:
        ApplyError: A transaction could not be applied.
        BridgeError: The stream was lost, or cannot begin.
    """
    name, fallback, catalog, log = context.name, history.fallback, context.catalog, context.log
    if published.subscription.streams and fallback.begins(published.publisher.flush_lsn):
        log.warning("streaming is off for now: with it the publisher ends the stream by the same error every time")
    once = _FallbackControl(control, fallback)
    try:
        again = _stream(context, published, subscribed, history, check=check, control=once, ignored=ignored)
    except errors.StreamError as error:
        streams = once.streaming and published.subscription.streams
        fallback.failed(error.message, catalog.remote_lsn(name) or INVALID, lasting=not error.retry)
        if streams and not error.retry and error.finish_lsn is None:
            error.retry = True  # the next stream is without `streaming`, and can tell the transaction
        elif not (error.retry and once.streaming):
            undecodable.name_culprit(error, published.subscription, once.options, catalog, log)
        raise
    except errors.ApplyError as error:
        if history.handler is None and _have_wait(error, published.subscription, catalog, log):
            return True
        binary = isinstance(error.__cause__, UnsupportedBinary)
        if not binary or catalog.batch(name) is not None or not fallback.needs_text(published.publisher.flush_lsn):
            if binary and catalog.prepared(name):
                error.hint = remedies.of_prepared_binary(catalog_rows.owner_of(name), error.context)
            raise
        log.info("receiving the same transactions again, as text", reason=error.message)
        return True
    if once.over:
        event = "streaming is on again: the WAL that the publisher could not stream is applied"
        log.info(event if not once.streaming else "the next stream is in binary form again")
    return once.over or again


def _have_wait(
    error: errors.ApplyError, subscription: Subscription, catalog: Catalog, log: FilteringBoundLogger
) -> bool:
    """Leave the changes of tables that need a resync out from the origin on; return whether these were the error.

    The next stream applies what the others have. With `disable_on_error` nothing is left out; the error has its remedy.
    """
    why, name = error.__cause__, subscription.name
    if not isinstance(why, errors.NeedsResync):
        return False
    if isinstance(why, errors.RangesDiffer):
        log.warning("a table is copied afresh", reason=why.message)
        for table in why.tables:
            refresh.copy_afresh(catalog, name, table)
        return True
    names, rels = [".".join(table) for table in why.tables], catalog.rels_by_name(name)
    keep = [
        f"to keep the {mode} so far, move {rels[table].path} away"
        for table in why.tables
        if (mode := subscription.mode_of(".".join(table))) in BEGINNING_ANEW
    ]
    tables = "the table" if len(names) == 1 else "the tables"
    why.hint = error.hint = "; then ".join(
        filter(None, (why.hint, *keep, f"copy {tables} afresh: {remedies.resync(catalog_rows.owner_of(name), *names)}"))
    )
    if subscription.disable_on_error:
        return False
    refresh.have_wait(catalog, name, why.tables, str(why), time.time())
    for relation in names:
        log.error(
            "a table waits for its resync, and its changes are left out; the others go on",
            relation=relation,
            reason=why.message,
            hint=why.hint,
        )
    faults.reach("table_waits")
    return True


def recover(context: Context, history: StreamHistory) -> None:
    """Settle the batch that an earlier process or attempt left, before the tables' positions are read.

    Afterwards the catalog has no batch. Its transactions are received again; tables that have them leave them out.
    """
    subscription, spark, catalog, log, *_ = context
    intent = catalog.batch(context.name)
    if history.handler is not None:
        held.give_up_batch(catalog, context.name)
        return
    messages_path = messages.path_in(subscription.warehouse) if subscription.messages == "table" else None
    undo = BatchUndo(context, messages_path, LocalTables(partial(location.place_of, spark)))
    # a transaction is skipped as a whole: none of its tables may have it
    if intent is not None and (intent.must_be_undone or catalog.skip_lsn(context.name) is not None):
        log.info("undoing a batch", start_lsn=str(intent.start_lsn), end_lsn=str(intent.end_lsn))
        undo.undo()
        history.growth.apart(intent.end_lsn)  # perhaps it was undone because it could not be applied
    elif intent is not None:
        log.info(
            "a batch was cut short: its tables keep what they have of it",
            start_lsn=str(intent.start_lsn),
            end_lsn=str(intent.end_lsn),
        )
    undo.keep()


class _FallbackControl:
    """The control of one stream, which also stops it when the fallback ends."""

    def __init__(self, control: Control, fallback: StreamingFallback) -> None:
        self._control = control
        self._fallback = fallback
        self.over = False
        self.streaming = not fallback.active
        self.options: PgoutputOptions | None = None
        self.origin_advanced = control.origin_advanced
        self.report = control.report

    @property
    def wants_keepalive(self) -> bool:
        return self._control.wants_keepalive

    def should_continue(self, progress: Progress) -> bool:
        """Whether to go on."""
        if self.over or not self._control.should_continue(progress):
            return False
        self.over = self._fallback.ends(progress.durable_lsn)
        return not self.over


def _stream(
    context: Context,
    published: Published,
    subscribed: Mapping[tuple[str, str], Subscribed],
    history: StreamHistory,
    *,
    check: Admission,
    control: _FallbackControl,
    ignored: Callable[[str], None],
) -> bool:
    """Wire receiver, batcher and applier, and run the apply worker; returns whether to stream again."""
    subscription, spark, catalog, log, *_ = context
    name = context.name
    events, handling = StreamEvents(log), history.handler
    remote_lsn, row = catalog.remote_lsn(name), catalog.subscription(name)
    record = None if handling is not None else partial(manifest_table.record, spark, catalog, subscription)
    if remote_lsn is None or row is None:
        raise errors.BridgeError("the subscription's state was removed while it ran")
    # of large transactions: once while they are received, and again while they are applied
    memory_bytes = min(_IN_PROGRESS_BYTES, subscription.batch.max_bytes)
    batcher = Batcher(
        subscription.origin_name,
        published.routes(subscribed, history.redefined, handling.other if handling is not None else None, catalog, log),
        published.types,
        unrepresentable=subscription.unrepresentable,
        ignored=ignored,
        spill=Spill(source.scratch_file, memory_bytes),
        verdicts=SparkVerdicts(spark),
        tracker=_tracker(published, catalog, events) if handling is None else None,
        primary_key=partial(published.publisher.primary_key, slot_name=subscription.slot_name),
    )
    queue = TransactionQueue(max_bytes=subscription.batch.max_bytes)
    progress = Progress(remote_lsn)
    asked = subscription if control.streaming else subscription.model_copy(update={"streaming": "off"})
    readable = published.binary_readable and not history.fallback.text
    control.options = options = pgoutput_options(asked, published.publisher.version, binary_readable=readable)
    receiver = WalReceiver(
        subscription.connection,
        StreamOptions(
            subscription.slot_name,
            remote_lsn,
            options,
            memory_bytes,
            subscription.workers.wal_receiver_timeout_s,
            stream_masks(subscription, catalog.rels(name), catalog.columns(name), published.tables.values()),
        ),
        queue,
        progress,
        SpoolFolder(spool_folder(catalog.state_dir, name), [row.file for row in catalog.prepared(name)]),
        application_name=name,
        after_receive=partial(_received, history.observer),
        notice=events.publisher_notice,
    )
    try:
        # a transaction that was prepared before messages = "off" may still have some
        deliver = events.logical_messages if subscription.messages != "off" else lambda _: None
        applier: Sink
        if handling is not None:
            history.growth.fence(held.fence_lsn(catalog, name))
            applier = HandlerApplier(
                context, handling.function, deliver=deliver, lost=events.toast_lost, fence=history.growth.fence
            )
        else:
            applier = Applier(
                context,
                deliver=deliver,
                lost=events.toast_lost,
                conflicts=ConflictLog(context, events, conflict_rows(context)),
                messages_path=_messages_path(context),
            )
        if handling is None:  # from here on the origin is confirmed
            manifest_table.record_all(spark, catalog, subscription)
        history.observer.stream_begins(remote_lsn, published.publisher.flush_lsn())
        receiver.start(check.admit, check.admitted)
        if handling is None:  # nobody can claim it unnoticed while its slot is in use
            manifest_table.check_owned(spark, catalog, subscription)
        log.info("streaming", start_lsn=str(remote_lsn), slot_name=subscription.slot_name)
        size = subscription.batch
        limits = BatchLimits(size.max_rows, size.max_bytes, size.max_age_s)
        parts = Stream(
            *(receiver, queue, progress, history.growth, history.maintenance, history.observer, check.certify), record
        )
        worker = ApplyWorker(
            context, parts, batcher, applier, control, limits=limits, commit_interval_s=size.commit_interval_s
        )
        try:
            return worker.run()
        except errors.StreamError as error:
            check.certify()
            if not undecodable.passes(error, subscription, options, catalog, log):
                raise
            return True
    finally:
        history.observer.stream_ended()
        receiver.stop()
        check.close()


def _received(observer: Observer, item: Item) -> None:
    faults.reach("after_receive")
    observer.received(int(item.commit_times_us[0]), item.end_lsn)


def _tracker(published: Published, catalog: Catalog, events: StreamEvents) -> DefinitionTracker | None:
    """Return what makes the Delta tables' columns follow the stream's; None with schema_evolution = "strict"."""
    subscription = published.subscription
    if subscription.schema_evolution == "strict":
        return None
    return DefinitionTracker(
        catalog_rows.owner_of(subscription.name),
        known=catalog.columns(subscription.name),
        attributes=partial(published.publisher.attributes, slot_name=subscription.slot_name),
        types=published.types,
        warn=events.schema_differs,
        parsed=subscription.target.parsed,
        unrepresentable=subscription.unrepresentable,
    )


def _messages_path(context: Context) -> str | None:
    """Return the Delta table for logical messages, created if it does not exist; None if none is wanted."""
    if context.subscription.messages != "table":
        return None
    path = messages.path_in(context.subscription.warehouse)
    context.check_free(path, 'messages = "table"', hint='set messages = "log"')
    messages.ensure(context.spark, path)
    return path
