"""The subscription's side of added tables: requests for them, the worker that copies them, and their hand-over.

`bridge.sync.tablesync_worker` copies added tables and brings them up to the subscription's stream. Here that worker is
started and stopped, and its tables are taken over between two streams of the subscription.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog_rows import RelRow, sync_name
from pgbridge.bridge.catalog.held import held
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import BridgeError, counts_in_copy
from pgbridge.bridge.spark import session
from pgbridge.bridge.sync.tablesync_worker import TableSyncWorker
from pgbridge.bridge.track.position import ServerHistory, compare

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.sync.copy_progress import CopyLimit

_LOOK_INTERVAL_S = 1.0


@dataclass(eq=False)
class AddedTables:
    """Tables that are added to a subscription while it runs.

    Used by the thread of the subscription's worker, but for `retry_soon`.

    Each tablesync worker gets a fork of the subscription's Spark session.
    """

    subscription: Subscription
    spark: SparkSession
    catalog: Catalog
    log: FilteringBoundLogger
    _: KW_ONLY
    give_up_after: tuple[int, int] | None = None
    copy_limit: CopyLimit | None = None
    _worker: TableSyncWorker | None = field(init=False, default=None)

    @property
    def syncing(self) -> bool:
        """Whether there is a tablesync worker, running or ended, whose tables are not taken over yet."""
        return self._worker is not None

    @property
    def outstanding(self) -> bool:
        """Whether tables are still to be taken over: there is a worker, and it did not give up."""
        return self._worker is not None and not self._worker.gave_up

    @property
    def error(self) -> BaseException | None:
        """The error after which the worker gave up."""
        return self._worker.error if self._worker is not None and self._worker.gave_up else None

    @property
    def _running(self) -> bool:
        return self._worker is not None and self._worker.thread.is_alive()

    def requests(self) -> list[refresh.RefreshRow]:
        """Return the requests to carry out now: none while a tablesync worker runs, or a batch is unfinished."""
        begun = (
            self.catalog.remote_lsn(self.subscription.name) is not None
            and self.catalog.batch(self.subscription.name) is None
        )
        return refresh.asked(self.catalog, self.subscription.name) if begun and not self._running else []

    def retry_soon(self) -> None:
        """End the worker's pause after an error. May be called by any thread."""
        if (worker := self._worker) is not None:
            worker.retry_soon()

    def forget_worker(self) -> None:
        """Forget a worker that has ended, before requests are carried out: `take_over` starts another one."""
        self._worker = None

    def take_over(self, stopping: threading.Event, look: Callable[[], ServerHistory]) -> None:
        """Take over tables that are up to the origin, and start a worker for others. No stream may run meanwhile.

        Args:
            stopping: Ends the wait for a worker's last batch.
            look: Looks at the server, once the worker has ended: it may be further than an earlier look. Tables that
                have more than the server are left to a worker, which copies them afresh.
        """
        worker, remote_lsn = self._worker, self.catalog.remote_lsn(self.subscription.name)
        if worker is not None and remote_lsn is not None and worker.within_reach.is_set():
            worker.end_at(remote_lsn, stopping)
        if self._running or (worker is not None and worker.gave_up):
            return
        positions = held(self.catalog, sync_name(self.subscription.name))
        known = positions is not None and compare(positions, look()).has_all
        joined = refresh.hand_over(self.catalog, self.subscription.name) if known else []
        for rel in joined:
            self.log.info("table joins the stream", relation=rel.qualified_name, lsn=str(rel.lsn))
        if joined:
            faults.reach("handed_over")
        self._worker = None
        if TableSyncWorker.needed(self.catalog, self.subscription.name):
            self._worker = TableSyncWorker(
                self.subscription,
                session.fork(self.spark),
                self.catalog,
                give_up_after=self.give_up_after,
                copy_limit=self.copy_limit,
            )
            self._worker.thread.start()

    def set_apart(
        self, errors: Mapping[RelRow, BridgeError], stopping: threading.Event, look: Callable[[], ServerHistory]
    ) -> None:
        """Leave tables that could not be copied to a tablesync worker, which tries them again beside the stream."""
        refresh.take_up(self.catalog, self.subscription.name, 0, bring_in=list(errors), follow=(), remove=())
        for rel, error in errors.items():
            name = sync_name(self.subscription.name)
            self.catalog.record_error(name, str(error), counter=None, relation=rel.qualified_name)
            if counts_in_copy(error):
                refresh.count_sync_error(self.catalog, self.subscription.name)
        self.take_over(stopping, look)

    def stream_should_end(self) -> bool:
        """Whether the subscription's stream should end between two batches, to begin again with other tables."""
        if not self._running and not TableSyncWorker.needed(self.catalog, self.subscription.name):
            self._worker = None
        if self._worker is not None and not self._worker.gave_up:
            return self._worker.within_reach.is_set() or not self._running
        return bool(refresh.asked(self.catalog, self.subscription.name))

    def stop(self) -> None:
        """Stop the worker, and wait for its end."""
        worker = self._worker
        while worker is not None and worker.thread.is_alive():
            worker.stop()  # repeatedly, because it may have begun another copy
            worker.thread.join(_LOOK_INTERVAL_S)
