"""The daemon: locks the state directory, starts Spark, and runs a worker for each enabled subscription."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pgbridge.bridge.apply.suspects import SUSPECTS
from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.check import finding, machine, report
from pgbridge.bridge.commands.status import CopyProgressBars, size_text
from pgbridge.bridge.monitor import document, server, view
from pgbridge.bridge.receive.slot_watch import SlotWatch
from pgbridge.bridge.recovery.standby import STATE as STANDBY, Standby
from pgbridge.bridge.runtime import errors, faults, log, process, remedies, supervisor, threads
from pgbridge.bridge.service.reload import Reload, ReloadPlan
from pgbridge.bridge.service.subscriber import SubscriptionWorker
from pgbridge.bridge.service.warm_up import WarmUp
from pgbridge.bridge.snapshots.commits_table import CommitRows
from pgbridge.bridge.snapshots.completeness import Completeness
from pgbridge.bridge.spark import session
from pgbridge.bridge.spark.driver import JvmWatch
from pgbridge.bridge.spark.launch import Launch, Starting
from pgbridge.bridge.sync.copy_progress import CopyLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from pgbridge.bridge.catalog.catalog_rows import SubscriptionRow
    from pgbridge.bridge.config.config import Config, Subscription

FAULT_VARIABLE = "PGBRIDGE_FAULT"
"""For tests: at the n-th time that a fault point is reached, the process kills itself. `point`, or `point:n`."""

_TURN_S = 0.5
_SIGNAL_S = 0.1
_DEATHS, _DEATHS_WITHIN_S = 12, 600.0
"""After so many deaths within that time, one more ends `run --until-caught-up`: nobody would wait for ever."""
_LONGEST_PAUSE_S = 60.0
"""Before the JVM is started again: the pause grows with its deaths within that time."""
_AGAIN_S = 5.0
_SERVER_PAUSE_S = 15.0
"""The longest pause between two tries to reach a Connect server that is away."""
_JVM_PATIENCE_S = 5.0
"""How long to wait for a JVM that is being launched, to kill it. A slower one ends by itself: its standard input is
closed."""


class Daemon:
    """Runs all enabled subscriptions of a configuration.

    Args:
        config: The configuration.
        signals: The signals that stop it.
        until_caught_up: End when every subscription has applied what its publisher had flushed at the start.
        standby: Wait until no other daemon has the subscriptions, and go on in its place.
        bars: Shows the copies under way; None without a terminal.
        read: Reads the configuration file again; None if there is none.
    """

    def __init__(
        self,
        config: Config,
        signals: supervisor.StopSignals,
        *,
        until_caught_up: bool = False,
        standby: bool = False,
        bars: CopyProgressBars | None = None,
        read: Callable[[], Config] | None = None,
    ) -> None:
        self._config = config
        self._driver = session.driver_for(config.spark.master)
        self._signals = signals
        self._until_caught_up = until_caught_up
        self._waits = standby
        self._taken_over: dict[str, errors.TakenOver] = {}
        self._bars = bars
        self._log = log.get()
        self._workers: dict[str, SubscriptionWorker] = {}
        self._failed: set[str] = set()
        self._outdated: set[str] = set()
        self._service = supervisor.Service(os.environ, os.getpid())
        self._reload = Reload(None if until_caught_up else read, lambda: signals.hangups, config)
        self._again: dict[str, tuple[float, object]] = {}
        self._copy_limit = CopyLimit(config.copies_at_once)
        self._deaths: list[float] = []
        self._warm_up: WarmUp | None = None
        self._done = False
        self._started_s = time.monotonic()
        self._spark_state = "starting"
        self._restarts = 0
        self._watch = SlotWatch(self._with_slots)
        self._catalog: Catalog | None = None
        self._monitor = server.Monitor(
            config.http,
            view.Sources(
                config=lambda: self._config,
                slots=self._watch.health,
                heap=self._driver.heap,
                spark=lambda: self._spark_state,
                restarts=lambda: self._restarts,
            ),
        )

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until caught up.

        Returns:
            The exit code: 1 with `until_caught_up` if a subscription has failed, else 0.

        Raises:
            StateError: The state directory is in use or cannot be used.
            SparkLost: Spark cannot be started the first time; or its JVM has died too often for `until_caught_up`.
            TakenOver: Another machine goes on with a subscription.
        """
        self._check_memory()
        self._raise_limit()
        _install_fault()
        state_dir = self._config.state_dir
        warehouses = [subscription.warehouse for subscription in self._config.subscription.values()]
        with locked(state_dir), self._monitor, self._watch, self._driver.lock(state_dir) as keep_open:
            catalog = self._catalog = Catalog(catalog_path(state_dir))
            try:
                for subscription in self._config.subscription.values():
                    catalog.register(subscription.name, enabled=subscription.enabled)
                self._all_stopped(catalog)  # a daemon that was killed has left what it did
                if not self._waits:
                    report.preflight(self._config, catalog, self._log)
                self._monitor.start(catalog)
                self._watch.start()
                while (spark := self._started_spark(warehouses, keep_open)) is not None:
                    process.keep_freed()
                    threads.share_interpreter(len(self._config.subscription))
                    SUSPECTS.jvm_started(self._driver)
                    with JvmWatch(self._log, self._driver), self._completeness(spark, catalog):
                        try:
                            self._wait_as_standby(spark, catalog)
                            if not self._waits:
                                self._supervise(spark, catalog)
                        finally:
                            self._end(catalog)
                            self._driver.stop(spark)
                    lost = self._driver.lost()
                    if lost is None or self._stopping or self._done or self._is_taken_over(catalog):
                        break
                    self._wait_to_start(self._bury(lost))
            finally:
                catalog.close()
        told = {"failed": sorted(self._failed), "signal": self._signals.name}
        self._log.info("stopped", **{key: value for key, value in told.items() if value})
        if self._taken_over and not self._stopping:
            raise next(iter(self._taken_over.values()))
        return 1 if self._failed and self._until_caught_up else 0

    def _with_slots(self) -> list[Subscription]:
        """Return the subscriptions whose slots exist, disabled ones included."""
        if (catalog := self._catalog) is None or self._waits:  # a standby would take it for the daemon that streams
            return []
        return [sub for sub in self._config.subscription.values() if catalog.remote_lsn(sub.name) is not None]

    def _check_memory(self) -> None:
        """Warn if memory is too small, before the kernel kills a process."""
        needed = self._driver.memory_bytes(self._config.spark.conf) + process.OWN_BYTES
        available = process.available_bytes()
        if available is not None and needed > available:
            self._log.warning(
                "the available memory is too small for Spark's heap and its Python workers",
                needed=size_text(needed),
                available=size_text(available),
                hint='set a lower "spark.driver.memory" in [spark.conf], or master = "local[N]" with a smaller N',
            )

    def _raise_limit(self) -> None:
        """Allow as many file descriptors as this process may have, and warn if that is too few."""
        process.raise_limit()
        limit_finding = machine.check_descriptors(sum(sub.enabled for sub in self._config.subscription.values()))
        if limit_finding.level is not finding.Level.PASS:
            self._log.warning(f"too few file descriptors: {limit_finding.message}", hint=limit_finding.remedy)

    def _bury(self, lost: str) -> float:
        """Record the JVM's death, or the loss of a Connect server; return the pause before the next start.

        Raises:
            SparkLost: With `until_caught_up`: the JVM has died too often.
        """
        if not self._driver.is_ours:
            self._restarts += 1
            self._log.error(self._driver.loss, reason=lost)
            self._driver = self._driver.forget()
            return 0.0
        now_s = time.monotonic()
        self._deaths = [*(death_s for death_s in self._deaths if now_s - death_s < _DEATHS_WITHIN_S), now_s]
        hint = self._driver.hint(lost)
        under_way = SUSPECTS.jvm_died(lost)
        if self._until_caught_up and len(self._deaths) > _DEATHS:
            raise errors.SparkLost(
                f"Spark's JVM has died {len(self._deaths)} times within {_DEATHS_WITHIN_S / 60:.0f} minutes; "
                f"the last time {lost}",
                hint=hint,
            )
        self._restarts += 1
        pause_s = threads.backoff_s(len(self._deaths), _LONGEST_PAUSE_S)
        self._log.error(
            "Spark's JVM has died; it is started again, and what was under way is tried alone",
            reason=lost,
            hint=hint,
            under_way=under_way,
            again_in_s=pause_s,
        )
        self._driver = self._driver.forget()
        return pause_s

    def _wait_to_start(self, pause_s: float) -> None:
        self._spark_state = "starting"
        end_s = time.monotonic() + pause_s
        while not self._stopping and time.monotonic() < end_s:
            self._turn_without_spark()
            self._pause(min(_TURN_S, pause_s))

    def _turn_without_spark(self) -> None:
        self._service.turn(())
        with suppress(errors.StateError):  # the catalog cannot be used now
            if self._catalog is not None:
                self._see_disabled(self._catalog, self._catalog.subscriptions())

    @property
    def _stopping(self) -> bool:
        return self._signals.name is not None

    def _started_spark(self, warehouses: Sequence[str], keep_open: int | None) -> SparkSession | None:
        """Start Spark, again and again if it ran before, or its Connect server is away. None after a signal.

        Raises:
            SparkLost: Spark cannot be started the first time.
        """
        failures = 0
        while True:
            try:
                return self._start_spark(warehouses, keep_open)
            except errors.SparkLost as error:
                ours = self._driver.is_ours
                if not self._restarts or (self._until_caught_up and ours):
                    raise
                failures += 1
                pause_s = threads.backoff_s(failures, _SERVER_PAUSE_S)
                said = "Spark cannot be started again now" if ours else "the Spark Connect server is away"
                self._log.warning(said, error=error.message, again_in_s=pause_s)
                self._driver.kill()  # a JVM that came half way
                self._driver = self._driver.forget()
                self._wait_to_start(pause_s)
                if self._stopping:
                    return None

    def _start_spark(self, warehouses: Sequence[str], keep_open: int | None) -> SparkSession | None:
        """Start Spark, in a thread, because PySpark handles SIGINT itself in the main thread; None after a signal."""
        log = self._config.state_dir / "spark.log"
        self._log.info("starting Spark", master=self._driver.shown, log=str(log))
        self._service.status("starting Spark")
        self._spark_state = "starting"
        launch = Launch(log, keep_open, folder=self._config.state_dir)
        start = partial(self._driver.start, self._config.spark.conf, warehouses, launch)
        starting = Starting(log)
        started = threads.detached(start, "start of Spark")
        while not started.done() and not self._stopping:
            wait([started], timeout=_SIGNAL_S)
            if news := starting.news():
                self._log.info("Spark is starting", **news)
            self._monitor.turn()
            self._turn_without_spark()
        if self._stopping:
            end_s = time.monotonic() + _JVM_PATIENCE_S
            while not self._driver.kill() and not started.done() and time.monotonic() < end_s:
                wait([started], timeout=_SIGNAL_S)
            return None
        try:
            return started.result()
        except errors.BridgeError:
            raise
        except Exception as error:
            raise machine.not_started(error, os.environ, log) from error

    def _completeness(self, spark: SparkSession, catalog: Catalog) -> Completeness:
        """Tells readers how complete tables are, while the JVM lives."""
        return Completeness(
            catalog,
            lambda: [*self._config.subscription.values()],
            self._watch.complete,
            partial(CommitRows.of, spark),
            self._log,
        )

    def _wait_as_standby(self, spark: SparkSession, catalog: Catalog) -> None:
        """Wait until this daemon is to go on with the subscriptions: at once if it is no standby, or was the last."""
        if not self._waits:
            return
        self._spark_state = "running"
        self._service.ready()
        self._service.status("standby: another daemon streams")
        with suppress(errors.StateError):  # a full disk ends nothing
            for name, state in self._states(catalog).items():
                if state != "disabled":
                    catalog.set_state(name, STANDBY)
        WarmUp(spark).begin(())  # the first batch is waited for
        with Standby(list(self._config.subscription.values()), catalog, self._log) as standby:
            while not self._stopping and self._driver.lost() is None:
                try:
                    self._waits = not standby.turn(spark)
                except errors.SparkLost:
                    return
                if not self._waits:
                    report.preflight(self._config, catalog, self._log)
                    return
                self._monitor.turn()
                self._service.turn(())
                self._pause()

    def _supervise(self, spark: SparkSession, catalog: Catalog) -> None:
        """Keep a worker running for each enabled subscription, and follow ENABLE and DISABLE.

        Returns when the process is to stop, when everything has caught up, or when the JVM has died.
        """
        self._spark_state = "running"
        self._warm_up = WarmUp(spark)
        watch = self._driver.watch(spark, self._log)
        self._start_workers(spark, catalog)
        self._service.ready()
        while not self._stopping and not self._is_taken_over(catalog):
            if self._driver.lost() is not None:
                return
            if watch is not None and (why := watch()) is not None:
                self._log.error("Spark's driver is ended, and started again", reason=why)
                self._driver.kill()
                return
            self._reap()
            if self._until_caught_up and not self._workers and self._driver.lost() is None:
                self._done = True
                return
            try:
                if self._reload.asked(catalog):
                    self._reread(catalog)
                if not self._until_caught_up:
                    self._start_workers(spark, catalog)
                if self._bars is not None:
                    self._bars.show({name: document.copies_of(catalog, name) for name in self._workers})
                if self._service.listens:
                    self._service.status(supervisor.status_line(self._states(catalog)))
            except errors.StateError as error:  # the workers log it, and go on when the catalog can be used again
                self._log.debug("the catalog cannot be used now", error=str(error))
            self._monitor.turn()
            self._service.turn(worker.heartbeat.at_s for worker in self._workers.values())
            self._pause()
        SUSPECTS.stop_waiting()
        self._service.stopping()
        self._service.status("stopping after the current batch")
        self._log.info("stopping after the current batch", signal=self._signals.name)

    def _is_taken_over(self, catalog: Catalog) -> bool:
        """Whether another machine goes on with all subscriptions that are enabled here."""
        if not self._taken_over:
            return False
        with suppress(errors.StateError):  # the catalog cannot be used now
            enabled = {name for name, row in catalog.subscriptions().items() if row.enabled}
            return enabled & self._config.subscription.keys() <= self._taken_over.keys()
        return False

    def _states(self, catalog: Catalog) -> dict[str, str]:
        rows = catalog.subscriptions()
        return {name: rows[name].state for name in self._config.subscription if name in rows}

    def _reread(self, catalog: Catalog) -> None:
        self._service.reloading()
        try:
            if (planned := self._reload.take_up(self._config, catalog)) is not None:
                self._adopt(planned)
        finally:
            self._service.ready()

    def _adopt(self, planned: ReloadPlan) -> None:
        """Go on with another configuration: what is outdated stops as by DISABLE, and `_start_workers` does the rest.

        Subscriptions that had failed, or wait after an error, are tried again: the operator may have acted on what the
        file does not show.
        """
        self._config = planned.config
        threads.share_interpreter(len(planned.config.subscription))
        self._copy_limit.change(planned.config.copies_at_once)
        self._outdated |= planned.outdated & self._workers.keys()
        self._failed.clear()
        self._again.clear()
        SUSPECTS.forget()
        for worker in self._workers.values():
            worker.look_soon()

    def _pause(self, seconds: float = _TURN_S) -> None:
        """Wait for the next turn; a signal ends the wait."""
        end_s = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < end_s:
            time.sleep(_SIGNAL_S)
            self._monitor.turn()

    def _start_workers(self, spark: SparkSession, catalog: Catalog) -> None:
        rows = catalog.subscriptions()
        self._see_disabled(catalog, rows)
        for name in self._outdated:
            self._workers[name].stop()  # repeatedly, because its copies may have begun other Spark jobs
        for name, subscription in self._config.subscription.items():
            row = rows.get(name)
            if name in self._workers and row is not None and not row.enabled:
                self._workers[name].stop()  # cuts a copy short
            if name in self._workers or row is None or not row.enabled:
                continue
            until_s, wanted = self._again.get(name, (0.0, None))
            if time.monotonic() < until_s and self._wanted(name) == wanted:
                continue
            try:
                forked = session.fork(spark)
            except Exception as error:
                if self._driver.lost(error) is None:
                    raise
                return  # another JVM is started, and then this worker is
            worker = SubscriptionWorker(
                subscription,
                forked,
                catalog,
                until_caught_up=self._until_caught_up,
                copy_limit=self._copy_limit,
                warm_up=self._warm_up,
                observer=self._monitor.observer(name),
            )
            self._workers[name] = worker
            self._failed.discard(name)
            self._taken_over.pop(name, None)
            worker.thread.start()

    def _wanted(self, name: str) -> object:
        """What an operator asks of a subscription: a change of it ends the pause after an error, as in its worker."""
        return None if self._catalog is None else refresh.wanted(self._catalog, name)

    def _see_disabled(self, catalog: Catalog, rows: Mapping[str, SubscriptionRow]) -> None:
        """Forget why subscriptions without a worker ended, if they are disabled: ENABLE starts them at once."""
        for name in self._config.subscription.keys() - self._workers.keys():
            row = rows.get(name)
            if row is not None and not row.enabled:
                self._failed.discard(name)
                self._again.pop(name, None)
                SUSPECTS.forget(name)
                if row.state not in {"disabled", "stopped"}:
                    catalog.set_state(name, "disabled")  # its worker ended with the JVM, and `drop` waits for this

    def _reap(self) -> None:
        """Remove workers that have ended, and log unexpected ends."""
        for name, worker in list(self._workers.items()):
            if worker.thread.is_alive():
                continue
            del self._workers[name]
            outdated = name in self._outdated
            self._outdated.discard(name)
            if self._driver.lost() is not None or outdated:
                continue
            if worker.error is None:
                if self._until_caught_up and not self._stopping and not worker.disabled:
                    self._tell_caught_up(name)
                continue
            if isinstance(worker.error, errors.TakenOver):
                self._taken_over[name] = worker.error
            if self._until_caught_up or worker.gave_up:
                self._failed.add(name)
                pause_s = math.inf if self._until_caught_up else worker.subscription.workers.retry_max_s
                self._again[name] = time.monotonic() + pause_s, self._wanted(name)
            elif not worker.disabled:  # one that disabled itself waits for ENABLE
                self._log.error(
                    "a subscription's worker ended unexpectedly; it is started again",
                    subscription=name,
                    error=repr(worker.error),
                    exc_info=worker.error,
                )
                self._again[name] = time.monotonic() + _AGAIN_S, self._wanted(name)

    def _tell_caught_up(self, name: str) -> None:
        with suppress(errors.StateError):  # the catalog cannot be used now
            if (catalog := self._catalog) is not None and (lsn := catalog.remote_lsn(name)) is not None:
                seconds = round(time.monotonic() - self._started_s, 1)
                told = {"subscription": name, "remote_lsn": str(lsn), "tables": len(catalog.rels(name))}
                if told["tables"] or not self._config.subscription[name].needs_tables:
                    self._log.info("caught up", **told, seconds=seconds)
                else:
                    self._log.warning("caught up, and follows no table", **told, hint=remedies.of_no_table(name))

    def _end(self, catalog: Catalog) -> None:
        if self._bars is not None:
            self._bars.close()
        while any(worker.thread.is_alive() for worker in self._workers.values()):
            for worker in self._workers.values():
                worker.stop()  # repeatedly, because its copies may have begun other Spark jobs
            for worker in self._workers.values():
                worker.thread.join(_TURN_S)
                self._monitor.turn()  # the last batch may take minutes, and nobody should kill a daemon that ends
        self._reap()
        if self._driver.lost() is not None and not self._stopping:
            self._all_stopped(catalog, "starting", but=("error",))  # they go on with another JVM
        else:
            self._all_stopped(catalog)

    def _all_stopped(self, catalog: Catalog, state: str = "stopped", but: Sequence[str] = ()) -> None:
        """Record that no subscription has a worker."""
        try:
            for name in self._config.subscription:
                row = catalog.subscription(name)
                if row is not None and row.state not in {"disabled", "stopped", *but}:
                    catalog.set_state(name, state)
        except errors.StateError as error:
            self._log.error("the state of the stopped subscriptions cannot be written", error=str(error))


def _install_fault() -> None:
    """Install the fault of the environment variable; see `bridge.runtime.faults`."""
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
