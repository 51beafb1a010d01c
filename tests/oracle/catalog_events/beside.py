"""The bridge beside the native subscriber of a history of catalog events, and the verdict on each of its tables.

A table is equal to the native subscriber's or to the publisher's, or the bridge has said that it may not be, in a
warning or an error that names it; then the command that it printed makes it equal to the publisher's. Else the history
has failed.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from structlog.testing import capture_logs

from pgbridge.bridge.runtime.errors import BridgeError
from pgbridge.bridge.service import cli
from tests.bridge.configurations import as_toml
from tests.fix_bridge import Pipeline, WithoutCommitLog
from tests.fix_postgres import Publisher
from tests.oracle.catalog_events.generator import CatchUp, Refresh, Run, Step, Transaction
from tests.oracle.catalog_events.in_step import make_history
from tests.oracle.delta import delta_table, unequal
from tests.oracle.native import text_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from pgbridge.bridge.service.subscriber import SubscriptionWorker
    from tests.fix_postgres import Server
    from tests.oracle.memory_tables import MemoryTables
    from tests.oracle.native import Row

STEPS: Final = 16
_REMEDIES: Final = 4
"""How many errors one after the other a catch-up may end with, each after the remedy of the one before."""
_PAUSE_S: Final = 0.05
"""Between two transactions while the bridge runs, so that some are batches of their own."""
_COMMAND = re.compile(r'pgbridge ((?:refresh|resync|enable) [^;,\n\\"]+)')


@dataclass
class Outcome:
    """What became of a seed.

    Attributes:
        seed: The seed.
        trace: What was executed and said, a line each.
        failures: What is wrong: empty for a seed that passes.
        said: The tables that the bridge named in warnings and errors with a command, and these.
        kinds: How many tables ended how.
    """

    seed: int
    trace: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    said: dict[str, list[str]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}", *self.trace, f"seed {self.seed}:", *self.failures])


class Published:
    """The rows that the publications of a database publish now: what a copy of each table would have."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.tables: dict[str, tuple[list[str], str | None]] = {}
        for name, columns, row_filter in publisher.query(
            "SELECT format('%%I.%%I', schemaname, tablename), attnames::text[], rowfilter FROM pg_publication_tables"
            " WHERE pubname = %s",
            ("pub",),
        ):
            self.tables[name] = columns, row_filter

    def rows(self, table: str, columns: Iterable[str] | None = None) -> list[Row]:
        """A table's rows, as `text_rows` gives them."""
        row_filter = self.tables[table][1] or "true"
        return text_rows(self._publisher.conninfo, f"(SELECT * FROM {table} WHERE {row_filter}) AS t", columns)


class Beside:
    """A seed's history, executed: the bridge on the real publisher, the native subscriber on its twin."""

    def __init__(self, spark: SparkSession | MemoryTables, server: Server, folder: Path, seed: int) -> None:
        self.spark = spark
        self.outcome = Outcome(seed)
        self._folder = folder
        self._twin = Publisher(server, f"twin_{folder.name}_{seed}")
        self._publisher = Publisher(server, f"events_{folder.name}_{seed}")
        self.before, self.steps, self.side = make_history(self._twin, seed, STEPS)
        self.bridge: Pipeline | None = None
        self._running: SubscriptionWorker | None = None
        self._events: list[MutableMapping[str, Any]] = []

    def close(self) -> None:
        """Remove the databases."""
        if self.bridge is not None:
            self.bridge.catalog.close()
        self._publisher.drop()
        self._twin.drop()

    def run(self) -> Outcome:
        """Execute the history, and look at each table."""
        for text in self.before:
            self._execute(text)
        binary = self.outcome.seed % 2 == 0
        folder = self._folder / str(self.outcome.seed)
        spark: Any = self.spark
        self.bridge = WithoutCommitLog(spark, self._publisher, folder, binary=binary)
        with capture_logs() as self._events:
            for step in self.steps:
                self._take(step)
                if self.outcome.failures:
                    return self.outcome
            self._verdict()
        return self.outcome

    def _take(self, step: Step) -> None:
        if isinstance(step, Transaction):
            self._execute(step.text)
        elif isinstance(step, Refresh):
            self._typed(f"refresh {self._publisher.name}")
        elif isinstance(step, Run):
            assert self.bridge is not None
            self.outcome.trace.append("-- pgbridge run &")
            self._running = self.bridge.worker(until_caught_up=False)
            self._running.thread.start()
        elif isinstance(step, CatchUp):
            if self._running is not None:
                self._running.stop()
                self._running.thread.join()
                self._running = None
            self._catch_up()

    def _execute(self, text: str) -> None:
        self.outcome.trace.append(f"{text};")
        self._publisher.execute(text)
        if self._running is not None:
            time.sleep(_PAUSE_S)

    # --- the bridge and its operator ----------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """One life, and others after the commands that its errors name."""
        assert self.bridge is not None
        for _ in range(_REMEDIES):
            self.outcome.trace.append("-- pgbridge run --until-caught-up")
            error = self._life()
            if error is None:
                return
            self._say(str(error), "error")
            if not isinstance(error, BridgeError):
                self.outcome.failures.append(f"an error that is not the bridge's own: {error!r}")
                return
            # a warning from before, of a table that the error names, may have named the way
            texts = [
                str(error),
                *(text for table in self._names(str(error)) for text in self.outcome.said.get(table, ())),
            ]
            commands = [command for text in texts for command in _COMMAND.findall(text)]
            if not commands:
                self.outcome.failures.append(f"stopped without a command that helps: {error}")
                return
            refused = self._typed(commands[0])
            if refused is not None:
                self._typed(refused)
        self.outcome.failures.append(f"the remedy does not help: {error}")

    def _life(self) -> BaseException | None:
        assert self.bridge is not None
        try:
            self.bridge.catch_up()
        except Exception as error:  # noqa: BLE001 - the worker's, which the verdict looks at
            return error
        finally:
            self._take_events()
        return None

    def _take_events(self) -> None:
        """Note what was logged since."""
        for event in self._events:
            if event["log_level"] in {"warning", "error"} and event["event"] != "subscription failed":
                self._say(json.dumps(event, default=str), event["log_level"])
        self._events.clear()

    def _say(self, text: str, level: str) -> None:
        self.outcome.trace.append(f"-- {level}: {text}")
        if _COMMAND.search(text):
            for table in self._names(text):
                self.outcome.said.setdefault(table, []).append(text)

    def _names(self, text: str) -> set[str]:
        """The tables that a text names."""
        return set(re.findall(r"\b[ab]\.\w+", text))

    def _typed(self, command: str) -> str | None:
        """Type a command of pgbridge's; returns the one that its refusal names, if it is refused."""
        assert self.bridge is not None
        self.outcome.trace.append(f"-- pgbridge {command}")
        subscription = self.bridge.subscription
        options = subscription.model_dump(mode="json", exclude_unset=True, exclude={"name"})
        file = self._folder / f"{self.outcome.seed}.toml"
        state_dir = str(self.bridge.folder / "state")
        file.write_text(as_toml({"state_dir": state_dir, "subscription": {subscription.name: options}}))
        file.chmod(0o600)
        arguments = ["pgbridge", *shlex.split(command.rstrip(" .)")), "--config", str(file)]
        out, code = io.StringIO(), 0
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            mock.patch.object(sys, "argv", arguments),
        ):
            try:
                cli.main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
        self.outcome.trace += [f"--   {line}" for line in out.getvalue().splitlines()]
        if code:
            self.outcome.trace.append(f"--   exit code {code}")
        named = _COMMAND.findall(out.getvalue()) if code else []
        return named[0] if named else None

    # --- the verdict --------------------------------------------------------------------------------------------------

    def _verdict(self) -> None:
        """Hold each table against the native subscriber's and the publisher's; after the remedies, once more."""
        different = self._different()
        silent = {table: why for table, why in different.items() if table not in self.outcome.said}
        for table, why in silent.items():
            self.outcome.failures.append(f"SILENTLY DIFFERENT: {table}: {why}")
        self.outcome.kinds["silent"] += len(silent)
        self.outcome.kinds["said"] += len(different) - len(silent)
        if silent or not different:
            return
        commands = {
            command: table
            for table in different
            for text in self.outcome.said[table]
            for command in _COMMAND.findall(text)
        }
        for command in commands:
            self._typed(command)
        self._catch_up()
        for table, why in self._different(only_publisher=True).items():
            if table in different:
                self.outcome.kinds["not helped"] += 1
                self.outcome.failures.append(f"REMEDY DOES NOT HELP: {table}: {why}")

    def _different(self, *, only_publisher: bool = False) -> dict[str, str]:
        """The tables that equal neither side's, and how."""
        assert self.bridge is not None
        published = Published(self._publisher)
        sides: dict[str, tuple[Any, dict[str, list[str]]]] = {
            "publisher": (published, {name: columns for name, (columns, _) in published.tables.items()})
        }
        if not only_publisher and not self.side.stopped:
            sides = {"native": (self.side.native, self.side.columns()), **sides}
        different = {}
        rels = {rel.qualified_name: rel.path for rel in self.bridge.catalog.rels(self.bridge.subscription.name)}
        for table, path in rels.items():
            held = delta_table(self.spark, path)
            known = {*held.column_names, *published.tables.get(table, ([], None))[0]}
            found = {
                side: _unequal(held, rows, table, [name for name in columns[table] if name in known])
                if table in columns
                else "it does not have the table"
                for side, (rows, columns) in sides.items()
            }
            equal = [side for side, why in found.items() if not why]
            self.outcome.kinds[f"equal to {equal[0]}" if equal else "different"] += 1
            if not equal and (not only_publisher or table in published.tables):
                different[table] = "; ".join(f"{side}: {why}" for side, why in found.items())
        for table in self.side.subscribed() & published.tables.keys() - rels.keys():
            if not self.side.stopped:
                different[table] = "not in the subscription, but in the native one"
        return different


def outcome_of(spark: SparkSession | MemoryTables, server: Server, folder: Path, seed: int) -> Outcome:
    """What becomes of a seed, whose databases are removed again."""
    beside = Beside(spark, server, folder, seed)
    try:
        return beside.run()
    finally:
        beside.close()


def _unequal(held: pa.Table, rows: Any, table: str, columns: list[str]) -> str:
    """How a table differs from a side's; empty if it does not."""
    missing = [name for name in columns if name not in held.column_names]
    if missing and (held.num_rows or rows.rows(table, ["id"])):
        return f"without the columns {missing}"
    columns = [name for name in columns if name not in missing]
    try:
        return ", ".join(unequal(held.select(columns), rows, table))
    except (ValueError, ArithmeticError) as error:
        return f"values of another type: {error!r}"
