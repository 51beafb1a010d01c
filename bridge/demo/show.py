"""The demo: pgbridge on a private PostgreSQL, from the initial copy through a `kill -9` to a comparison of all rows.

What is replicated is a shop, with a load on it. The demo is no test, but it fails like one. What it shows is what
`pgbridge status` and `pgbridge verify` show. The Delta tables stay, so that the user can query them; every process that
the demo starts ends with it, however it ends.
"""

from __future__ import annotations

import random
import shlex
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.commands.status import overview, size_text, tables
from pgbridge.bridge.config import config
from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.demo.subscriber import Child, DemoFolder
from pgbridge.bridge.monitor.document import StatusDocument, SubscriptionStatus, collect
from pgbridge.bridge.receive.slot_watch import ServerSlots
from pgbridge.bridge.runtime import errors, threads
from pgbridge.bridge.runtime.supervisor import EXIT_AT_ONCE, interruptible
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA: Final = Path(__file__).with_name("shop.sql")
"""The statements that create the shop's tables, first rows and publications, and a transaction of the load."""

_ROLLED_BACK: Final = 0.05  # the share of transactions that end in ROLLBACK
_CATCH_UP_S: Final = 0.25  # a load that is further behind its rate does not catch up


def create(conninfo: str) -> None:
    """Create the shop in an empty database."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(SCHEMA.read_bytes())


class ShopLoad(threads.Closing):
    """Customers, orders and page views, as a stream of transactions; a thread runs them from now on.

    Args:
        conninfo: The shop's database, as `create` left it.
        per_second: How many transactions it runs in a second, at most.

    Attributes:
        committed: Transactions committed.
        rolled_back: Transactions rolled back.
    """

    def __init__(self, conninfo: str, per_second: float) -> None:
        self.committed = 0
        self.rolled_back = 0
        self._pause_s = 1 / per_second
        self._error: Exception | None = None
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shop load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due_s = time.monotonic()
        try:
            while not self._stop.wait(due_s - time.monotonic()):
                undo = random.random() < _ROLLED_BACK
                with self._connection.transaction(force_rollback=undo):
                    self._connection.execute("SELECT step()")
                self.rolled_back += undo
                self.committed += not undo
                due_s = max(due_s + self._pause_s, time.monotonic() - _CATCH_UP_S)
        except Exception as error:  # noqa: BLE001 - raised again by `check`, in the thread that waits
            self._error = error

    def check(self) -> None:
        """Raise the error that ended the thread before `close`."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End after the current transaction, and close the connection."""
        self._stop.set()
        self._thread.join()
        self._connection.close()

    def __str__(self) -> str:
        return f"{self.committed:,} transactions committed, {self.rolled_back:,} rolled back"


LOAD_PER_S: Final = 100.0
"""Transactions per second; two cores also run Spark and the server."""

_LOOK_EVERY_S: Final = 0.25
_LINE_EVERY_S: Final = 4.0
_SERVER_S: Final = 3.0  # how long a look waits for the server
_DOWN_S: Final = 2.0  # how long pgbridge stays down after kill -9
_BATCH_S: Final = 5.0  # how long to wait for a batch before kill -9
_PATIENCE_S: Final = 300.0  # for Spark's start, the copy, the last batches, and the proof: each some ten seconds


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
    server = EmbeddedPostgres(fsync=False)  # nobody needs it after a crash of the machine
    folder = DemoFolder(directory)
    screen = Screen(Console(highlight=False))
    try:
        with screen, interruptible(), folder.taken(), ExitStack() as stack:
            return Show(folder, screen, stack, server).run(seconds)
    except KeyboardInterrupt:
        screen.tell("interrupted: all processes of the demo have ended", style="yellow")
        return EXIT_AT_ONCE


def serve(tell: Callable[[str], None]) -> None:
    """Run the demo's server with its shop, and nothing else, until a signal; it goes with all of its data.

    Args:
        tell: Gets a line once it runs, and the connection string; nothing before.

    Raises:
        BridgeError: The server cannot run here.
    """
    with suppress(KeyboardInterrupt), interruptible(), EmbeddedPostgres() as server:
        conninfo = _with_shop(server)
        tell(f"PostgreSQL {server.version} has a shop of five tables, and a publication shop_pub, until Ctrl-C.")
        tell(conninfo)
        while True:
            time.sleep(_PATIENCE_S)


def _with_shop(server: EmbeddedPostgres) -> str:
    """Make the shop's database; return its connection string."""
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE shop")
    conninfo = server.conninfo("shop")
    create(conninfo)
    return conninfo


class Screen(threads.Closing):
    """Prints events as they happen; on a terminal the current state stands below them, elsewhere between them.

    Args:
        console: The output; `is_terminal` decides on the form.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self._line_due_s = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        if self._live is not None:
            self._live.start()

    def close(self) -> None:
        """Remove the current state; `tell` can still be used."""
        if self._live is not None:
            self._live.update(Text(), refresh=True)
            self._live.stop()
            self._live = None

    def tell(self, event: str, *, style: str = "") -> None:
        """Print an event, with the time since the start."""
        elapsed = Text(f"{time.monotonic() - self._started_s:4.0f} s  ", style="dim")
        # only a terminal wraps lines
        self._console.print(elapsed + Text(event, style=style), soft_wrap=not self._console.is_terminal)

    def show(self, document: StatusDocument, load: object) -> None:
        """Show the current state: of the subscriptions, of the tables that are not copied yet, and of the load."""
        if self._live is not None:
            state = overview(document, ("remote_lsn", "confirmed_flush_lsn"))
            self._live.update(Group(state, Text(), tables(document, "idf"), Text(f"\n{load}")), refresh=True)
        elif time.monotonic() >= self._line_due_s:
            self._line_due_s = time.monotonic() + _LINE_EVERY_S
            self.tell("; ".join([str(load), *map(line, document["subscriptions"])]))

    def paste(self, text: str) -> None:
        """Print text as it is, without line breaks of its own, so that it can be copied."""
        self._console.print(Text(text), soft_wrap=True)


def line(status: SubscriptionStatus) -> str:
    """Return a subscription's state as one line."""
    following = sum(table["state"] in "sr" for table in status["tables"])
    return (
        f"{status['name']} {status['state']}, {following} of {len(status['tables'])} tables follow,"
        f" lag {size_text(status['lag_bytes'])}, remote_lsn {status['remote_lsn'] or '-'}"
    )


class Show:
    """The steps of the demo. The constructor starts the server and the load, and writes the configuration.

    Args:
        stack: Ends what the steps start.
    """

    def __init__(self, folder: DemoFolder, screen: Screen, stack: ExitStack, server: EmbeddedPostgres) -> None:
        self._folder = folder
        self._screen = screen
        self._stack = stack
        self._bridge: Child | None = None
        self._told_errors: set[str] = set()
        screen.tell("a private PostgreSQL starts")
        stack.enter_context(server)
        conninfo = _with_shop(server)
        screen.tell(
            f"PostgreSQL {server.version} runs, with a shop of five tables and two publications:"
            " shop_pub has everything, vip_pub some rows and columns of one table"
        )
        folder.write_config(conninfo)
        self._config = config.load(folder.config_file)
        self._catalog = Catalog(catalog_path(self._config.state_dir))
        stack.callback(self._catalog.close)
        self._servers = ServerSlots(_SERVER_S)
        self._connection = stack.enter_context(psycopg.connect(conninfo, autocommit=True))
        self._load = stack.enter_context(ShopLoad(conninfo, LOAD_PER_S))
        screen.tell(f"the load starts: up to {LOAD_PER_S:.0f} transactions a second")

    def run(self, seconds: float) -> int:
        """Run all steps; return the exit code."""
        self._start_bridge("pgbridge starts, and copies the tables while the load goes on")
        self._until("the initial copy", copied)
        self._screen.tell("every table is copied and follows the stream")
        self._for(seconds / 2)
        self._kill()
        lsn = self._flush_lsn()
        self._start_bridge("pgbridge starts again, and goes on where it was")
        self._until("going on after kill -9", lambda document: reached(document, lsn))
        self._screen.tell("it has applied everything that was committed while it was down")
        self._for(seconds / 2)
        self._load.close()
        self._screen.tell(f"the load is over: {self._load}; pgbridge verify starts to compare all rows")
        lsn = self._flush_lsn()
        proof = self._stack.enter_context(Child(self._folder.config_file, self._folder.proof, "verify"))
        self._until("catching up", lambda document: reached(document, lsn))
        self._screen.tell(f"pgbridge has applied everything, up to LSN {lsn}")
        self._until("the proof", lambda _: proof.status is not None)
        tables = sum(len(status["tables"]) for status in self._look(0)["subscriptions"])
        if self._bridge is not None:
            self._bridge.stop()
            self._bridge = None
            self._screen.tell("pgbridge has ended after SIGTERM")
        if proof.status not in {0, 1}:
            proof.check()
        return self._prove(tables, equal=proof.status == 0)

    def _start_bridge(self, event: str) -> None:
        self._bridge = self._stack.enter_context(Child(self._folder.config_file, self._folder.log))
        self._screen.tell(f"{event} (process {self._bridge.pid}, log in {_short(self._folder.log)})")

    def _kill(self) -> None:
        """`kill -9` pgbridge, in the middle of a batch if one begins soon enough."""
        deadline_s = time.monotonic() + _BATCH_S
        while (batch := self._catalog.batch("shop")) is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        if self._bridge is not None:
            self._bridge.kill()
            doing = f", in the middle of the batch from {batch.start_lsn} to {batch.end_lsn}" if batch else ""
            self._screen.tell(f"kill -9 {self._bridge.pid}: pgbridge is dead{doing}", style="red")
        self._bridge = None
        self._for(_DOWN_S)

    def _prove(self, tables: int, *, equal: bool) -> int:
        """Show the result of the comparison, and return the exit code."""
        self._screen.close()
        self._screen.paste(self._folder.proof.read_text(encoding="utf-8").rstrip())
        if not equal:
            self._screen.tell("NOT EQUAL", style="bold red")
            return 1
        self._screen.tell(f"all {tables} Delta tables equal their published tables", style="bold green")
        self._screen.tell(f"the Delta tables stay in {_short(self._folder.lake)}; query them with:")
        self._screen.paste(query_command(self._folder.lake / "shop" / "public" / "orders"))
        return 0

    def _flush_lsn(self) -> Lsn:
        row = self._connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        return Lsn.parse(row[0] if row else "")

    # --- waiting --------------------------------------------------------------------------------------------------

    def _until(self, what: str, happened: Callable[[StatusDocument], bool]) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not happened(self._look()):
            if time.monotonic() > deadline_s:
                raise errors.BridgeError(f"{what} takes more than {_PATIENCE_S:g} s; see {self._folder.log}")

    def _for(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self._look(min(left_s, _LOOK_EVERY_S))

    def _look(self, pause_s: float = _LOOK_EVERY_S) -> StatusDocument:
        """Show the current state, then wait; raise an error if the load or pgbridge has ended unexpectedly."""
        self._load.check()
        if self._bridge is not None:
            self._bridge.check()
        document = collect(self._config, self._catalog, running=self._bridge is not None, servers=self._servers)
        for status in document["subscriptions"]:
            error = status["last_error"]["message"] if status["last_error"] else None
            if error and error not in self._told_errors:
                self._told_errors.add(error)
                self._screen.tell(f"{status['name']} has an error, and tries again: {error}", style="yellow")
        self._screen.show(document, self._load)
        time.sleep(pause_s)
        return document


def copied(document: StatusDocument) -> bool:
    """Whether every subscription has tables, and all of them follow the stream."""
    states = [[table["state"] for table in status["tables"]] for status in document["subscriptions"]]
    return all(each and set(each) <= {"s", "r"} for each in states)


def reached(document: StatusDocument, lsn: Lsn) -> bool:
    """Whether all up to `lsn` is in the Delta tables of every subscription."""
    return all(
        status["remote_lsn"] is not None and Lsn.parse(status["remote_lsn"]) >= lsn
        for status in document["subscriptions"]
    )


def query_command(table: Path) -> str:
    """Return a shell command that queries the shop's orders."""
    path = str(table).replace("`", "``")
    query = (
        f"SELECT status, count(*) AS orders, sum(total) AS total FROM delta.`{path}` GROUP BY status ORDER BY status"
    )
    code = f"from pgbridge import session; session.start().sql({query!r}).show()"
    return shlex.join([_short(Path(sys.executable)), "-c", code])


def _short(path: Path) -> str:
    """Return a path relative to the current folder, if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
