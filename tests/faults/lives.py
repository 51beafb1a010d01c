"""Lives of a subscription whose server, catalog and tables change in between; each ends by itself or by a fault.

`equal_or_refused` is what must hold at the end, whatever came in between: the tables equal the server's, or the
subscription says what is wrong and which command helps, and after that command they are equal.
"""

from __future__ import annotations

import re
import shlex
import shutil
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.config.config import Config, Subscription
from pgbridge.bridge.recovery.recover import recover
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import BridgeError
from tests.bridge.configurations import altered, as_toml
from tests.fix_bridge import Pipeline, WithoutCommitLog
from tests.oracle.delta import differences
from tests.oracle.memory_tables import MemoryTables
from tests.oracle.native import DatabaseRows

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, MutableMapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.faults.standby import ForkedServer
    from tests.fix_cli import Outcome
    from tests.simulation.lake import Version

_LIFE_S = 60.0
"""The slowest life takes a tenth of it on two cores."""
_LSN = re.compile(r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b")
_REMEDY = re.compile(r"pgbridge ((?:refresh|resync) [^;,\n]+)")
"""The commands that copy tables afresh, as `bridge.runtime.remedies` writes them."""
_DROP_SLOT = re.compile(r"SELECT pg_drop_replication_slot\('[^']+'\)")
_RESTORE = re.compile(r"RESTORE TABLE delta\.`[^`]+` TO VERSION AS OF \d+")
_REMEDIES = 3
"""How many refusals there may be, each after the remedy of the one before: of the server, the slot and a table."""


class Crash(BaseException):
    """The end of the process, but for its threads: nothing handles it, and the catalog takes nothing after it."""


class Lives:
    """One subscription, one life after the other.

    Args:
        spark: The shared session, or tables in memory in its place.
        server: Its publisher.
        folder: For its configuration, state and tables.
        command: Runs pgbridge (the fixture `pgbridge`).
        options: The subscription's.

    Attributes:
        events: What the last life logged.
    """

    def __init__(
        self,
        spark: SparkSession | MemoryTables,
        server: ForkedServer,
        folder: Path,
        command: Callable[..., Outcome],
        **options: Any,
    ) -> None:
        self.spark, self.server, self.folder = spark, server, folder
        self._saved: dict[str, list[Version]] = {}
        self._command = command
        self._memory = spark.lake.tables if isinstance(spark, MemoryTables) else None
        self.bridge = (Pipeline if self._memory is None else WithoutCommitLog)(
            spark, server, folder, workers__retry_max_s=1.0, **options
        )
        self.events: list[MutableMapping[str, Any]] = []

    @property
    def name(self) -> str:
        """The subscription's name."""
        return self.bridge.subscription.name

    def set_options(self, **options: Any) -> None:
        """Change the subscription's options, as in its configuration file."""
        self.bridge.subscription = altered(self.bridge.subscription, **options)

    def live(
        self,
        point: str = "",
        number: int = 1,
        *,
        until: Callable[[], bool] | None = None,
        on_passing: Callable[[str], None] = lambda _: None,
    ) -> BaseException | None:
        """Run the subscription, killed at a point's n-th passing.

        Args:
            point: A fault point; empty for none.
            number: Which passing of it.
            until: The life ends in order once this is true, and not when it is caught up. With a point that must be
                passed before, return False always.
            on_passing: Called at each point before.

        Returns:
            A `Crash` if it was killed, the error that it ended with, or None.
        """
        if not isinstance(self.spark, MemoryTables):
            # A process that has just begun knows nothing of the tables' logs.
            self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
        crashed, passed, lock = threading.Event(), 0, threading.Lock()
        worker = self.bridge.worker(until_caught_up=until is None)

        def reached(here: str) -> None:
            nonlocal passed
            if crashed.is_set():
                raise Crash
            on_passing(here)
            with lock:
                passed += here == point
                now = here == point and passed == number
            if now:
                crashed.set()
                worker.stop()
                raise Crash

        catalog = self.bridge.catalog
        transaction = catalog._transaction

        def until_crashed(**options: Any) -> AbstractContextManager[sqlite3.Connection]:
            if crashed.is_set():
                raise Crash
            return transaction(**options)

        catalog._transaction = until_crashed  # type: ignore[method-assign, assignment]
        faults.install(reached)
        try:
            with capture_logs() as self.events:
                worker.thread.start()
                end_s = time.monotonic() + _LIFE_S
                while worker.thread.is_alive() and time.monotonic() < end_s:
                    worker.thread.join(0.1)
                    if until is not None and not crashed.is_set() and until():
                        worker.stop()
                late = worker.thread.is_alive()
                worker.stop()
                worker.thread.join(60)
        finally:
            faults.install(lambda _: None)
            catalog._transaction = transaction  # type: ignore[method-assign]
        if crashed.is_set():
            return Crash()
        assert not late, f"not ended after {_LIFE_S:.0f} s: {catalog.last_error(self.name)}"
        return worker.error

    def killed_at(self, point: str, number: int = 1, *, stays: bool = False) -> None:
        """Live until killed at a point, which must be passed; with `stays` as a daemon that goes on when caught up."""
        outcome = self.live(point, number, until=(lambda: False) if stays else None)
        assert isinstance(outcome, Crash), f"{point} was not passed: {outcome!r}"

    def caught_up(self) -> None:
        """Live until caught up, without an error."""
        outcome = self.live()
        if outcome is not None:
            raise outcome

    # --- state and tables from a backup -------------------------------------------------------------------------------

    def save_state(self) -> None:
        """Back up state_dir."""
        self.bridge.catalog.close()
        _copy(self.folder / "state", self.folder / "state.backup")
        self._open()

    def put_back_state(self) -> None:
        """Put the backup of state_dir back."""
        self.bridge.catalog.close()
        _copy(self.folder / "state.backup", self.folder / "state")
        self._open()

    def lose_state(self, part: str = "") -> None:
        """Lose state_dir; or a file of it alone, which begins like this."""
        self.bridge.catalog.close()
        for path in (self.folder / "state").iterdir():
            if path.name.startswith(part):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._open()

    def recover(self, *, dry_run: bool = False) -> list[str]:
        """Run `pgbridge recover` for the subscription; return what it prints."""
        lines, error = self.recover_all(dry_run=dry_run)
        if error is not None:
            raise error
        return lines

    def recover_all(self, *others: Subscription, dry_run: bool = False) -> tuple[list[str], BridgeError | None]:
        """The same for other subscriptions, too; return what it prints, and the error with which it ends."""
        self.bridge.catalog.close()
        chosen = [self.bridge.subscription, *others]
        settings = Config(state_dir=self.folder / "state", subscription={each.name: each for each in chosen})
        started, lines = nullcontext(self.spark), list[str]()
        try:
            lines.extend(recover(settings, chosen, dry_run=dry_run, started=lambda *_: started))  # type: ignore[arg-type]
        except BridgeError as error:
            return lines, error
        else:
            return lines, None
        finally:
            self._open()

    def _open(self) -> None:
        self.bridge.catalog = Catalog(catalog_path(self.folder / "state"))
        self.bridge.catalog.register(self.name, enabled=True)

    def path(self, table: str) -> Path:
        """The folder of a table of public."""
        return self.folder / "lake" / "public" / table

    def save_table(self, table: str) -> None:
        """Back up a table's folder."""
        if self._memory is None:
            _copy(self.path(table), self.folder / f"{table}.backup")
        else:
            self._saved[table] = [*self._memory[str(self.path(table))]]

    def put_back_table(self, table: str) -> None:
        """Put the backup of a table's folder back."""
        if self._memory is None:
            _copy(self.folder / f"{table}.backup", self.path(table))
        else:
            self._memory[str(self.path(table))] = [*self._saved[table]]

    def version(self, table: str) -> int:
        """A table's latest version."""
        if self._memory is not None:
            return len(self._memory[str(self.path(table))]) - 1
        return max(int(entry.stem) for entry in (self.path(table) / "_delta_log").glob("*.json"))

    def differences(self, tables: Iterable[str]) -> list[str]:
        """What differs between server and Delta."""
        gone = [f"{table}: there is no Delta table" for table in tables if not self._has(table)]
        return gone or [f"{table}: {line}" for table in tables for line in self._differences(table)]

    def _has(self, table: str) -> bool:
        """Whether there is a table."""
        return self.path(table).exists() if self._memory is None else str(self.path(table)) in self._memory

    def _differences(self, table: str) -> list[str]:
        """Those of one table, in the columns that the server has: a Delta table may have kept more."""
        source, name = DatabaseRows(self.server.conninfo), f"public.{table}"
        return differences(self.spark, str(self.path(table)), source, name, source.columns(name))

    def warned_of(self, table: str) -> bool:
        """Whether the last life has logged a warning or an error that names the table."""
        told = (event for event in self.events if event["log_level"] in {"warning", "error"})
        return any(f"public.{table}" in str(event) for event in told)

    # --- the operator -------------------------------------------------------------------------------------------------

    def pgbridge(self, *arguments: str) -> Outcome:
        """Run a command of pgbridge on this subscription's configuration."""
        options = self.bridge.subscription.model_dump(mode="json", exclude_unset=True, exclude={"name"})
        tree = {"state_dir": str(self.folder / "state"), "subscription": {self.name: options}}
        file = self.folder / "pgbridge.toml"
        file.write_text(as_toml(tree))
        file.chmod(0o600)
        return self._command(*arguments, "--config", str(file))

    def remedy(self, error: BaseException) -> None:
        """Do what an error's HINT says: copy tables afresh, restore one, or what a new state directory needs."""
        text = str(error)
        hint = text.partition("HINT:")[2]
        if f"pgbridge recover {self.name}" in hint and not _DROP_SLOT.search(hint) and "put back" not in hint:
            self.recover()
            return
        if commands := remedies_in(text):
            done = self.pgbridge(*commands[0])
            assert done.code == 0, (commands[0], done)
        elif restores := _RESTORE.findall(hint):
            self.spark.sql(restores[0]).collect()
        elif drops := _DROP_SLOT.findall(hint):
            self.server.query(drops[0])
        elif "set target.adopt = true" in hint:
            self.set_options(target__adopt=True)
        else:
            raise AssertionError(f"no command helps: {text}")


def remedies_in(text: str) -> list[list[str]]:
    """The arguments of the commands that a message names, and that copy tables afresh."""
    return [shlex.split(command.rstrip(" .)")) for command in _REMEDY.findall(text)]


def equal_or_refused(lives: Lives, *tables: str, positions: int = 2, words: Iterable[str] = ()) -> str:
    """One life more: it must end with tables that equal the server's, or refuse, and be helped by the HINT's command.

    Args:
        lives: The subscription.
        tables: Tables of public that must be equal at the end.
        positions: How many LSNs a refusal must name at least.
        words: What a refusal must say as well.

    Returns:
        `equal` or `refused`.
    """
    outcome = "equal"
    for _ in range(_REMEDIES):
        error = lives.live()
        if error is None:
            break
        outcome = "refused"
        refused(error, positions=positions, words=words)
        lives.remedy(error)
    else:
        lives.caught_up()
    different = lives.differences(tables)
    assert different == [], "\n".join([f"exit code 0, and different rows ({outcome}):", *different])
    return outcome


def refused(error: BaseException, *, positions: int = 2, words: Iterable[str] = ()) -> None:
    """Check that an error is one of the bridge's own, that no retry can help, and that it says what an operator needs.

    Args:
        error: The error.
        positions: How many LSNs it must name at least.
        words: What it must say as well.
    """
    assert isinstance(error, BridgeError), repr(error)
    text = str(error)
    assert len(set(_LSN.findall(text))) >= positions, f"it does not name {positions} positions: {text}"
    missing = [word for word in words if word not in text]
    assert not missing, f"it does not say {missing}: {text}"


def _copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
