"""The demo: pgbridge on a private PostgreSQL, from the initial copy through a `kill -9` to a comparison of all rows.

It is no test, but it fails like one. The Delta tables stay, so that the user can query them; every process that the
demo starts ends with it, however it ends.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from rich.console import Console

from bridge.config import config
from bridge.demo import proof, shop
from bridge.demo.child import Child
from bridge.demo.folder import DemoFolder
from bridge.demo.programs import PACKAGES, EmbeddedPostgresError, package_root
from bridge.demo.screen import Screen
from bridge.demo.server import EmbeddedPostgres
from bridge.demo.watch import Watch
from bridge.runtime import remedies
from bridge.runtime.errors import BridgeError
from bridge.spark import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from bridge.demo.watch import SubscriptionView
    from protocol.lsn import Lsn

LOAD_PER_S: Final = 100.0
"""Transactions per second; two cores also run Spark and the server."""

_SCALE: Final = 10
"""Ten times the shop's smallest size: about half a million rows."""

_LOOK_EVERY_S = 0.25
_DOWN_S = 2.0  # how long pgbridge stays down after kill -9
_BATCH_S = 5.0  # how long to wait for a batch before kill -9
_PATIENCE_S = 300.0  # for Spark's start, the copy, and the last batches, each of some ten seconds on two cores
_NICE: Final = 4  # of Spark for the proof, while the daemon works
_INTERRUPTED = 130
# with SIGINT, because a background job of a shell ignores it by default
_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_demo(directory: Path, seconds: float) -> int:
    """Run the demo; it prints what happens on standard output.

    Args:
        directory: Folder for its files: a new or empty one, or an earlier demo's, whose files are replaced.
        seconds: How long pgbridge follows the load; its starts and the initial copy come on top.

    Returns:
        The exit code: 0 if all Delta tables equal their published tables, 1 if not, 130 after Ctrl-C or SIGTERM.

    Raises:
        BridgeError: The demo cannot run here, or something failed.
    """
    try:
        package_root(PACKAGES[0])
    except EmbeddedPostgresError as error:
        raise BridgeError(
            f"the demo needs its own PostgreSQL: {error}", hint=f"run: {remedies.install('demo')}"
        ) from error
    folder = DemoFolder(directory)
    with folder.taken(), _signals_interrupt(), Screen(Console(highlight=False)) as screen:
        try:
            with ExitStack() as stack:
                return Show(folder, screen, stack).run(seconds)
        except EmbeddedPostgresError as error:
            raise BridgeError(str(error)) from error
        except KeyboardInterrupt:
            screen.close()
            screen.tell("interrupted: all processes of the demo have ended", style="yellow")
            return _INTERRUPTED


class Show:
    """The steps of the demo. The constructor starts the server and the load, and writes the configuration.

    Args:
        screen: Shows what happens.
        stack: Ends what the steps start.
    """

    def __init__(self, folder: DemoFolder, screen: Screen, stack: ExitStack) -> None:
        self._folder = folder
        self._screen = screen
        self._stack = stack
        self._conninfo = self._open_shop()
        self._settings = config.load(folder.config_file)
        self._watch = stack.enter_context(closing(Watch(folder.config_file, self._conninfo)))
        self._load = shop.ShopLoad(self._conninfo)
        stack.callback(self._load.stop)
        self._load.start(LOAD_PER_S)
        screen.tell(f"the load starts: up to {LOAD_PER_S:.0f} transactions a second")
        self._bridge: Child | None = None
        self._told_errors: set[str] = set()

    def _open_shop(self) -> str:
        """Start the server, create the shop, write the configuration; return the connection string."""
        self._screen.tell("a private PostgreSQL starts")
        # without fsync: nobody needs this server after a crash of the machine
        server = self._stack.enter_context(EmbeddedPostgres(fsync=False))
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
        conninfo = server.conninfo("shop")
        shop.create(conninfo, _SCALE)
        self._folder.write_config(conninfo)
        self._screen.tell(
            f"PostgreSQL {server.version} runs, with a shop of five tables and two publications:"
            " shop_pub has everything, vip_pub some rows and columns of one table"
        )
        return conninfo

    def run(self, seconds: float) -> int:
        """Run all steps; return the exit code."""
        self._start_bridge("pgbridge starts, and copies the tables while the load goes on")
        self._until("the initial copy", lambda views: all(view.copied for view in views))
        self._screen.tell("every table is copied and follows the stream")
        self._for(seconds / 2)
        self._kill()
        lsn = self._watch.flush_lsn()
        self._start_bridge("pgbridge starts again, and goes on where it was")
        self._until("going on after kill -9", lambda views: all(view.reached(lsn) for view in views))
        self._screen.tell("it has applied everything that was committed while it was down")
        applied = threading.Event()
        with ThreadPoolExecutor(2, "proof") as pool, ExitStack() as ended:
            ended.callback(applied.set)  # also after an error
            spark = pool.submit(self._start_spark, applied)
            self._for(seconds / 2)
            self._load.stop()
            self._screen.tell(f"the load is over: {self._load_text()}")
            with proof.Snapshot(self._conninfo) as snapshot:
                self._screen.tell(f"the proof begins to read: PostgreSQL's rows at LSN {snapshot.lsn}")
                published = pool.submit(proof.read, snapshot)
                self._until("catching up", lambda views: all(view.reached(snapshot.lsn) for view in views))
                applied.set()
                self._screen.tell("it has applied everything up to there, and Spark begins to compare all rows")
                compared = pool.submit(lambda: self._compare(spark.result(), published.result()))
                self._stop_bridge()
                return self._prove(compared.result(), snapshot.lsn)

    def _start_bridge(self, event: str) -> None:
        self._bridge = self._stack.enter_context(closing(Child(self._folder.config_file, self._folder.log)))
        self._screen.tell(f"{event} (process {self._bridge.pid}, log in {_short(self._folder.log)})")

    def _kill(self) -> None:
        """`kill -9` pgbridge, in the middle of a batch if one begins soon enough."""
        deadline_s = time.monotonic() + _BATCH_S
        while (batch := self._watch.batch("shop")) is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        if self._bridge is not None:
            self._bridge.kill()
            doing = f", in the middle of the batch from {batch.start_lsn} to {batch.end_lsn}" if batch else ""
            self._screen.tell(f"kill -9 {self._bridge.pid}: pgbridge is dead{doing}", style="red")
        self._bridge = None
        self._for(_DOWN_S)

    def _stop_bridge(self) -> None:
        """Send SIGTERM; the exit status must be 0."""
        if self._bridge is not None:
            _succeeded(self._bridge, self._bridge.stop(), "pgbridge after SIGTERM")
            self._screen.tell("pgbridge has ended after SIGTERM")
        self._bridge = None

    def _start_spark(self, enough: threading.Event) -> SparkSession:
        """Start the Spark that reads the Delta tables for the proof, and warm it up until that is enough.

        It is not the daemon's, and takes what that leaves: on Linux, a process has the priority of the thread that
        starts it.
        """
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        with _stderr_to(self._folder.spark_log):
            spark = session.start(self._settings.spark.master, {**self._settings.spark.conf, **proof.SPARK_CONF})
        self._stack.callback(spark.stop)
        proof.warm_up(spark, self._warehouses().values(), enough)
        return spark

    def _compare(self, spark: SparkSession, published: Sequence[proof.PublishedRows]) -> list[proof.Verdict]:
        """Compare all tables."""
        return proof.prove(spark, published, self._warehouses())

    def _warehouses(self) -> dict[str, Path]:
        """The warehouse of each subscription."""
        return {name: Path(subscription.warehouse) for name, subscription in self._settings.subscription.items()}

    def _prove(self, verdicts: Sequence[proof.Verdict], lsn: Lsn) -> int:
        """Show the result of the comparison, and return the exit code."""
        self._screen.close()
        self._screen.verdicts(verdicts)
        if not all(verdict.equal for verdict in verdicts):
            self._screen.tell(f"NOT EQUAL at LSN {lsn}", style="bold red")
            return 1
        self._screen.tell(
            f"all {len(verdicts)} Delta tables equal their published tables at LSN {lsn}", style="bold green"
        )
        self._screen.tell(f"the Delta tables stay in {_short(self._folder.lake)}; query them with:")
        self._screen.paste(query_command(verdicts[0].path.parent / "orders"))
        return 0

    # --- waiting --------------------------------------------------------------------------------------------------

    def _until(self, what: str, happened: Callable[[list[SubscriptionView]], bool]) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not happened(self._look()):
            if time.monotonic() > deadline_s:
                raise BridgeError(f"{what} takes more than {_PATIENCE_S:g} s; see {self._folder.log}")

    def _for(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self._look(min(left_s, _LOOK_EVERY_S))

    def _look(self, pause_s: float = _LOOK_EVERY_S, *, running: bool | None = None) -> list[SubscriptionView]:
        """Show the current state, then wait; raise an error if the load or pgbridge has ended unexpectedly."""
        self._load.check()
        if self._bridge is not None:
            self._bridge.check()
        views = self._watch.look(running=self._bridge is not None if running is None else running)
        for view in views:
            if view.error and view.error not in self._told_errors:
                self._told_errors.add(view.error)
                self._screen.tell(f"{view.name} has an error, and tries again: {view.error}", style="yellow")
        self._screen.show(views, self._load_text())
        time.sleep(pause_s)
        return views

    def _load_text(self) -> str:
        return f"{self._load.committed:,} transactions committed, {self._load.rolled_back:,} rolled back"


def _succeeded(child: Child, status: int, what: str) -> None:
    if status:
        raise BridgeError(f"{what} ended with status {status}; the end of its log:\n{child.log_tail()}")


def query_command(table: Path) -> str:
    """Return a shell command that queries the shop's orders."""
    path = str(table).replace("`", "``")
    query = (
        f"SELECT status, count(*) AS orders, sum(total) AS total FROM delta.`{path}` GROUP BY status ORDER BY status"
    )
    code = f"from pgbridge import session; session.start('local[2]', {{}}).sql({query!r}).show()"
    return shlex.join([_short(Path(sys.executable)), "-c", code])


def _short(path: Path) -> str:
    """Return a path relative to the current folder, if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Make SIGTERM, and SIGHUP from a closed terminal, end the demo as Ctrl-C (SIGINT) does."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _INTERRUPTING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect standard error to a file. A JVM that starts meanwhile keeps it, and does not write on the screen."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
