"""One subscription's life: make or find the slot, copy the tables, stream, apply; and again after an error."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_never

from bridge import faults, log
from bridge.apply import delta, messages
from bridge.apply.batch import BatchFormer
from bridge.apply.loop import ApplyLoop, Stream
from bridge.apply.routes import DefinedRoutes, Routes
from bridge.apply.schemas import Schemas
from bridge.apply.stage import SparkStage
from bridge.apply.worker import BatchApplier
from bridge.errors import ApplyError, BridgeError, ConfigError, PublisherError
from bridge.filter.reapply import apply_publications, definitions_of
from bridge.receive.options import pgoutput_options
from bridge.receive.publisher import Publisher
from bridge.receive.queue import BatchLimits, TransactionQueue
from bridge.receive.walreceiver import StreamOptions, WalReceiver
from bridge.sync.start import Start
from bridge.sync.tablesync import TableSync
from bridge.track.progress import Progress
from bridge.track.spool import SpoolFolder
from protocol.types import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from bridge.apply.conflicts import Conflicts
    from bridge.config import Subscription
    from bridge.filter.publication import Publication
    from bridge.filter.reapply import Applied
    from bridge.filter.routing import Routing
    from bridge.receive.publisher import PublishedTable
    from bridge.track.catalog import Catalog
    from protocol.lsn import Lsn
    from protocol.messages import LogicalMessage
    from protocol.transactions import Transaction
    from protocol.types import ColumnType

_IN_PROGRESS_BYTES = 64 << 20
"""What transactions in progress may hold in memory before they go to spool files: logical_decoding_work_mem's default,
from which on the server streams (or spills) them too."""

_LOGGED_BYTES = 1000
_FIRST_PAUSE_S = 0.5
_LOOK_INTERVAL_S = 1.0
_GIVE_UP_AFTER, _GIVE_UP_APPLYING_AFTER = 8, 3
"""Failures in a row without any progress, after which `run --until-caught-up` reports the subscription as failed: a
server may need a minute to notice that a killed daemon is gone; what Delta refuses thrice it refuses again."""


class SubscriptionWorker:
    """A thread that keeps one subscription going.

    Args:
        subscription: Its configuration.
        spark: A session of its own.
        catalog: The process's catalog.
        until_caught_up: End once everything the publisher had flushed at the start is durable.

    Attributes:
        error: Why the worker ended, if it failed; only `until_caught_up` and errors of configuration end it.
    """

    def __init__(
        self,
        subscription: Subscription,
        spark: SparkSession,
        catalog: Catalog,
        *,
        until_caught_up: bool = False,
    ) -> None:
        self.subscription = subscription
        self.error: Exception | None = None
        self._spark = spark
        self._catalog = catalog
        self._until_caught_up = until_caught_up
        self._target_lsn: Lsn | None = None
        self._stop = threading.Event()
        self._log = log.get(subscription.name)
        self._failures = 0
        self._copying = False
        self.thread = threading.Thread(target=self._run, name=f"subscription {subscription.name}", daemon=True)

    @property
    def disabled(self) -> bool:
        """The subscription is not to run, by DISABLE or by disable_on_error."""
        return not self._enabled()

    def stop(self) -> None:
        """End after the batch under way."""
        self._stop.set()

    @property
    def _name(self) -> str:
        return self.subscription.name

    def _run(self) -> None:
        try:
            self._retrying()(self._live)
        except Exception as error:  # noqa: BLE001 - kept for the daemon, which reports it
            self.error = error
        finally:
            self._catalog.set_state(self._name, "stopped" if self._enabled() else "disabled")

    def _retrying(self) -> Retrying:
        return Retrying(
            retry=retry_if_exception(self._failed),
            wait=self._pause_s,
            stop=stop_never,
            sleep=self._sleep,
            reraise=True,
        )

    def _sleep(self, seconds: float) -> None:
        """A pause that `stop` and DISABLE end."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0 and self._enabled():
            if self._stop.wait(min(left_s, _LOOK_INTERVAL_S)):
                return

    def _pause_s(self, state: RetryCallState) -> float:
        """Growing pauses, from the start again once something was applied; long ones where only a hand helps."""
        error = state.outcome.exception() if state.outcome else None
        if not getattr(error, "retry", True):
            return self.subscription.retry_max_s
        pause_s = min(self.subscription.retry_max_s, _FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 16))
        return pause_s * random.uniform(0.75, 1.25)  # noqa: S311 - so that subscriptions do not knock in step

    def _failed(self, error: BaseException) -> bool:
        """Record an error; whether to try again."""
        if not isinstance(error, Exception):
            return False  # the end of the process, not of an attempt
        self._failures += 1
        context = error.context if isinstance(error, ApplyError) else None
        counter = "sync" if self._copying else "apply" if isinstance(error, ApplyError) else None
        self._catalog.record_error(
            self._name,
            str(error) or type(error).__name__,
            counter=counter,
            finish_lsn=context.finish_lsn if context else None,
            relation=context.relation if context else None,
        )
        unexpected = not isinstance(error, BridgeError)
        self._log.error("subscription failed", error=str(error), failures=self._failures, exc_info=unexpected)
        if self._stop.is_set() or isinstance(error, ConfigError):
            return False
        if self.subscription.disable_on_error and not isinstance(error, PublisherError):
            self._catalog.set_enabled(self._name, enabled=False)
            self._log.warning("subscription disabled because of an error (disable_on_error)")
            return False
        limit = _GIVE_UP_APPLYING_AFTER if isinstance(error, ApplyError) else _GIVE_UP_AFTER
        if self._until_caught_up and (self._failures >= limit or not getattr(error, "retry", True)):
            return False
        self._catalog.set_state(self._name, "error")
        return True

    def _live(self) -> None:
        """From connecting to the end: returns when stopped, disabled or caught up."""
        if self._stop.is_set() or not self._enabled():
            return
        self._catalog.set_state(self._name, "starting")
        self._copying = False
        with Publisher(self.subscription.connection, application_name=self._name) as publisher:
            if self._until_caught_up and self._target_lsn is None:
                self._target_lsn = publisher.flush_lsn()
            definitions = definitions_of(self.subscription)
            applied = self._applied(publisher, definitions) if definitions is not None else None
            tables = applied.routing.tables() if applied else publisher.tables(self.subscription.publications)
            published = {(t.namespace, t.name): t for t in tables}
            resolver = self._resolver(publisher, applied.stream.tables() if applied else tables)
            if applied is not None:
                # before there is a slot: what a filter cannot be computed for is refused
                DefinedRoutes({}, applied.routing, resolver, lambda: applied.routing)
            sync = TableSync(self._spark, self.subscription, self._catalog, self._log)
            self._copying = True
            self._catalog.set_state(self._name, "copying")
            Start(self.subscription, self._catalog, publisher, sync, published, self._log).run()
            self._copying = False
            subscribed = sync.follow(published, publisher)
            routes = Routes(subscribed)
            if applied is not None:

                def refresh() -> Routing:
                    return apply_publications(self.subscription, publisher, definitions, missing_ok=True).routing

                routes = DefinedRoutes(subscribed, applied.routing, resolver, refresh)
            former = BatchFormer(
                self.subscription.origin_name,
                routes,
                resolver,
                unrepresentable=self.subscription.unrepresentable,
                ignored=self._ignoring(),
                stage=SparkStage(self._spark),
                memory_bytes=self._memory_bytes,
                schemas=self._schemas(publisher, resolver),
            )
            self._stream(former, publisher)

    def _schemas(
        self, publisher: Publisher, resolver: Callable[[Sequence[tuple[int, int]]], list[ColumnType]]
    ) -> Schemas | None:
        """What has the targets' columns follow the stream's; None with schema_evolution = "strict"."""
        if self.subscription.schema_evolution == "strict":
            return None

        def warn(relation: str, text: str, remedy: str) -> None:
            self._log.warning(text, relation=relation, hint=f"to copy the table afresh, run: {remedy}")

        return Schemas(
            self._name,
            known=lambda: self._catalog.columns(self._name),
            attributes=publisher.attributes,
            types=resolver,
            schema_of=partial(delta.schema_of, self._spark),
            warn=warn,
        )

    def _enabled(self) -> bool:
        row = self._catalog.subscription(self._name)
        return row is not None and row.enabled

    # --- the stream -----------------------------------------------------------------------------------------------

    def _stream(self, former: BatchFormer, publisher: Publisher) -> None:
        remote_lsn = self._catalog.remote_lsn(self._name)
        row = self._catalog.subscription(self._name)
        if remote_lsn is None or row is None:
            raise BridgeError("the subscription's state was removed while it ran")
        limits = BatchLimits(
            self.subscription.batch_max_rows,
            self.subscription.batch_max_bytes,
            self.subscription.batch_max_age_s,
        )
        queue = TransactionQueue(max_bytes=2 * self.subscription.batch_max_bytes)
        progress = Progress(remote_lsn)
        wanted = pgoutput_options(self.subscription, publisher.version, binary_readable=self._binary_readable)
        options = StreamOptions(self.subscription.slot_name, remote_lsn, wanted, self._memory_bytes)
        spools = SpoolFolder(
            self._catalog.state_dir / "spool" / self._name, [row.file for row in self._catalog.prepared(self._name)]
        )
        receiver = WalReceiver(
            self.subscription.connection,
            options,
            queue,
            progress,
            spools,
            application_name=self._name,
            after_receive=lambda: faults.reach("after_receive"),
            notice=lambda text: self._log.warning("the publisher warns", notice=text),
        )
        applier = BatchApplier(
            self._spark,
            self._catalog,
            subscription=self._name,
            origin_name=self.subscription.origin_name,
            deliver=self._deliver,
            lost=self._lost,
            messages_path=self._messages_path(),
            conflict=self.subscription.conflict,
            conflicts=self._report_conflicts,
        )
        try:
            receiver.start()
            self._log.info("streaming", start_lsn=str(remote_lsn), slot_name=self.subscription.slot_name)
            stream = Stream(receiver, queue, progress)
            loop = ApplyLoop(
                self._name, stream, former, applier, self._catalog, limits=limits, control=self, log=self._log
            )
            loop.run()
        finally:
            receiver.stop()

    def _applied(self, publisher: Publisher, definitions: tuple[Publication, ...]) -> Applied:
        """The definitions on the server's tables; refuses what cannot be re-applied rightly."""
        applied = apply_publications(self.subscription, publisher, definitions)
        applied.check()
        for gap in applied.gaps:
            self._log.warning("the stream lacks something that the definitions publish", gap=gap.message)
        return applied

    def _resolver(
        self, publisher: Publisher, published: Iterable[PublishedTable]
    ) -> Callable[[Sequence[tuple[int, int]]], list[ColumnType]]:
        """How columns' types are decoded; decides whether the stream may carry values in binary form."""
        columns = [column for table in published for column in table.columns]
        catalog = publisher.types({column.type_oid for column in columns})
        textual = {c.name for c in columns if not resolve(c.type_oid, c.typmod, catalog).binary}
        self._binary_readable = not textual
        if self.subscription.binary and textual:
            self._log.info(
                "values are transferred as text: binary form is not read for all types",
                columns=sorted(textual),
            )

        def resolver(wanted: Sequence[tuple[int, int]]) -> list[ColumnType]:
            if any(oid not in catalog for oid, _ in wanted):
                catalog.update(publisher.types({oid for oid, _ in wanted}))
            return [resolve(oid, typmod, catalog) for oid, typmod in wanted]

        return resolver

    @property
    def _memory_bytes(self) -> int:
        """What large transactions may hold in memory, on their way in and again on their way out."""
        return min(_IN_PROGRESS_BYTES, self.subscription.batch_max_bytes)

    def _messages_path(self) -> str | None:
        """The table of logical messages, made if it is not there; None when none is wanted."""
        if self.subscription.messages != "table":
            return None
        path = messages.path_in(self.subscription.warehouse)
        if any(rel.path == path for rel in self._catalog.rels(self._name)):
            raise ConfigError(
                f'the published table "{messages.NAME}" has the place that messages = "table" writes to: {path}',
                hint='set messages = "log"',
            )
        messages.ensure(self._spark, path)
        return path

    def _deliver(self, delivered: Sequence[tuple[Transaction, LogicalMessage]]) -> None:
        """Log a batch's logical messages."""
        for transaction, message in delivered:
            content = message.content[:_LOGGED_BYTES].decode(errors="backslashreplace")
            self._log.info(
                "logical message",
                prefix=message.prefix,
                content=content if len(message.content) <= _LOGGED_BYTES else content + "…",
                content_bytes=len(message.content),
                lsn=str(message.lsn),
                transactional=message.transactional,
                xid=transaction.xid or None,
            )

    def _lost(self, relation: str, rows: int) -> None:
        """Log what a row filter made of values that the stream does not carry."""
        self._log.warning(
            "rows came to match a row filter by an UPDATE without their unchanged TOAST values: these are NULL",
            relation=relation,
            rows=rows,
        )

    def _report_conflicts(self, conflicts: Conflicts, finish_lsn: Lsn) -> None:
        """Log what a batch found in a target, or did not find there, with some of the keys."""
        for name, count in conflicts.counts.items():
            keys = [conflict.key for conflict in conflicts.examples.get(name, ())]
            self._log.warning(
                f'conflict detected on relation "{conflicts.relation}": conflict={name}',
                rows=count,
                keys=keys,
                finish_lsn=str(finish_lsn),
            )

    def _ignoring(self) -> Callable[[str], None]:
        """Warn once for each table that is published but not subscribed."""
        seen: set[str] = set()

        def ignored(relation: str) -> None:
            if relation not in seen:
                seen.add(relation)
                self._log.warning("changes of a table that is not subscribed are ignored", relation=relation)

        return ignored

    @property
    def in_a_hurry(self) -> bool:
        """Somebody waits for the end of `run --until-caught-up`."""
        return self._target_lsn is not None

    def progressed(self) -> None:
        """Something became durable: errors before it no longer count."""
        self._failures = 0

    def going_on(self, progress: Progress) -> bool:
        """Whether the loop shall go on: not stopped, not disabled, not caught up."""
        if self._stop.is_set():
            return False
        return self._target_lsn is None or progress.durable_lsn < self._target_lsn

    def report(self, progress: Progress) -> bool:
        """Write what `status` shows; False when the subscription was disabled meanwhile."""
        self._catalog.set_state(self._name, "streaming", received_lsn=progress.received_lsn)
        return self._enabled()
