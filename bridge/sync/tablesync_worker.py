"""Brings added tables up to the subscription's stream, which meanwhile goes on for all other tables.

The steps are those of PostgreSQL's tablesync workers (tablesync.c): create a slot; copy the tables under the snapshot
that it exports; apply the slot's stream to these tables alone, until they are where the subscription's stream is
(catchup); hand them over to it (syncdone).

A slot of its own means that nothing has to be kept between the two streams. The slot sends all changes after the copy,
however long the copy took, and after a crash the slot and its origin are enough to go on. The alternative is to keep
the tables' changes of the subscription's stream until the copy is done. It would save decoding WAL twice on the server,
but a copy of hours would fill state_dir with changes that are confirmed to the server already: a loss would cost all
tables.

Two things differ from PostgreSQL. One worker serves all tables of a refresh, because creating a slot waits for all open
transactions, and each slot decodes all WAL; later requests wait until it ends or fails. And the subscription's stream
does not wait while the tables catch up, but only for the last batch, when they are within reach.

In the catalog the worker is a subscription of its own (see `bridge.catalog.refresh`), so that its slot, copies, batches
and recovery work like every subscription's. The hand-over: the subscription's worker ends its stream between two
batches; this worker applies its own stream up to the same LSN and ends; one transaction of the catalog moves the
tables; the subscription's stream begins again.
"""

from __future__ import annotations

import shutil
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from pgbridge.bridge.apply.stream import StreamHistory, recover, stream
from pgbridge.bridge.apply.stream_worker import StreamWorker
from pgbridge.bridge.catalog import catalog_rows, copied_ranges, refresh
from pgbridge.bridge.receive.slot import tablesync_slot
from pgbridge.bridge.recovery import manifest_table
from pgbridge.bridge.runtime import errors, faults, log, remedies
from pgbridge.bridge.spark import session
from pgbridge.bridge.sync import copy_progress, made_tables
from pgbridge.bridge.sync.server_check import ServerCheck
from pgbridge.bridge.sync.start import Start
from pgbridge.bridge.sync.tablesync import TableSync
from pgbridge.bridge.track.spool import spool_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.receive.publisher import Publisher
    from pgbridge.bridge.track.progress import Progress
    from pgbridge.protocol.lsn import Lsn

_COPIED = frozenset("fsr")
_LOOK_INTERVAL_S = 0.2
_WITHIN_REACH_S = 30.0
"""A subscription under load is always a batch ahead. If reaching its previous position took t seconds, reaching its
present one takes about t more; for so long it may wait, as PostgreSQL's apply worker does
(`wait_for_relation_state_change`)."""


class TableSyncWorker(StreamWorker):
    """A worker that copies tables and brings them up to the subscription's stream. A subscription has one at a time.

    It ends when the tables can be handed over, when there are no tables, when it is stopped, or when a new request may
    remove the reason of its failure.

    Args:
        subscription: The subscription; the worker's own is made of it.
        give_up_after: How many failures in a row end it: of the server, and of other kinds; None for any number.

    Attributes:
        within_reach: Set when the tables are at the subscription's origin, or close to it.
        error: Its last failure; None once something became durable after it.
        gave_up: Whether it ended because of failures, one of which disabled the subscription or was the last allowed.
    """

    def __init__(
        self,
        subscription: Subscription,
        spark: SparkSession,
        catalog: Catalog,
        *,
        give_up_after: tuple[int, int] | None = None,
        copy_limit: copy_progress.CopyLimit | None = None,
    ) -> None:
        own = {
            "name": catalog_rows.sync_name(subscription.name),
            "slot_name": tablesync_slot(subscription.slot_name),
            "create_slot": True,
            "copy_data": True,
            "two_phase": False,  # with False no prepared transaction has to be handed over
            "messages": "off",  # the subscription's stream has them
        }
        super().__init__(
            subscription.model_copy(update=own),
            spark,
            catalog,
            log.get(subscription.name).bind(worker="tablesync"),
            thread_name=f"tablesync {subscription.name}",
        )
        self._copy_limit = copy_limit
        self._give_up_after = give_up_after
        self._target_lsn: Lsn | None = None
        self._aim: tuple[Lsn, float] | None = None  # the subscription's LSN when last looked at, and the time
        self._streams = False
        self._history = StreamHistory()
        self.within_reach = threading.Event()

    @staticmethod
    def needed(catalog: Catalog, subscription: str) -> bool:
        """Whether there are tables for the worker, or a slot that it has to drop."""
        return catalog.subscription(catalog_rows.sync_name(subscription)) is not None

    def stop(self) -> None:
        """End after the current batch. A copy is cut short; the next start goes on."""
        self._stop.set()
        if not self._streams:
            session.interrupt(self._spark)

    def end_at(self, lsn: Lsn, giving_up: threading.Event) -> None:
        """Wait until the tables are at the LSN where the subscription's stream has ended, and the worker ends.

        Returns early if it fails, or if `giving_up` is set.
        """
        self._target_lsn = lsn
        while self.thread.is_alive() and self.within_reach.is_set() and not giving_up.is_set():
            self.thread.join(_LOOK_INTERVAL_S)
        self._target_lsn = None

    # --- attempts ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._attempts()

    def _failed(self, error: Exception) -> float | None:
        self.within_reach.clear()
        return super()._failed(error)

    def _is_no_failure(self, error: Exception) -> bool:
        """Whether it was stopped, or Spark is gone: the daemon starts another JVM, and then another worker."""
        return self._stop.is_set() or session.driver_of(self._spark).lost(error) is not None

    def _record(self, error: Exception, pause_s: float) -> None:
        at = datetime.now(UTC) + timedelta(seconds=pause_s)
        again = f"The copy is tried again at {at:%F %T} UTC; at once with: {remedies.refresh(self._owner_name)}"
        self._status.record_error(error, counter=None, then=again)
        unexpected = not isinstance(error, errors.BridgeError)
        self._log.error(
            "added tables cannot be synchronized", error=str(error), failures=self._failures, exc_info=unexpected
        )
        try:
            if errors.counts_in_copy(error):
                refresh.count_sync_error(self._catalog, self._owner_name)
        except errors.StateError as unwritten:
            self._log.error("an error cannot be counted", error=str(unwritten))

    def _gives_up(self, error: Exception, *, disabled: bool) -> bool:
        self.error, self.gave_up = error, disabled or isinstance(error, errors.TakenOver)
        if self._give_up_after is not None:
            limit = self._give_up_after[not isinstance(error, errors.PublisherError)]
            self.gave_up |= self._failures >= limit or not errors.may_retry(error)
        return self.gave_up

    def _ends_pause(self, before: refresh.Wanted | None, wanted: refresh.Wanted | None) -> bool | None:
        """A new request, which may remove the reason of the failure, is another worker's."""
        if wanted is not None and wanted[0]:
            return False
        skips_now = wanted is not None and before is not None and wanted[-1] != before[-1]
        return True if skips_now else None  # the transaction that failed

    def _attempt(self) -> bool:
        """Connect, copy, catch up; returns when the tables can be handed over."""
        self._streams, self._aim = False, None
        manifest_table.check_owned(self._spark, self._catalog, self.subscription)
        with self._connected() as (publisher, read_published):
            check = ServerCheck(self._context, publisher)
            self._clear(publisher, check)
            wanted = self._catalog.rels_by_name(self._name).keys()
            if not wanted:
                return False
            published = read_published()
            tables = {name: table for name, table in published.tables.items() if name in wanted}
            sync = TableSync(self._context, self._copy_limit)
            missing = sorted(wanted - tables.keys())
            current = partial(published.current, read_published)
            start = Start(self._context, publisher, sync, tables, check, current)
            error = self._copy(start, missing) if tables else made_tables.not_found(missing[0], self._owner_name)
            if start.copied_as is not None:
                published = start.copied_as
                tables = {name: table for name, table in published.tables.items() if name in wanted}
            if error is not None:
                if not self._any_copied():
                    raise error
                self._record(error, 0.0)  # the worker after the hand-over tries these again
                if self.subscription.disable_on_error and errors.is_own(error):
                    self._disable()
            again = True
            while again:
                server = check.look()
                recover(self._context, self._history)
                subscribed = sync.follow(tables, publisher, server)
                self._streams = True
                if self._stop.is_set():
                    return False
                try:
                    again = stream(self._context, published, subscribed, self._history, check=check, control=self)
                except errors.StreamError as error:
                    if not error.retry:  # it comes at every try; a copy under a later snapshot is behind it
                        refresh.begin_anew(self._catalog, self._owner_name)
                    raise
        faults.reach("sync_caught_up")
        return False

    def _copy(self, start: Start, missing: Sequence[tuple[str, str]]) -> Exception | None:
        """Copy the tables that need it; return an error, one of its own if there is one, if not all could be copied."""
        if failures := start.run():
            return max(failures.values(), key=errors.is_own)
        return made_tables.not_found(missing[0], self._owner_name) if missing else None

    def _any_copied(self) -> bool:
        return any(rel.state in _COPIED for rel in self._catalog.rels(self._name))

    def _clear(self, publisher: Publisher, check: ServerCheck) -> None:
        """Drop a slot that is not needed any more, or whose stream cannot be continued."""
        row = self._catalog.subscription(self._name)
        if not self._catalog.rels(self._name):  # a later refresh removed the tables again
            if row is None or row.slot_state is None:  # there is no slot, or another one of the same name
                refresh.slot_dropped(self._catalog, self._owner_name)
                return
            refresh.begin_anew(self._catalog, self._owner_name)
        elif self._catalog.remote_lsn(self._name) is not None:
            anew = not (self._any_copied() or copied_ranges.are_read(self._catalog, self._name))
            try:
                check.look()
            except errors.PublisherError as error:
                if error.retry or isinstance(error, errors.AnotherServer):
                    raise
                relations = [rel.qualified_name for rel in self._catalog.rels(self._name)]
                self._log.warning("added tables are copied again", relations=relations, reason=error.message)
                anew = True
            if anew:
                refresh.begin_anew(self._catalog, self._owner_name)
        row = self._catalog.subscription(self._name)
        if row is None or row.slot_state != refresh.DROPPING:
            return
        manifest_table.record(self._spark, self._catalog, self.subscription)  # that nothing needs it any more
        slot = row.slot_name or self.subscription.slot_name  # the subscription may have another slot_name now
        if publisher.slot(slot) is not None:
            with check.connection() as replication:
                replication.drop_slot(slot)
        faults.reach("sync_slot_dropped")
        shutil.rmtree(spool_folder(self._catalog.state_dir, self._name), ignore_errors=True)
        refresh.slot_dropped(self._catalog, self._owner_name)

    # --- control of the stream --------------------------------------------------------------------------------------

    @property
    def wants_keepalive(self) -> bool:
        """Always: the subscription may be waiting."""
        return True

    def should_continue(self, progress: Progress) -> bool:
        """Go on until the subscription's stream has ended and the tables are at the same LSN."""
        if self._stop.is_set():
            return False
        if (target_lsn := self._target_lsn) is not None:
            return progress.durable_lsn < target_lsn
        remote_lsn = self._catalog.remote_lsn(self._owner_name)
        if remote_lsn is not None and (self._aim is None or progress.durable_lsn >= self._aim[0]):
            now_s = time.monotonic()
            if progress.durable_lsn >= remote_lsn or (self._aim and now_s - self._aim[1] <= _WITHIN_REACH_S):
                self.within_reach.set()
            self._aim = remote_lsn, now_s
        return True

    def report(self, progress: Progress) -> bool:
        """Go on as long as the subscription is enabled."""
        del progress
        return self._owner_status.enabled()

    def origin_advanced(self) -> None:
        """Something became durable: errors before it no longer count."""
        self._failures = 0
        self._status.progressed()
        self.error = None
