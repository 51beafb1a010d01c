"""One subscription's life: make or find the slot, copy the tables, stream, apply; and again after an error.

Tables that come later are brought in by `bridge.sync.tablesync_worker` meanwhile, and join between two streams.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_never

from bridge import faults, log, remedies, session
from bridge.backoff import backoff_s, jittered_s
from bridge.errors import (
    ApplyError,
    BridgeError,
    ConfigError,
    PublisherError,
    SparkLost,
    StateError,
    SyncError,
    TargetBusy,
)
from bridge.pipeline import stream
from bridge.publication import delta_columns
from bridge.published import Published
from bridge.receive.filter_server import FilterServer
from bridge.receive.publisher import Publisher
from bridge.receive.streaming_fallback import StreamingFallback
from bridge.sync.refresh import Refresh
from bridge.sync.start import Start
from bridge.sync.tablesync import TableSync, not_found
from bridge.sync.tablesync_worker import TableSyncWorker
from bridge.track import left_out, refresh
from bridge.track.worker_status import WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from bridge.config import Subscription
    from bridge.sync.copy_limit import CopyLimit
    from bridge.track.catalog import Catalog
    from bridge.track.progress import Progress
    from bridge.track.refresh import RefreshRow
    from bridge.track.rows import RelRow
    from protocol.lsn import Lsn

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
        copy_limit: Limits the copies of the whole process; None for no limit.

    Attributes:
        error: Why the worker ended, if it failed.
        gave_up: It ended because it failed, and is not to be tried again: `until_caught_up`, and errors of
            configuration.
    """

    def __init__(
        self,
        subscription: Subscription,
        spark: SparkSession,
        catalog: Catalog,
        *,
        until_caught_up: bool = False,
        copy_limit: CopyLimit | None = None,
    ) -> None:
        self._copy_limit = copy_limit
        self.subscription = subscription
        self.error: BaseException | None = None
        self.gave_up = False
        self._spark = spark
        self._catalog = catalog
        self._until_caught_up = until_caught_up
        self._target_lsn: Lsn | None = None
        self._stop = threading.Event()
        self._log = log.get(subscription.name)
        self._status = WorkerStatus(catalog, subscription.name, self._log)
        self._failures = 0
        self._copying = False
        self._sync: TableSyncWorker | None = None
        self._again = self._look = False
        self._fallback = StreamingFallback()
        self.thread = threading.Thread(target=self._run, name=f"subscription {subscription.name}", daemon=True)

    @property
    def disabled(self) -> bool:
        """The subscription is not to run, by DISABLE or by disable_on_error."""
        return not self._status.enabled()

    def stop(self) -> None:
        """End after the batch under way; a copy under way is cut short, and starts again."""
        self._stop.set()
        if self._copying:
            session.interrupt(self._spark)

    @property
    def _name(self) -> str:
        return self.subscription.name

    def _run(self) -> None:
        try:
            self._retrying()(self._live)
            if self._sync is not None and self._sync.gave_up:
                self.error, self.gave_up = self._sync.error, True
        except BaseException as error:  # noqa: BLE001 - whatever it is, the daemon must hear of it
            if not self._stop.is_set():
                self.error = error
        finally:
            self._end_bringing_in()
            if session.died() is None:
                self._status.set_state("stopped" if self._status.enabled() else "disabled")

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
        while (left_s := end_s - time.monotonic()) > 0 and self._status.enabled():
            if self._stop.wait(min(left_s, _LOOK_INTERVAL_S)):
                return
            self._status.write()

    def _pause_s(self, state: RetryCallState) -> float:
        """Growing pauses, from the start again once something was applied; long ones where only a hand helps."""
        error = state.outcome.exception() if state.outcome else None
        if not getattr(error, "retry", True):
            return self.subscription.retry_max_s
        return jittered_s(backoff_s(self._failures, self.subscription.retry_max_s))

    def _failed(self, error: BaseException) -> bool:
        """Record an error; whether to try again."""
        if self._is_no_failure(error):
            return False
        self._failures += 1
        counter = "sync" if self._copying else "apply" if isinstance(error, ApplyError) else None
        self._status.record_error(error, counter=counter)
        unexpected = not isinstance(error, BridgeError)
        self._log.error("subscription failed", error=str(error), failures=self._failures, exc_info=unexpected)
        if self._stop.is_set():
            return False
        not_its_own = isinstance(error, PublisherError | ConfigError | StateError | TargetBusy)
        if self.subscription.disable_on_error and not not_its_own:
            return not self._disable()
        limit = _GIVE_UP_APPLYING_AFTER if isinstance(error, ApplyError) else _GIVE_UP_AFTER
        hopeless = self._failures >= limit or not getattr(error, "retry", True)
        if isinstance(error, ConfigError) or (self._until_caught_up and hopeless):
            self.gave_up = True
            return False
        self._status.set_state("error")
        return True

    def _is_no_failure(self, error: BaseException) -> bool:
        """Whether an attempt ended by what is not the subscription's fault, nor to be tried again by it."""
        if not isinstance(error, Exception):
            return True  # the end of the process
        if self._stop.is_set() and (self._copying or isinstance(error, SyncError)):
            self._log.info("the copy was cut short, and starts again at the next start", reason=str(error))
            return True
        if (lost := session.lost(error)) is None:
            return False
        # the daemon has another JVM start, and a worker with it
        self._status.record_error(SparkLost(f"Spark's JVM has died: {lost}"), counter=None)
        self._status.set_state("error")
        self._log.warning("cut short: Spark's JVM has died", reason=lost, error=str(error))
        return True

    def _disable(self) -> bool:
        """What disable_on_error asks for; False when that cannot be written: the error will come again."""
        try:
            self._catalog.set_enabled(self._name, enabled=False)
        except StateError as error:
            self._log.error("subscription cannot be disabled (disable_on_error)", error=str(error))
            return False
        self._log.warning("subscription disabled because of an error (disable_on_error)")
        return True

    def _live(self) -> None:
        """From connecting to the end: returns when stopped, disabled or caught up."""
        while self._stream_once():
            pass

    def _stream_once(self) -> bool:
        """One stream, from connecting to its end; whether it ended only to begin again, perhaps with other tables."""
        if self._stop.is_set() or not self._status.enabled():
            return False
        self._again = self._look = False
        self._status.set_state("starting")
        self._copying = False
        with (
            Publisher(self.subscription.connection, application_name=self._name) as publisher,
            FilterServer(self.subscription) as filter_server,
        ):
            if self._until_caught_up and self._target_lsn is None:
                self._target_lsn = publisher.flush_lsn()
            asked = self._asked()  # before what is published is read, which must not be older
            published = Published.read(self.subscription, publisher, self._log, filter_server)
            sync = TableSync(
                self._spark,
                self.subscription,
                self._catalog,
                self._log,
                stopping=self._stop.is_set,
                copy_limit=self._copy_limit,
            )
            if asked:
                self._sync = None  # of one that has ended
                Refresh(self._name, self._catalog, sync, self._log).take_up(asked, published.tables, publisher)
            without = self._leave_out(published)
            self._bring_in()
            self._copying = True
            self._status.set_state("copying")
            start = Start(
                self.subscription,
                self._catalog,
                publisher,
                sync,
                published.tables,
                self._log,
                stopping=self._stop.is_set,
            )
            errors = start.run()
            self._set_apart(errors, [rel for rel in self._catalog.rels(self._name) if sync.needs_copy(rel)])
            self._copying = False
            again = stream(
                published,
                sync.follow(published.tables, publisher),
                self._spark,
                self._catalog,
                control=self,
                log=self._log,
                ignored=self._ignoring(without),
                fallback=self._fallback,
            )
        return again or self._again

    # --- tables that cannot be taken ------------------------------------------------------------------------------

    def _leave_out(self, published: Published) -> list[str]:
        """Warn once of the tables that Delta cannot hold; returns their names."""
        rels = self._catalog.rels(self._name) + self._catalog.rels(refresh.sync_name(self._name))
        found = delta_columns.unsupported_tables(published.tables, [(rel.namespace, rel.name) for rel in rels])
        reasons = {name: why.reason for name, why in found.items()}
        for name in left_out.put(self._catalog, self._name, reasons):
            self._log.warning(
                f"a table is left out: {found[name].reason}",
                relation=".".join(name),
                hint=f"{found[name].hint}; then run: {remedies.refresh(self._name)}",
            )
        return [".".join(name) for name in found]

    def _set_apart(self, errors: Mapping[tuple[str, str], BridgeError], left: Sequence[RelRow]) -> None:
        """Have the tables brought in that could not be copied, beside the stream of the others.

        They are tried again with pauses, under a slot of their own, as PostgreSQL's tablesync workers do.

        Raises:
            BridgeError: There are no others, or the subscription is to be disabled.
        """
        if not left:
            return
        why = {
            rel: errors.get(name) or not_found(name, self._name) for rel in left for name in [(rel.namespace, rel.name)]
        }
        others = len(self._catalog.rels(self._name)) > len(left)
        if not others or self.subscription.disable_on_error or self._stop.is_set():
            raise why[left[0]]
        refresh.take_up(self._catalog, self._name, 0, bring_in=left, follow=(), remove=())
        for rel, error in why.items():
            self._catalog.record_error(
                refresh.sync_name(self._name), str(error), counter=None, relation=rel.qualified_name
            )
            if not isinstance(error, PublisherError | TargetBusy):
                refresh.count_sync_error(self._catalog, self._name)
        self._bring_in()

    # --- tables that come later -----------------------------------------------------------------------------------

    def _asked(self) -> list[RefreshRow]:
        """What is to be taken up now: not while tables are brought in, nor while a batch is half done."""
        begun = self._catalog.remote_lsn(self._name) is not None and self._catalog.batch(self._name) is None
        return refresh.asked(self._catalog, self._name) if begun and not self._bringing_in else []

    @property
    def _bringing_in(self) -> bool:
        return self._sync is not None and self._sync.thread.is_alive()

    def _bring_in(self) -> None:
        """Take over tables that are where the origin is, and have those brought in that are not. No stream runs."""
        sync, remote_lsn = self._sync, self._catalog.remote_lsn(self._name)
        if sync is not None and remote_lsn is not None and sync.within_reach.is_set():
            sync.end_at(remote_lsn, self._stop)
        if self._bringing_in or (sync is not None and sync.gave_up):
            return
        joined = refresh.hand_over(self._catalog, self._name)
        for rel in joined:
            self._log.info("table joins the stream", relation=rel.qualified_name, lsn=str(rel.lsn))
        if joined:
            faults.reach("handed_over")
        self._sync = None
        if TableSyncWorker.needed(self._catalog, self._name):
            patience = (_GIVE_UP_AFTER, _GIVE_UP_APPLYING_AFTER) if self._until_caught_up else None
            self._sync = TableSyncWorker(
                self.subscription,
                session.fork(self._spark),
                self._catalog,
                give_up_after=patience,
                copy_limit=self._copy_limit,
            )
            self._sync.thread.start()

    def _to_change(self) -> bool:
        """Whether the stream shall end when it can, to begin again with other tables."""
        if not self._bringing_in and not TableSyncWorker.needed(self._catalog, self._name):
            self._sync = None
        if self._sync is not None and not self._sync.gave_up:
            return self._sync.within_reach.is_set() or not self._bringing_in
        return bool(refresh.asked(self._catalog, self._name))

    def _end_bringing_in(self) -> None:
        sync = self._sync
        while sync is not None and sync.thread.is_alive():
            sync.stop()  # again, for what it has begun since
            sync.thread.join(_LOOK_INTERVAL_S)

    # --- control of the stream --------------------------------------------------------------------------------------

    def _ignoring(self, without: Iterable[str]) -> Callable[[str], None]:
        """Warn once for each table that is published but not subscribed; of those left out it is known."""
        seen = set(without)

        def ignored(relation: str) -> None:
            # the tables that are being brought in have a stream of their own
            if relation not in seen and self._sync is None:
                seen.add(relation)
                self._log.warning(
                    "changes of a table that is not subscribed are ignored",
                    relation=relation,
                    hint=f"to subscribe to what is published now, run: {remedies.refresh(self._name)}",
                )

        return ignored

    @property
    def wants_keepalive(self) -> bool:
        """Somebody waits for the end of `run --until-caught-up`."""
        return self._target_lsn is not None

    def origin_advanced(self) -> None:
        """Something became durable: errors before it no longer count."""
        self._failures = 0
        self._status.progressed()

    def should_continue(self, progress: Progress) -> bool:
        """Whether the loop shall go on: not stopped, not disabled, not caught up with all tables."""
        if self._stop.is_set():
            return False
        caught_up = self._target_lsn is not None and progress.durable_lsn >= self._target_lsn
        if (self._look or caught_up) and self._to_change() and self._catalog.batch(self._name) is None:
            self._again = True
            return False
        return not caught_up or (self._sync is not None and not self._sync.gave_up)

    def report(self, progress: Progress) -> bool:
        """Write what `status` shows; False when the subscription was disabled meanwhile."""
        self._status.set_state("streaming", received_lsn=progress.received_lsn)
        self._look = self._to_change()
        return self._status.enabled()
