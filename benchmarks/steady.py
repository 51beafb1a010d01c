"""How long a commit takes to be durable in Delta under a steady load, and whether the lag grows.

The bridge runs as a user runs it, `pgbridge run` as a process, and pgbench writes at a rate.
"""

from __future__ import annotations

import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.bridge_folder import NAME, BridgeFolder, is_copied
from benchmarks.database import database, insert_lsn
from benchmarks.disturbed import stolen_s
from benchmarks.latency import Latencies, Sample, lag_s, latencies
from benchmarks.measure import BenchmarkError
from benchmarks.processes import Meter, Usage
from benchmarks.workloads import PUBLICATION, execute, prepare_pgbench
from pgbridge.bridge.demo.subscriber import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.database import Connection
    from pgbridge.bridge.demo.server import EmbeddedPostgres

_SLOT: Final = "bench_steady"
_POLL_S: Final = 0.02
_SAMPLE_S: Final = 0.2
_COPY_S: Final = 1800.0
_CLIENTS: Final = 4
_ROWS: Final = 1000
"""Rows of each of the many tables."""

_TABLE: Final = """
CREATE TABLE steady_{number} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, value bigint NOT NULL, note text NOT NULL
);
INSERT INTO steady_{number} (value, note) SELECT i, md5(i::text) FROM generate_series(1, {rows}) i
"""
_SCRIPT: Final = """\\set number random(1, {tables})
\\set id random(1, {rows})
BEGIN;
UPDATE steady_:number SET value = value + 1 WHERE id = :id;
INSERT INTO steady_:number (value, note) VALUES (:id, md5(:id::text));
END;
"""
_PROCESSED: Final = re.compile(r"number of transactions actually processed: (\d+)")


@dataclass(frozen=True, slots=True)
class Load:
    """A load at a rate.

    Attributes:
        name: For the command line and the report.
        text: A description.
        rate: Transactions per second.
        seconds: How long it is measured.
        prepare: Creates the tables and the publication; called with server and database.
        script: pgbench's script; None for its own transactions.
        commit_interval_s: The subscription's.
    """

    name: str
    text: str
    rate: float
    seconds: float
    prepare: Callable[[EmbeddedPostgres, str], None]
    script: str | None = None
    commit_interval_s: float = 1.0

    def at(self, rate: float, seconds: float) -> Load:
        """The same load at another rate, for another time."""
        return replace(self, rate=rate, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Steady:
    """What was measured.

    Attributes:
        load: The load.
        start_s: The clock at which the measurement began, after the warm-up.
        end_s: The clock at which the load ended.
        transactions: Number of transactions that pgbench made, with the warm-up's.
        commits: The publisher's LSNs, from the daemon's start to the load's end.
        durable: The origin's LSNs, from the daemon's start until all was durable, or watching ended.
        usage: The daemon's CPU time between start and end, and its peaks.
        stolen_s: CPU time that the host gave to others between start and end.
        delta_commits: Number of Delta commits between start and end.
    """

    load: Load
    start_s: float
    end_s: float
    transactions: int
    commits: list[Sample]
    durable: list[Sample]
    usage: Usage
    stolen_s: float
    delta_commits: int

    def latencies(self, first: float = 0.0, last: float = 1.0) -> Latencies:
        """Return the latencies of a part of the time, by default of all."""
        seconds = self.end_s - self.start_s
        low_s, high_s = self.start_s + first * seconds, self.start_s + last * seconds
        return latencies([sample for sample in self.commits if low_s <= sample.at_s <= high_s], self.durable)

    def lag_s(self, part: float) -> float:
        """Return the lag when this part of the time has passed."""
        return lag_s(self.start_s + part * (self.end_s - self.start_s), self.commits, self.durable)


def loads(scale: float) -> dict[str, Load]:
    """Return the loads by name.

    Args:
        scale: 1 for the whole sizes of tables, their number and the time; smaller to try it.
    """
    size, tables = max(1, round(10 * scale)), max(2, round(100 * scale))
    found = (
        Load(
            "pgbench",
            f"pgbench's TPC-B transactions on its four tables, of scale {size}",
            100,
            120 * scale,
            partial(prepare_pgbench, scale=size),
        ),
        Load(
            "tables",
            f"{tables} tables of {_ROWS} rows; a transaction updates a row of one of them and inserts another",
            5 * tables,
            300 * scale,
            partial(_prepare_tables, tables=tables),
            _SCRIPT.format(tables=tables, rows=_ROWS),
        ),
    )
    return {load.name: load for load in found}


def _prepare_tables(server: EmbeddedPostgres, dbname: str, tables: int) -> None:
    statements = [_TABLE.format(number=number, rows=_ROWS) for number in range(1, tables + 1)]
    execute(server, dbname, *statements, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")


def measure(
    server: EmbeddedPostgres,
    load: Load,
    folder: Path,
    *,
    warm_up_s: float,
    patience_s: float,
    say: Callable[[str], None] = lambda _: None,
) -> Steady:
    """Copy the tables of a new database, apply the load, measure, and drop the database.

    Args:
        server: The publisher's server.
        load: What to write.
        folder: For the state and the Delta tables; it must not exist yet.
        warm_up_s: How long the load runs before the measurement.
        patience_s: How long to wait after the load's end until all is durable.
        say: Called with a line for each step.

    Raises:
        BenchmarkError: The daemon or pgbench has ended.
    """
    dbname = f"bench_{load.name}"
    with database(server, dbname) as publisher:
        load.prepare(server, dbname)
        bridge = BridgeFolder(folder)
        interval: dict[str, Any] = {"batch.commit_interval_s": load.commit_interval_s}
        bridge.configure(server.conninfo(dbname), PUBLICATION, slot_name=_SLOT, **interval)
        with (
            closing(Child(bridge.config_file, folder / "daemon.log")) as child,
            closing(bridge.catalog()) as catalog,
            ThreadPoolExecutor(1) as pool,
        ):
            watch = _Watch(publisher, lambda: catalog.remote_lsn(NAME) or 0, child)
            started_s = time.perf_counter()
            watch.until(lambda: is_copied(catalog), for_s=_COPY_S)
            if not is_copied(catalog):
                raise BenchmarkError(f"the tables are not copied after {_COPY_S:g} s:\n{child.log_tail()}")
            say(f"{load.name}: tables copied {time.perf_counter() - started_s:.1f} s after the daemon's start")
            pgbench = pool.submit(write, server, dbname, load, warm_up_s + load.seconds)
            watch.until(pgbench.done, for_s=warm_up_s)
            meter, stolen_before_s, commits_before = Meter(child.pid), stolen_s(), bridge.commits()
            start_s = time.perf_counter()
            watch.until(pgbench.done)
            end_s = time.perf_counter()
            found = meter.usage(), stolen_s() - stolen_before_s, bridge.commits() - commits_before
            transactions = pgbench.result()
            last_lsn = watch.sample()
            watch.until(lambda: watch.durable_lsn >= last_lsn, for_s=patience_s)
            say(f"{load.name}: {transactions} transactions; watched {time.perf_counter() - end_s:.1f} s longer")
    commits = [sample for sample in watch.commits if sample.at_s <= end_s]
    return Steady(load, start_s, end_s, transactions, commits, watch.durable, *found)


def write(server: EmbeddedPostgres, dbname: str, load: Load, seconds: float) -> int:
    """Write a load by pgbench; return the number of transactions."""
    script = ["--builtin=tpcb-like", "--protocol=prepared"]
    if load.script is not None:
        path = server.folder / f"{load.name}.sql"  # where the server's user may read it
        path.write_text(load.script, encoding="utf-8")
        script = [f"--file={path}"]
    told = server.programs.run(
        "pgbench",
        "--no-vacuum",
        *script,
        f"--rate={load.rate:g}",
        f"--time={max(1, round(seconds))}",
        f"--client={_CLIENTS}",
        server.conninfo(dbname),
    )
    processed = _PROCESSED.search(told)
    assert processed is not None
    return int(processed[1])


class _Watch:
    """Samples the publisher's LSN and the origin's."""

    def __init__(self, publisher: Connection, remote_lsn: Callable[[], int], child: Child) -> None:
        self._publisher, self._remote_lsn, self._child = publisher, remote_lsn, child
        self._due_s = 0.0
        self.commits: list[Sample] = []
        self.durable: list[Sample] = []

    @property
    def durable_lsn(self) -> int:
        """The origin's last LSN."""
        return self.durable[-1].lsn if self.durable else 0

    def until(self, over: Callable[[], bool], *, for_s: float = math.inf) -> None:
        """Watch until a condition holds, or for some time.

        Raises:
            BridgeError: The daemon has ended.
        """
        end_s = time.perf_counter() + for_s
        while not over() and time.perf_counter() < end_s:
            self._child.check()
            if time.perf_counter() >= self._due_s:
                self._due_s = time.perf_counter() + _SAMPLE_S
                self.sample()
            lsn = self._remote_lsn()
            if lsn > self.durable_lsn:
                self.durable.append(Sample(time.perf_counter(), lsn))
            time.sleep(_POLL_S)

    def sample(self) -> int:
        """Take a sample of the publisher's LSN, if something was written since the last one; return it."""
        found = Sample(time.perf_counter(), insert_lsn(self._publisher))
        if not self.commits or found.lsn > self.commits[-1].lsn:
            self.commits.append(found)
        return found.lsn
