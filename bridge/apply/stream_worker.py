"""What a subscription's two workers have in common: attempts, pauses between them, and what an attempt is made of.

One runs the subscription (`bridge.service.subscriber`); the other copies tables that were added, and brings them up to
it (`bridge.sync.tablesync_worker`). Each has a slot, an origin and a stream of its own, and is the control of its
stream (`bridge.apply.context.Control`). What is counted, and when a worker gives up, each decides for itself.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pgbridge.bridge.apply.context import Context, Control
from pgbridge.bridge.apply.published import Published, kept_types
from pgbridge.bridge.catalog import catalog_rows, notes, refresh
from pgbridge.bridge.receive.filter_server import FilterServer
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.runtime.errors import StateError, is_own, let_go, may_retry
from pgbridge.bridge.runtime.threads import Heartbeat, backoff_s, jittered_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription

_LOOK_INTERVAL_S = 0.5


class StreamWorker(Control):
    """A thread that streams from a slot, and tries again after errors.

    Args:
        subscription: What is streamed: its name is that of the worker's rows in the catalog.
        spark: A Spark session of its own.
        catalog: The process's catalog.

    Attributes:
        error: The error that ended the worker; None if it ended without one.
        gave_up: Whether it ended by an error after which another one is not to be started at once.
        heartbeat: Beats while the worker makes progress or waits for something.
    """

    def __init__(
        self,
        subscription: Subscription,
        spark: SparkSession,
        catalog: Catalog,
        log: FilteringBoundLogger,
        *,
        thread_name: str,
    ) -> None:
        self.subscription = subscription
        self.error: BaseException | None = None
        self.gave_up = False
        self.heartbeat = Heartbeat()
        self._name, self._owner_name = subscription.name, catalog_rows.owner_of(subscription.name)
        self._spark = spark
        self._catalog = catalog
        self._log = log
        self._status = notes.WorkerStatus(catalog, self._name, log)
        self._owner_status = notes.WorkerStatus(catalog, self._owner_name, log)
        self._stop = threading.Event()
        self._soon = threading.Event()
        self._context = Context(subscription, spark, catalog, log, self._stop.is_set, self.heartbeat)
        self._failures = 0
        self.thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    # --- what each kind of worker decides ---------------------------------------------------------------------------

    @abstractmethod
    def _run(self) -> None:
        """Make attempts, and end."""

    @abstractmethod
    def _attempt(self) -> bool:
        """Stream once; returns whether the next attempt is to begin at once."""

    @abstractmethod
    def _is_no_failure(self, error: Exception) -> bool:
        """Whether an error ends the worker, and is not to be recorded."""

    @abstractmethod
    def _record(self, error: Exception, pause_s: float) -> None:
        """Record an error, and count it; the next attempt comes after a pause."""

    @abstractmethod
    def _gives_up(self, error: Exception, *, disabled: bool) -> bool:
        """Whether there is no other attempt after an error, which may have disabled the subscription."""

    @abstractmethod
    def _ends_pause(self, before: refresh.Wanted | None, wanted: refresh.Wanted | None) -> bool | None:
        """Whether what an operator has asked for ends a pause: to try again (True), or for good (False); None: not."""

    def retry_soon(self) -> None:
        """End the pause after an error, or after the attempt that runs. May be called by any thread."""
        self._soon.set()

    # --- attempts, and pauses after errors --------------------------------------------------------------------------

    def _attempts(self) -> Exception | None:
        """Make attempts until one is the last; returns the error that ended them."""
        again = True
        while again and not self._stop.is_set() and self._owner_status.enabled():
            try:
                again = self._attempt()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is recorded and tried again
                if (pause_s := self._failed(error)) is None:
                    return error
                again = self._pause(pause_s)
        return None

    def _failed(self, error: Exception) -> float | None:
        """Record an error; returns the pause before the next attempt, the longest one if the error needs an operator.

        None if there is none: the worker was stopped, the subscription is disabled, or the worker gives up.
        """
        if self._is_no_failure(error):
            return None
        self._failures += 1
        longest_s = self.subscription.workers.retry_max_s
        pause_s = jittered_s(backoff_s(self._failures, longest_s)) if may_retry(error) else longest_s
        self._record(error, pause_s)
        let_go(error)
        if self._stop.is_set():
            return None
        disabled = self.subscription.disable_on_error and is_own(error) and self._disable()
        return None if self._gives_up(error, disabled=disabled) else pause_s

    def _pause(self, pause_s: float) -> bool:
        """Wait; `stop`, `retry_soon`, DISABLE, SKIP and REFRESH end the wait. Returns whether to try again."""
        end_s = time.monotonic() + pause_s
        before = refresh.wanted(self._catalog, self._owner_name)
        while (left_s := end_s - time.monotonic()) > 0 and self._owner_status.enabled():
            if self._soon.is_set() or self._stop.wait(min(left_s, _LOOK_INTERVAL_S)):
                break
            wanted = refresh.wanted(self._catalog, self._owner_name)
            if (again := self._ends_pause(before, wanted)) is not None:
                return again
            self._status.write()
            self.heartbeat.beat()
        self._soon.clear()
        return True

    def _disable(self) -> bool:
        """Disable the subscription, as disable_on_error has it; returns False if the catalog cannot be written."""
        try:
            self._catalog.set_enabled(self._owner_name, enabled=False)
        except StateError as error:
            self._log.error("subscription cannot be disabled (disable_on_error)", error=str(error))
            return False
        self._log.warning("subscription disabled because of an error (disable_on_error)")
        return True

    # --- what an attempt begins with --------------------------------------------------------------------------------

    @contextmanager
    def _connected(self) -> Iterator[tuple[Publisher, Callable[[], Published]]]:
        """Connect; gives the server, and what reads the tables that are published."""
        with (
            Publisher(self.subscription.connection, application_name=self._name) as publisher,
            FilterServer(self.subscription) as filter_server,
        ):

            def published() -> Published:
                followed = self._catalog.rels_by_name(self._owner_name, catalog_rows.sync_name(self._owner_name)).keys()
                types = kept_types(publisher, self._catalog, self._owner_name)
                return Published.read(self.subscription, publisher, self._log, filter_server, followed, types)

            yield publisher, published
