"""One subscription's worker: starts the subscription, streams, and tries again after errors.

Tables that are added later join between two streams (`bridge.sync.added_tables`).
"""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from pgbridge.bridge.apply.maintenance import DeltaTables, Maintenance, Policy
from pgbridge.bridge.apply.published import Published, unpublished
from pgbridge.bridge.apply.stream import Handling, StreamHistory, recover, stream
from pgbridge.bridge.apply.stream_worker import StreamWorker
from pgbridge.bridge.apply.suspects import SUSPECTS
from pgbridge.bridge.catalog import catalog_rows, notes, refresh
from pgbridge.bridge.lake.location import place_of
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.lake.shared_folder import check_shared
from pgbridge.bridge.publication import published_table
from pgbridge.bridge.recovery import manifest_table
from pgbridge.bridge.runtime import errors, log, remedies
from pgbridge.bridge.runtime.observer import Observer
from pgbridge.bridge.snapshots.commit_log import CommitLog
from pgbridge.bridge.snapshots.commits_table import CommitRows
from pgbridge.bridge.snapshots.sequences import SequenceRows, SequenceValues
from pgbridge.bridge.spark import session
from pgbridge.bridge.sync import catalog_look, copy_progress, made_tables
from pgbridge.bridge.sync.added_tables import AddedTables
from pgbridge.bridge.sync.refresh import Refresh
from pgbridge.bridge.sync.server_check import ServerCheck
from pgbridge.bridge.sync.start import HandledTables, Start
from pgbridge.bridge.sync.tablesync import TableSync
from pgbridge.bridge.verify.verifier import Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from pgbridge.bridge.apply.handler import ChangeBatch
    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.service.warm_up import WarmUp
    from pgbridge.bridge.track.progress import Progress
    from pgbridge.protocol.lsn import Lsn

_LOOK_INTERVAL_S = 1.0
_WARM_UP_TABLES = 50  # whose sizes are looked at: the server is asked for each
_GIVE_UP_AFTER, _GIVE_UP_APPLYING_AFTER = 8, 3
"""Failures in a row without progress, after which `run --until-caught-up` reports the subscription as failed. A server
may need a minute to notice that a killed daemon is gone; a commit that Delta refused three times will not succeed."""


class SubscriptionWorker(StreamWorker):
    """A worker that runs one subscription.

    Args:
        until_caught_up: End once everything that the publisher had flushed at the start is durable.
        copy_limit: Limits the copies of the whole process; None for no limit.
        warm_up: Begun with the copies; None for none.
        observer: Is told what the stream receives and applies; None for nobody.
        handler: Gets the batches, in place of Delta tables; None for Delta tables.

    Attributes:
        gave_up: Whether it ended by an error after which another worker is started only after `workers.retry_max_s`, or
            after ENABLE; with `until_caught_up` none is.
    """

    def __init__(
        self,
        subscription: Subscription,
        spark: SparkSession,
        catalog: Catalog,
        *,
        until_caught_up: bool = False,
        copy_limit: copy_progress.CopyLimit | None = None,
        warm_up: WarmUp | None = None,
        observer: Observer | None = None,
        handler: Callable[[ChangeBatch], object] | None = None,
    ) -> None:
        name = subscription.name
        if until_caught_up:  # nobody waits to read the tables later
            batch = subscription.batch.model_copy(update={"commit_interval_s": 0.0})
            subscription = subscription.model_copy(update={"batch": batch})
        super().__init__(subscription, spark, catalog, log.get(name), thread_name=f"subscription {name}")
        self._copy_limit = copy_limit
        self._warm_up = warm_up
        self._until_caught_up = until_caught_up
        self._target_lsn: Lsn | None = None
        self._copying = False
        self._added = AddedTables(
            subscription,
            spark,
            catalog,
            self._log,
            give_up_after=(_GIVE_UP_AFTER, _GIVE_UP_APPLYING_AFTER) if until_caught_up else None,
            copy_limit=copy_limit,
        )
        self._again = self._look = self._begun = self._repeats = False
        self._is_current = False  # the state directory: the server and its slot agree with it
        self._seen, self._enabled = (-1, -1), True  # at the catalog's version
        self._maintenance = Maintenance(
            catalog,
            name,
            DeltaTables(spark, LocalTables(partial(place_of, spark))),
            Policy(subscription.target.maintenance, subscription.target.vacuum_retention_h),
            self._log,
            stopping=self._stop.is_set,
            now_s=time.time,
        )
        commits = CommitRows.of(spark, subscription.warehouse)
        self._catalog_watch = catalog_look.CatalogWatch(subscription, catalog, self._log)
        self._commit_log = CommitLog(catalog, name, commits, self._log)
        self._sequences = SequenceValues(
            subscription, catalog, SequenceRows.of(spark, subscription.warehouse), self._log
        )
        self._verifier = Verifier(subscription, spark, catalog, self._log)
        self._handled = HandledTables(subscription, catalog) if handler is not None else None
        self._history = StreamHistory(
            maintenance=self._maintenance if handler is None else None,
            observer=observer or Observer(),
            handler=Handling(handler, self._handled.other) if handler and self._handled else None,
            redefined=self._catalog_watch.soon,
        )

    @property
    def disabled(self) -> bool:
        """Whether the subscription is disabled, by DISABLE or by disable_on_error."""
        return not self._status.enabled()

    def stop(self) -> None:
        """End after the current batch. A copy and maintenance are cut short; the next start goes on."""
        self._stop.set()
        if self._copying:
            session.interrupt(self._spark)
        self._maintenance.interrupt()

    def look_soon(self) -> None:
        """Somebody may have mended something: try again, and compare what is published with what is followed."""
        self._catalog_watch.soon()
        self.retry_soon()
        self._added.retry_soon()

    def _run(self) -> None:
        try:
            if self._handled is None:  # a function's writes are not known here
                self._commit_log.start()
                self._sequences.start()
                self._catalog_watch.start()
            if self._handled is None and not self._until_caught_up:
                self._verifier.start()
            if (error := self._attempts()) is not None:
                self.error = None if self._stop.is_set() else error
            elif (left := self._added.error or self._waits()) is not None:
                self.error, self.gave_up = left, True
        except BaseException as error:  # noqa: BLE001 - the daemon gets every error
            if not self._stop.is_set():
                self.error = error
        finally:
            self._verifier.stop()
            self._added.stop()
            self._catalog.release(self._name)
            self._catalog_watch.close()
            caught_up = self._handled is None and self.error is None and not self._stop.is_set()
            self._commit_log.stop(caught_up=caught_up)
            self._sequences.stop(caught_up=caught_up)
            if session.driver_of(self._spark).lost() is None:
                self._record_end()
                ended = "error" if self.gave_up and not self._until_caught_up else "stopped"
                self._status.set_state(ended if self._status.enabled() else "disabled")

    def _record_end(self) -> None:
        """Have the warehouse know what no stream will tell it any more: that the subscription is disabled.

        From a state directory that was put back from a backup it would get what was, in place of what is.
        """
        if self._handled is not None or self._status.enabled() or not self._is_current:
            return
        try:
            manifest_table.record(self._spark, self._catalog, self.subscription)
        except Exception as error:  # noqa: BLE001 - the next stream does it
            self._log.warning("the warehouse does not know that the subscription is disabled", error=str(error))

    def _waits(self) -> errors.NeedsResync | None:
        """The error of a table that waits for its resync, for `run --until-caught-up`; a daemon goes on."""
        waiting = refresh.waiting(self._catalog, self._name)
        if not waiting or not self._until_caught_up or self._stop.is_set() or not self._status.enabled():
            return None
        message, _, hint = (waiting[0].waits or "").partition(errors.HINT)
        return errors.NeedsResync(message, (waiting[0].namespace, waiting[0].name), hint=hint)

    def _ends_pause(self, before: refresh.Wanted | None, wanted: refresh.Wanted | None) -> bool | None:
        return True if wanted != before else None

    def _record(self, error: Exception, pause_s: float) -> None:
        del pause_s
        # what the stream itself brought may come again from the same position; only progress ends it
        self._repeats = self._begun and not (isinstance(error, errors.PublisherError) and error.retry)
        counter = "sync" if self._copying else "apply" if isinstance(error, errors.ApplyError) else None
        counted = errors.counts_in_copy(error) if self._copying else errors.is_own(error)
        self._status.record_error(error, counter=counter if counted else None)
        unexpected = not isinstance(error, errors.BridgeError)
        self._log.error("subscription failed", error=str(error), failures=self._failures, exc_info=unexpected)

    def _gives_up(self, error: Exception, *, disabled: bool) -> bool:
        if self.subscription.disable_on_error and errors.is_own(error):
            return disabled
        limit = _GIVE_UP_APPLYING_AFTER if isinstance(error, errors.ApplyError) else _GIVE_UP_AFTER
        hopeless = self._failures >= limit or not errors.may_retry(error)
        ends = isinstance(error, (errors.ConfigError, errors.TakenOver))
        if ends or (self._until_caught_up and hopeless):
            self.gave_up = True
            return True
        self._status.set_state("error")
        return False

    def _is_no_failure(self, error: Exception) -> bool:
        """Whether an error is no failure of the subscription: it was stopped, or Spark ended."""
        if self._stop.is_set() and (self._copying or isinstance(error, errors.SyncError)):
            self._log.info("the copy was cut short; the next start goes on", reason=str(error))
            return True
        driver = session.driver_of(self._spark)
        if (lost := driver.lost(error)) is None:
            return False
        # the daemon starts another JVM or other sessions, and another worker
        self._status.record_error(errors.SparkLost(f"{driver.loss}: {lost}"), counter=None)
        self._status.set_state("error")
        self._log.warning(f"stopped: {driver.loss}", reason=lost, error=str(error))
        return True

    def _attempt(self) -> bool:
        """Run one stream, from connecting to its end; return whether another is to begin, perhaps with other tables."""
        self._again = self._look = self._begun = False
        self._seen = -1, -1
        self.heartbeat.beat()
        self._status.set_state("starting")
        self._copying = False
        check_shared(self._spark, self.subscription.warehouse)
        if self._handled is None:
            manifest_table.check_owned(self._spark, self._catalog, self.subscription)
        with self._connected() as (publisher, read_published):
            check = ServerCheck(self._context, publisher)
            if self._until_caught_up and self._target_lsn is None:
                self._target_lsn = publisher.flush_lsn()
            server = check.look()
            self._is_current = True
            self._maintenance.recover()  # before a table is copied afresh, which this would revert
            recover(self._context, self._history)
            requests = self._added.requests()  # read first: the published tables must not be older than requests
            published = read_published()
            self._check_configured(published, adds=bool(requests))
            sync = TableSync(self._context, self._copy_limit)
            tables: TableSync | HandledTables = self._handled or sync
            if requests:
                tables.record()  # else a request would be lost with the state
                SUSPECTS.forget(self._name)
                self._added.forget_worker()
                refreshing = Refresh(self._name, self._catalog, sync, self._log, self.subscription.mode_of)
                refreshing.take_up(requests, published.tables, publisher)
            left_out = self._leave_out(published) if self._handled is None else []
            self._added.take_over(self._stop, check.look)
            self._copying = True
            self._status.set_state("copying")
            is_new = self._catalog.remote_lsn(self._name) is None
            if self._warm_up is not None and (is_new or any(map(tables.needs_copy, self._catalog.rels(self._name)))):
                first_tables = islice(published.tables.values(), _WARM_UP_TABLES)
                self._warm_up.begin(publisher.table_bytes(table.relid) for table in first_tables)
            current = partial(published.current, read_published)
            start = Start(self._context, publisher, tables, published.tables, check, current)
            failures = start.run()
            published = start.copied_as or published
            self._set_apart(failures, [rel for rel in self._catalog.rels(self._name) if tables.needs_copy(rel)], check)
            self._copying = False
            if self._handled is None:
                self._catalog_watch.look(publisher)
            subscribed = tables.follow(published.tables, publisher, server)
            ignored = self._ignoring(left_out)
            again = stream(
                self._context, published, subscribed, self._history, check=check, control=self, ignored=ignored
            )
        return again or self._again

    # --- tables that are left out, or not copied ------------------------------------------------------------------

    def _check_configured(self, published: Published, *, adds: bool) -> None:
        """Refuse a configuration with tables that are not published, before a table is made in another mode.

        Args:
            adds: Whether tables may be added to a subscription that has begun; else it goes on, as its tables are made.
        """
        error = unpublished(self.subscription, published.tables.values(), published.publisher)
        if error is None:
            return
        if adds or self._catalog.remote_lsn(self._name) is None:
            raise error
        self._log.warning(error.message, hint=error.hint)

    def _leave_out(self, published: Published) -> list[str]:
        """Log new tables that Delta cannot hold; return the names of all such tables."""
        subscribed = self._catalog.rels_by_name(self._name, catalog_rows.sync_name(self._name))
        unsupported = published_table.unsupported_tables(published.tables, subscribed, self.subscription.place_of)
        reasons = {name: why.reason for name, why in unsupported.items()}
        for name in notes.put_left_out(self._catalog, self._name, reasons):
            self._log.warning(
                f"a table is left out: {unsupported[name].reason}",
                relation=".".join(name),
                hint=f"{unsupported[name].hint}; then run: {remedies.refresh(self._name)}",
            )
        return [".".join(name) for name in unsupported]

    def _set_apart(
        self,
        failures: Mapping[tuple[str, str], errors.BridgeError],
        left: Sequence[catalog_rows.RelRow],
        check: ServerCheck,
    ) -> None:
        """Leave tables that could not be copied to a tablesync worker, so that the others' stream begins.

        Raises:
            BridgeError: There are no others, or the subscription is to stop.
        """
        if not left:
            return
        why = {
            rel: failures.get(name) or made_tables.not_found(name, self._name)
            for rel in left
            for name in [(rel.namespace, rel.name)]
        }
        others = len(self._catalog.rels(self._name)) > len(left)
        worst = max(why.values(), key=errors.is_own)
        if not others or (self.subscription.disable_on_error and errors.is_own(worst)) or self._stop.is_set():
            raise worst
        self._added.set_apart(why, self._stop, check.look)

    # --- control of the stream --------------------------------------------------------------------------------------

    def _ignoring(self, left_out: Iterable[str]) -> Callable[[str], None]:
        """Return a function that logs each published table which is not subscribed once, unless it is left out."""
        waiting = [rel.qualified_name for rel in refresh.waiting(self._catalog, self._name)]
        seen = {*left_out, *waiting}
        # the stream has partitions of their own names then
        unclear = bool(waiting) and self.subscription.publication_definitions is not None

        def ignored(relation: str) -> None:
            # while added tables are synchronized, it may be one of them
            if relation not in seen and not unclear and not self._added.syncing:
                seen.add(relation)
                self._log.warning(
                    "changes of a table that is not subscribed are ignored",
                    relation=relation,
                    hint=f"to subscribe to it, run: {remedies.refresh(self._name)}",
                )

        return ignored

    @property
    def wants_keepalive(self) -> bool:
        """Whether `run --until-caught-up` waits for the end."""
        return self._target_lsn is not None

    def origin_advanced(self) -> None:
        """Start to count failures from 0 again."""
        self._failures, self._repeats = 0, False
        self._status.progressed()
        self._commit_log.noted()

    def should_continue(self, progress: Progress) -> bool:
        """Whether the stream goes on: not stopped, no other tables to begin with, not caught up."""
        if self._stop.is_set():
            return False
        caught_up = self._target_lsn is not None and progress.durable_lsn >= self._target_lsn
        if (self._look or caught_up) and self._added.stream_should_end() and self._catalog.batch(self._name) is None:
            self._again = True
            return False
        return not caught_up or self._added.outstanding

    def report(self, progress: Progress) -> bool:
        """Record the state for `pgbridge status`; return whether the subscription is enabled."""
        self._status.set_state("streaming", received_lsn=progress.received_lsn)
        if not self._begun:
            self._begun = True
            if not self._repeats:
                self._status.begun()
        if (version := self._catalog.version()) != self._seen or self._added.syncing:
            self._seen = version
            self._look, self._enabled = self._added.stream_should_end(), self._status.enabled()
        return self._enabled
