"""The process: its lock, its signals, Spark, a worker for each enabled subscription, and its exit code."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

from bridge import faults, log, session
from bridge.memory import keep_freed
from bridge.status import copies_of
from bridge.subscriber import SubscriptionWorker
from bridge.track.catalog import Catalog, catalog_path
from bridge.track.lock import locked

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

    from bridge.bar import CopyBars
    from bridge.config import Config

FAULT_VARIABLE = "PGBRIDGE_FAULT"
"""For tests: `point` or `point:n`, at whose n-th passing the process kills itself, as kill -9 would."""

_TURN_S = 0.5
_EXIT_AT_ONCE = 130


class Daemon:
    """Runs all enabled subscriptions of a configuration.

    Args:
        config: The configuration.
        until_caught_up: End when every subscription has applied what its publisher had flushed at the start.
        bars: Shows the copies under way.
    """

    def __init__(self, config: Config, *, until_caught_up: bool = False, bars: CopyBars | None = None) -> None:
        self._config = config
        self._until_caught_up = until_caught_up
        self._bars = bars
        self._stop = threading.Event()
        self._log = log.get()
        self._workers: dict[str, SubscriptionWorker] = {}
        self._failed: set[str] = set()

    def run(self) -> int:
        """Run until SIGTERM or SIGINT (or until caught up); a second signal ends the process at once.

        Returns:
            The exit code: 0 after a clean stop, 1 when a subscription failed for good.

        Raises:
            StateError: The state directory is in use or cannot be used.
        """
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        _install_fault()
        with locked(self._config.state_dir):
            catalog = Catalog(catalog_path(self._config.state_dir))
            for subscription in self._config.subscription.values():
                catalog.register(subscription.name, enabled=subscription.enabled)
            self._log.info("starting Spark", master=self._config.spark.master)
            spark = session.start(self._config.spark.master, self._config.spark.conf)
            keep_freed()
            try:
                self._supervise(spark, catalog)
            finally:
                self._end(catalog)
                spark.stop()
                catalog.close()
        self._log.info("stopped", failed=sorted(self._failed))
        return 1 if self._failed else 0

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._stop.is_set():
            os._exit(_EXIT_AT_ONCE)  # what is not recorded is done again at the next start
        self._log.info("stopping after the batch under way", signal=signal.Signals(number).name)
        self._stop.set()

    def _supervise(self, spark: SparkSession, catalog: Catalog) -> None:
        """Have a worker for each enabled subscription; ENABLE and DISABLE work while the daemon runs."""
        self._start_workers(spark, catalog)
        while not self._stop.is_set():
            self._reap()
            if self._until_caught_up and not self._workers:
                return
            if not self._until_caught_up:
                self._start_workers(spark, catalog)
            if self._bars is not None:
                self._bars.show({name: copies_of(catalog, name) for name in self._workers})
            self._stop.wait(_TURN_S)

    def _start_workers(self, spark: SparkSession, catalog: Catalog) -> None:
        for name, subscription in self._config.subscription.items():
            row = catalog.subscription(name)
            if name in self._workers or name in self._failed or row is None or not row.enabled:
                continue
            worker = SubscriptionWorker(
                subscription, session.fork(spark), catalog, until_caught_up=self._until_caught_up
            )
            self._workers[name] = worker
            worker.thread.start()

    def _reap(self) -> None:
        for name, worker in list(self._workers.items()):
            if not worker.thread.is_alive():
                del self._workers[name]
                # One that disabled itself is let run again by ENABLE; what else ends a worker needs a restart.
                for_good = self._until_caught_up or not worker.disabled
                if worker.error is not None and for_good and not self._stop.is_set():
                    self._failed.add(name)

    def _end(self, catalog: Catalog) -> None:
        if self._bars is not None:
            self._bars.close()
        for worker in self._workers.values():
            worker.stop()
        for worker in self._workers.values():
            worker.thread.join()
        self._reap()
        for name in self._config.subscription:
            row = catalog.subscription(name)
            if row is not None and row.state not in {"disabled", "stopped"}:
                catalog.set_state(name, "stopped")


def _install_fault() -> None:
    """Read the tests' variable; see `bridge.faults`."""
    wanted = os.environ.get(FAULT_VARIABLE)
    if not wanted:
        return
    point, _, count = wanted.partition(":")
    left = int(count or 1)
    lock = threading.Lock()

    def kill(reached: str) -> None:
        nonlocal left
        with lock:
            if reached == point:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    faults.install(kill)
