"""What a connection to the publisher has told of a subscription, and the stream that is applied by it.

Two workers stream: the subscription's own (`bridge.subscriber`), and for a time the one that copies tables that
come later (`bridge.sync.worker`). Each has a slot, an origin and batches of its own; how they decode, route and
apply is the same, and is here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from bridge import faults, remedies
from bridge.apply.applier import Applier
from bridge.apply.batch.batcher import Batcher
from bridge.apply.batch.routes import DefinedRoutes, Routes
from bridge.apply.delta import messages
from bridge.apply.delta.delta_table import read_target_schema
from bridge.apply.delta.entry_filters import EntryFilters
from bridge.apply.delta.stage import SparkStage
from bridge.apply.evolution.tracker import DefinitionTracker
from bridge.apply.worker import ApplyWorker, Stream
from bridge.errors import BridgeError, ConfigError, StreamError
from bridge.publication.definitions import load_optional
from bridge.receive.pgoutput_options import pgoutput_options
from bridge.receive.publications import apply_publications
from bridge.receive.publisher import not_there
from bridge.receive.queue import BatchLimits, TransactionQueue
from bridge.receive.walreceiver import StreamOptions, WalReceiver
from bridge.track import refresh
from bridge.track.progress import Progress
from bridge.track.spool import SpoolFolder
from protocol.lsn import INVALID
from protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from bridge.apply.batch.subscribed import Subscribed
    from bridge.apply.effects.conflicts import Conflicts
    from bridge.apply.worker import Control
    from bridge.config import Subscription
    from bridge.publication.publication import Publication
    from bridge.publication.published_table import PublishedTable
    from bridge.publication.reapply import Applied
    from bridge.publication.routing import Routing
    from bridge.receive.filter_server import FilterServer
    from bridge.receive.publisher import Publisher
    from bridge.receive.streaming_fallback import StreamingFallback
    from bridge.track.catalog import Catalog
    from protocol.lsn import Lsn
    from protocol.messages import LogicalMessage
    from protocol.transactions import Transaction
    from protocol.values.types import ColumnType, TypeInfo

_IN_PROGRESS_BYTES = 64 << 20
"""What transactions in progress may hold in memory before they go to spool files: logical_decoding_work_mem's default,
from which on the server streams (or spills) them too."""

_LOGGED_BYTES = 1000


@dataclass
class Published:
    """What a subscription gets from its publisher, as of one look at the server's catalog.

    Attributes:
        tables: What it gets, by (namespace, name): by its definitions, or by the server's publications.
        binary_readable: Values of all columns of the stream are read in binary form.
    """

    subscription: Subscription
    publisher: Publisher
    tables: Mapping[tuple[str, str], PublishedTable]
    binary_readable: bool
    _definitions: tuple[Publication, ...] | None
    _applied: Applied | None
    _types: dict[int, TypeInfo] = field(default_factory=dict)
    _filter_server: FilterServer | None = None

    @classmethod
    def read(
        cls,
        subscription: Subscription,
        publisher: Publisher,
        log: FilteringBoundLogger,
        filter_server: FilterServer | None = None,
    ) -> Published:
        """Look at the server's catalog.

        Args:
            subscription: Whose publications.
            publisher: Its server.
            log: The worker's logger.
            filter_server: Computes row filters that are not translated, where the subscription has that.

        Raises:
            PublisherError: A publication does not exist, before PostgreSQL 18, or the server cannot answer.
            PublicationError: The definitions cannot be re-applied rightly to the server's tables.
            ConfigError: A row filter cannot be computed as PostgreSQL does, or the definitions' file cannot be used.
        """
        definitions = load_optional(subscription.publication_definitions)
        if missing := publisher.missing(subscription.publications):
            log.warning(
                not_there(missing),
                hint="the stream has its changes from when it is created; "
                f"then run: {remedies.refresh(refresh.owner_of(subscription.name))}",
            )
        applied = None
        if definitions is not None:
            applied = apply_publications(publisher, subscription.publications, definitions)
            applied.check()
            for gap in applied.gaps:
                log.warning("the stream lacks something that the definitions publish", gap=gap.message)
            for refusal in applied.refusals:
                log.warning(refusal.warning, hint=refusal.hint)
        tables = applied.routing.tables() if applied else publisher.tables(subscription.publications)
        columns = [column for table in (applied.stream.tables() if applied else tables) for column in table.columns]
        types = publisher.types({column.type_oid for column in columns})
        textual = {column.name for column in columns if not resolve(column.type_oid, column.typmod, types).binary}
        if subscription.binary and textual:
            log.info(
                "values are transferred as text: binary form is not read for all types",
                columns=sorted(textual),
            )
        by_name = {(table.namespace, table.name): table for table in tables}
        published = cls(subscription, publisher, by_name, not textual, definitions, applied, types, filter_server)
        published.routes({}, log)  # before there is a slot: what a filter cannot be computed for is refused
        return published

    def types(self, wanted: Sequence[tuple[int, int]]) -> list[ColumnType]:
        """How values of these (type oid, typmod) are decoded; the server is asked for those it has made since."""
        if any(oid not in self._types for oid, _ in wanted):
            self._types.update(self.publisher.types({oid for oid, _ in wanted}))
        return [resolve(oid, typmod, self._types) for oid, typmod in wanted]

    def routes(self, subscribed: Mapping[tuple[str, str], Subscribed], log: FilteringBoundLogger) -> Routes:
        """Where changes go, when these tables follow the stream."""
        name, replaced = refresh.owner_of(self.subscription.name), partial(_replaced, log)
        if self._applied is None:

            def cut_identities() -> dict[tuple[str, str], frozenset[str]]:
                tables = self.publisher.tables(self.subscription.publications)
                return {(table.namespace, table.name): table.cut_identity for table in tables}

            return Routes(subscribed, cut_identities, subscription=name, replaced=replaced)

        def look() -> Routing:
            names = self.subscription.publications
            return apply_publications(self.publisher, names, self._definitions, missing_ok=True).routing

        server = self._filter_server if self.subscription.untranslatable_filters == "server" else None
        routing = self._applied.routing
        filters = EntryFilters(self.types, server, routing.relations.encoding)
        return DefinedRoutes(subscribed, routing, filters, look, subscription=name, replaced=replaced)


def stream(
    published: Published,
    subscribed: Mapping[tuple[str, str], Subscribed],
    spark: SparkSession,
    catalog: Catalog,
    *,
    control: Control,
    log: FilteringBoundLogger,
    ignored: Callable[[str], None],
    fallback: StreamingFallback,
) -> bool:
    """Receive a subscription's slot from its origin on, and apply what comes, until the control says stop.

    A stream that goes without `streaming` for a time (see `StreamingFallback`) ends when that is over.

    Args:
        published: Of the subscription.
        subscribed: The tables that follow the stream.
        spark: A session of the subscription's own.
        catalog: The process's catalog.
        control: Who says when to stop.
        log: The worker's logger.
        ignored: Called with a published table that does not follow the stream, when there are changes of it.
        fallback: What ended the streams before this one.

    Returns:
        Whether it ended so that another begins at once, with the tables looked at anew.

    Raises:
        ApplyError: A transaction could not be applied.
        BridgeError: The stream was lost, or cannot begin.
    """
    name = published.subscription.name
    if published.subscription.streaming != "off" and fallback.begins(published.publisher.flush_lsn):
        log.warning("streaming = off, for a time: with it the publisher breaks off the stream again and again")
    once = _Once(control, fallback)
    try:
        _stream(published, subscribed, spark, catalog, control=once, log=log, ignored=ignored)
    except StreamError as error:
        fallback.failed(error.message, catalog.remote_lsn(name) or INVALID)
        raise
    if once.over:
        log.info("streaming = on again: the WAL that the publisher could not stream is behind")
    return once.over


class _Once:
    """The control of one stream, which also ends when `streaming` is asked for again."""

    def __init__(self, control: Control, fallback: StreamingFallback) -> None:
        self._control = control
        self._fallback = fallback
        self.over = False
        self.streaming = not fallback.active
        self.progressed = control.progressed
        self.report = control.report

    @property
    def in_a_hurry(self) -> bool:
        return self._control.in_a_hurry

    def going_on(self, progress: Progress) -> bool:
        """Whether to go on."""
        if self.over or not self._control.going_on(progress):
            return False
        self.over = self._fallback.ends(progress.durable_lsn)
        return not self.over


def _stream(
    published: Published,
    subscribed: Mapping[tuple[str, str], Subscribed],
    spark: SparkSession,
    catalog: Catalog,
    *,
    control: _Once,
    log: FilteringBoundLogger,
    ignored: Callable[[str], None],
) -> None:
    """One connection's part of `stream`."""
    subscription = published.subscription
    name = subscription.name
    remote_lsn, row = catalog.remote_lsn(name), catalog.subscription(name)
    if remote_lsn is None or row is None:
        raise BridgeError("the subscription's state was removed while it ran")
    # what large transactions may hold in memory, on their way in and again on their way out
    memory_bytes = min(_IN_PROGRESS_BYTES, subscription.batch_max_bytes)
    former = Batcher(
        subscription.origin_name,
        published.routes(subscribed, log),
        published.types,
        unrepresentable=subscription.unrepresentable,
        ignored=ignored,
        stage=SparkStage(spark),
        memory_bytes=memory_bytes,
        schemas=_schemas(published, spark, catalog, log),
    )
    queue = TransactionQueue(max_bytes=2 * subscription.batch_max_bytes)
    progress = Progress(remote_lsn)
    asked = subscription if control.streaming else subscription.model_copy(update={"streaming": "off"})
    wanted = pgoutput_options(asked, published.publisher.version, binary_readable=published.binary_readable)
    receiver = WalReceiver(
        subscription.connection,
        StreamOptions(subscription.slot_name, remote_lsn, wanted, memory_bytes, subscription.wal_receiver_timeout_s),
        queue,
        progress,
        SpoolFolder(spool_folder(catalog, name), [row.file for row in catalog.prepared(name)]),
        application_name=name,
        after_receive=lambda: faults.reach("after_receive"),
        notice=partial(_notice, log, set()),
    )
    try:
        applier = Applier(
            spark,
            catalog,
            subscription=name,
            origin_name=subscription.origin_name,
            # with "off" there may be some of a transaction that was prepared before
            deliver=partial(_deliver, log) if subscription.messages != "off" else lambda _: None,
            lost=partial(_lost, log),
            conflict=subscription.conflict,
            unrepresentable=subscription.unrepresentable,
            conflicts=partial(_report_conflicts, log),
            messages_path=_messages_path(subscription, spark, catalog),
        )
        receiver.start()
        log.info("streaming", start_lsn=str(remote_lsn), slot_name=subscription.slot_name)
        limits = BatchLimits(subscription.batch_max_rows, subscription.batch_max_bytes, subscription.batch_max_age_s)
        ApplyWorker(
            name, Stream(receiver, queue, progress), former, applier, catalog, limits=limits, control=control, log=log
        ).run()
    finally:
        receiver.stop()


def spool_folder(catalog: Catalog, name: str) -> Path:
    """Where a subscription's spool files lie."""
    return catalog.state_dir / "spool" / name


def _schemas(
    published: Published, spark: SparkSession, catalog: Catalog, log: FilteringBoundLogger
) -> DefinitionTracker | None:
    """What has the targets' columns follow the stream's; None with schema_evolution = "strict"."""
    subscription = published.subscription
    if subscription.schema_evolution == "strict":
        return None

    def warn(relation: str, text: str, remedy: str) -> None:
        log.warning(text, relation=relation, hint=f"to copy the table afresh, run: {remedy}")

    return DefinitionTracker(
        refresh.owner_of(subscription.name),
        known=lambda: catalog.columns(subscription.name),
        attributes=published.publisher.attributes,
        types=published.types,
        schema_of=partial(read_target_schema, spark),
        warn=warn,
    )


def _messages_path(subscription: Subscription, spark: SparkSession, catalog: Catalog) -> str | None:
    """The table of logical messages, made if it is not there; None when none is wanted."""
    if subscription.messages != "table":
        return None
    path = messages.path_in(subscription.warehouse)
    if any(rel.path == path for rel in catalog.rels(subscription.name)):
        raise ConfigError(
            f'the published table "{messages.NAME}" has the place that messages = "table" writes to: {path}',
            hint='set messages = "log"',
        )
    messages.ensure(spark, path)
    return path


def _deliver(log: FilteringBoundLogger, delivered: Iterable[tuple[Transaction, LogicalMessage]]) -> None:
    """Log a batch's logical messages."""
    for transaction, message in delivered:
        content = message.content[:_LOGGED_BYTES].decode(errors="backslashreplace")
        log.info(
            "logical message",
            prefix=message.prefix,
            content=content if len(message.content) <= _LOGGED_BYTES else content + "…",
            content_bytes=len(message.content),
            lsn=str(message.lsn),
            transactional=message.transactional,
            xid=transaction.xid or None,
        )


def _notice(log: FilteringBoundLogger, seen: set[str], text: str) -> None:
    """Log what the server says beside the stream, once: its context has another LSN each time."""
    first = text.partition("\n")[0]
    if first not in seen:
        seen.add(first)
        log.warning("the publisher warns", notice=text)


def _replaced(log: FilteringBoundLogger, relation: str, remedy: str) -> None:
    """Log that a table was dropped and created again; a subscriber goes by names, as PostgreSQL's does."""
    log.warning(
        "a table is another one of the same name now: rows of the one before stay in the Delta table",
        relation=relation,
        hint=f"to copy the table afresh, run: {remedy}",
    )


def _lost(log: FilteringBoundLogger, relation: str, rows: int) -> None:
    """Log what a row filter made of values that the stream does not carry."""
    log.warning(
        "rows came to match a row filter by an UPDATE without their unchanged TOAST values: these are NULL",
        relation=relation,
        rows=rows,
    )


def _report_conflicts(log: FilteringBoundLogger, conflicts: Conflicts, finish_lsn: Lsn) -> None:
    """Log what a batch found in a target, or did not find there, with some of the keys."""
    for name, count in conflicts.counts.items():
        keys = [conflict.key for conflict in conflicts.examples.get(name, ())]
        text = f'conflict detected on relation "{conflicts.relation}": conflict={name}'
        log.warning(
            text,
            rows=count,
            keys=keys,
            finish_lsn=str(finish_lsn),
        )
