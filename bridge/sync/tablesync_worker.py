"""Brings in tables that come later, beside the subscription's stream, which goes on for all others meanwhile.

The way is PostgreSQL's (tablesync.c): a slot of their own; a copy under the snapshot that the slot exported; that
slot's stream from there on, applied to these tables alone, until they are where the subscription's stream is; then
that takes them over. Nothing is kept between the two streams: what the copy has not, its own slot sends, however long
the copy takes, and a crash leaves nothing but a slot and an origin to go on from. (Keeping the tables' changes of the
one stream until the copy is done would save the second decoding of WAL on the server. But a copy of hours would fill
state_dir with changes already confirmed to the server, the only ones of their kind, whose loss costs all tables.)

Unlike PostgreSQL's, one worker brings in all tables of a refresh: one slot (its making waits for every transaction
that is open) and one decoding of WAL, not one for each table. What is asked for meanwhile waits for its end, or for
its failure. And the subscription's stream does not stand still while the tables catch up, only once they are within
reach of it: for the last batch.

The worker runs as a subscription of the catalog's (see `bridge.track.refresh`), so that its slot, copies, batches and
their recovery are those of every subscription. Hand-over: the subscription's worker ends its stream between two
batches, at its origin's LSN; this one goes on to there and ends; one transaction gives it the tables; it streams on.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
import zlib
from typing import TYPE_CHECKING

from bridge import faults, log, session
from bridge.errors import BridgeError, ConfigError, PublisherError, StateError, TargetBusy
from bridge.pipeline import spool_folder, stream
from bridge.published import Published
from bridge.receive.filter_server import FilterServer
from bridge.receive.publisher import Publisher
from bridge.receive.slot import ReplicationConnection, check_slot
from bridge.receive.streaming_fallback import StreamingFallback
from bridge.sync.start import Start
from bridge.sync.tablesync import TableSync, not_found
from bridge.track import refresh
from bridge.track.worker_status import WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from bridge.config import Subscription
    from bridge.publication.published_table import PublishedTable
    from bridge.sync.copy_limit import CopyLimit
    from bridge.track.catalog import Catalog
    from bridge.track.progress import Progress
    from protocol.lsn import Lsn

_COPIED = frozenset("fsr")
_NAME_BYTES = 63  # NAMEDATALEN - 1
_FIRST_PAUSE_S = 0.5
_LOOK_INTERVAL_S = 0.2
_LAST_STRETCH_S = 30.0
"""A subscription under load is always a batch ahead. Who came in this time to where it was comes in about as much to
where it is; it waits for that, as PostgreSQL's apply worker does (`wait_for_relation_state_change`)."""


def slot_name(subscription: Subscription) -> str:
    """The slot's name; that of the subscription's own slot is in it, which is the server's only one."""
    name = f"pgbridge_{subscription.slot_name}_sync"
    if len(name) <= _NAME_BYTES:
        return name
    return f"pgbridge_{subscription.slot_name[:40]}_{zlib.crc32(name.encode()):08x}_sync"


class TableSyncWorker:
    """A thread that copies tables and brings them up to the subscription's stream; one at a time a subscription.

    It ends when they can be handed over, when there are none, when it is stopped, or when something was asked for
    that a failure of its own may depend on.

    Args:
        subscription: The subscription that gets the tables.
        spark: A session of the worker's own.
        catalog: The process's catalog.
        give_up_after: Failures in a row after which it ends: the server's, and all others; None for never.
        copy_limit: Limits the copies of the whole process; None for no limit.

    Attributes:
        within_reach: The tables are where the subscription's origin is, or nearly.
        error: Its last failure, as long as nothing became durable since.
        gave_up: It ended because of that.
    """

    def __init__(
        self,
        subscription: Subscription,
        spark: SparkSession,
        catalog: Catalog,
        *,
        give_up_after: tuple[int, int] | None = None,
        copy_limit: CopyLimit | None = None,
    ) -> None:
        self._copy_limit = copy_limit
        self._main = subscription
        self._subscription = subscription.model_copy(
            update={
                "name": refresh.sync_name(subscription.name),
                "slot_name": slot_name(subscription),
                "create_slot": True,
                "copy_data": True,
                "two_phase": False,  # prepared transactions come at their COMMIT PREPARED: none has to be handed over
                "messages": "off",  # the subscription's stream has them
            }
        )
        self._name = self._subscription.name
        self._spark = spark
        self._catalog = catalog
        self._give_up_after = give_up_after
        self._log = log.get(subscription.name).bind(worker="tablesync")
        self._status = WorkerStatus(catalog, self._name, self._log)
        self._main_status = WorkerStatus(catalog, subscription.name, self._log)
        self._stop = threading.Event()
        self._target_lsn: Lsn | None = None
        self._aim: tuple[Lsn, float] | None = None  # where the subscription was, and when
        self._failures = 0
        self._streams = False
        self._fallback = StreamingFallback()
        self.within_reach = threading.Event()
        self.error: Exception | None = None
        self.gave_up = False
        self.thread = threading.Thread(target=self._run, name=f"tablesync {subscription.name}", daemon=True)

    @staticmethod
    def needed(catalog: Catalog, subscription: str) -> bool:
        """Whether there is something to bring in, or left to clear away."""
        return catalog.subscription(refresh.sync_name(subscription)) is not None

    def stop(self) -> None:
        """End after the batch under way; a copy under way is cut short, and starts again."""
        self._stop.set()
        if not self._streams:
            session.interrupt(self._spark)

    def end_at(self, lsn: Lsn, giving_up: threading.Event) -> None:
        """Have it come to where the subscription's stream has stopped, and end. Returns early if it cannot."""
        self._target_lsn = lsn
        while self.thread.is_alive() and self.within_reach.is_set() and not giving_up.is_set():
            self.thread.join(_LOOK_INTERVAL_S)
        self._target_lsn = None

    # --- a life ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set() and self._main_status.enabled():
            try:
                self._attempt()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is recorded and tried again
                self.within_reach.clear()
                if self._stop.is_set() or not self._failed(error):
                    return
            else:
                return
            finally:
                self._streams = False
                self._aim = None
            if not self._pause():
                return

    def _pause(self) -> bool:
        """Wait before the next try; False when somebody has asked for something that may help."""
        retry = getattr(self.error, "retry", True)
        pause_s = self._main.retry_max_s
        if retry:
            pause_s = min(pause_s, _FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 16))
        end_s = time.monotonic() + pause_s * random.uniform(0.75, 1.25)  # noqa: S311 - so that not all knock in step
        while time.monotonic() < end_s and self._main_status.enabled() and not self._stop.wait(_LOOK_INTERVAL_S):
            self._status.write()
            if self._asked():
                return False
        return True

    def _asked(self) -> bool:
        try:
            return bool(refresh.asked(self._catalog, self._main.name))
        except StateError:  # not known now: it is looked for again
            return False

    def _failed(self, error: Exception) -> bool:
        """Take note of an error; whether to try again."""
        if session.lost(error) is not None:
            return False  # the daemon starts another JVM, and the subscription another one of us
        self._failures += 1
        self.error = error
        self._record(error)
        self.gave_up = isinstance(error, ConfigError) or not self._main_status.enabled()
        if self._give_up_after is not None:
            limit = self._give_up_after[not isinstance(error, PublisherError)]
            self.gave_up |= self._failures >= limit or not getattr(error, "retry", True)
        return not self.gave_up

    def _record(self, error: Exception) -> None:
        self._status.record_error(error, counter=None)
        unexpected = not isinstance(error, BridgeError)
        self._log.error("tables cannot be brought in", error=str(error), failures=self._failures, exc_info=unexpected)
        if isinstance(error, PublisherError | StateError | TargetBusy):
            return
        try:
            refresh.count_sync_error(self._catalog, self._main.name)
            if self._main.disable_on_error:
                self._catalog.set_enabled(self._main.name, enabled=False)
                self._log.warning("subscription disabled because of an error (disable_on_error)")
        except StateError as unwritten:
            self._log.error("an error cannot be counted", error=str(unwritten))

    def _attempt(self) -> None:
        """From connecting to where the tables can be handed over."""
        with (
            Publisher(self._subscription.connection, application_name=self._name) as publisher,
            FilterServer(self._subscription) as filter_server,
        ):
            self._clear(publisher)
            wanted = {(rel.namespace, rel.name) for rel in self._catalog.rels(self._name)}
            if not wanted:
                return
            published = Published.read(self._subscription, publisher, self._log, filter_server)
            tables = {name: table for name, table in published.tables.items() if name in wanted}
            sync = TableSync(
                self._spark,
                self._subscription,
                self._catalog,
                self._log,
                stopping=self._stop.is_set,
                copy_limit=self._copy_limit,
            )
            error = self._copy(sync, publisher, tables, missing=sorted(wanted - tables.keys()))
            if error is not None:
                if not self._any_copied():
                    raise error
                self._record(error)  # who hands over the others tries again with this one
            again = True
            while again:
                subscribed = sync.follow(tables, publisher)
                self._streams = True
                if self._stop.is_set():
                    return
                again = stream(
                    published,
                    subscribed,
                    self._spark,
                    self._catalog,
                    control=self,
                    log=self._log,
                    ignored=lambda _: None,
                    fallback=self._fallback,
                )
        faults.reach("sync_caught_up")

    def _copy(
        self,
        sync: TableSync,
        publisher: Publisher,
        tables: Mapping[tuple[str, str], PublishedTable],
        missing: Sequence[tuple[str, str]],
    ) -> Exception | None:
        """Copy what is not copied yet; returns why that is not all, which does not keep back the others."""
        if tables:
            start = Start(
                self._subscription, self._catalog, publisher, sync, tables, self._log, stopping=self._stop.is_set
            )
            if errors := start.run():
                return next(iter(errors.values()))
        return not_found(missing[0], self._main.name) if missing else None

    def _any_copied(self) -> bool:
        return any(rel.state in _COPIED for rel in self._catalog.rels(self._name))

    def _clear(self, publisher: Publisher) -> None:
        """Drop a slot that has done its work, or from which one cannot go on."""
        slot = self._subscription.slot_name
        status = publisher.slot(slot)
        row = self._catalog.subscription(self._name)
        remote_lsn = self._catalog.remote_lsn(self._name)
        if not self._catalog.rels(self._name):  # a refresh took back what was to come
            if row is None or row.slot_state is None:  # there is no slot, or it is not ours
                refresh.slot_dropped(self._catalog, self._main.name)
                return
            refresh.begin_anew(self._catalog, self._main.name)
        elif remote_lsn is not None:
            anew = not self._any_copied()
            try:
                check_slot(slot, status, database=publisher.database, durable_lsn=remote_lsn)
            except PublisherError as error:
                self._log.warning(
                    "a slot is lost: the tables that it brought in are copied again", reason=error.message
                )
                anew = True
            if anew:
                refresh.begin_anew(self._catalog, self._main.name)
        row = self._catalog.subscription(self._name)
        if row is None or row.slot_state != refresh.DROPPING:
            return
        if status is not None:
            with ReplicationConnection(
                self._subscription.connection, application_name=self._name, stopping=self._stop.is_set
            ) as replication:
                replication.drop_slot(slot)
        faults.reach("sync_slot_dropped")
        shutil.rmtree(spool_folder(self._catalog, self._name), ignore_errors=True)
        refresh.slot_dropped(self._catalog, self._main.name)

    # --- control of the stream --------------------------------------------------------------------------------------

    @property
    def wants_keepalive(self) -> bool:
        """The subscription may be waiting."""
        return True

    def should_continue(self, progress: Progress) -> bool:
        """Until the subscription's stream has stopped, and the tables are where it has."""
        if self._stop.is_set():
            return False
        if (target_lsn := self._target_lsn) is not None:
            return progress.durable_lsn < target_lsn
        remote_lsn = self._catalog.remote_lsn(self._main.name)
        if remote_lsn is not None and (self._aim is None or progress.durable_lsn >= self._aim[0]):
            now_s = time.monotonic()
            if progress.durable_lsn >= remote_lsn or (self._aim and now_s - self._aim[1] <= _LAST_STRETCH_S):
                self.within_reach.set()
            self._aim = remote_lsn, now_s
        return True

    def report(self, progress: Progress) -> bool:
        """Go on as long as the subscription is enabled."""
        del progress
        return self._main_status.enabled()

    def origin_advanced(self) -> None:
        """Something became durable: errors before it no longer count."""
        self._failures = 0
        self._status.progressed()
        self.error = None
