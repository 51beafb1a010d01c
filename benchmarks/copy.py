"""The initial copy of W1's table, compared with its two unavoidable parts: PostgreSQL's COPY and Spark's write.

`python -m benchmarks.copy` fills the table on a private server and copies it with the bridge's own `TableSync`, in turn
with `psql -c "COPY … TO STDOUT (FORMAT binary)"` to /dev/null and with Spark writing the same rows from Parquet to a
Delta table. Spark runs on two cores; it is started once, and runs each way once before the measurement.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import psycopg
import structlog
import typer

from benchmarks import report
from benchmarks.workloads import INSERT_W1, SETTINGS, TABLE_W1
from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.spark import session
from pgbridge.bridge.sync.tablesync import TableSync

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

LIMIT: Final = 1.5
PSQL, WRITE, COPY = "psql COPY to /dev/null", "Spark, Parquet to Delta", "pgbridge's copy"

_MASTER: Final = "local[2]"
_MEMORY: Final = "3g"
_ROWS_AT_ONCE: Final = 1_000_000
_WARM_ROWS: Final = 300_000
_REPORTS: Final = Path(__file__).with_name("reports")

_METHOD: Final = f"""\
A round runs each way once; they take turns in being first. **{PSQL}** is psql's `COPY w1 TO STDOUT (FORMAT binary)`.
**{WRITE}** is `read.parquet(…).write.format("delta").save(…)` of the same rows. **{COPY}** is the daemon's own, from
the creation of a slot with a snapshot to the commit, on the same session ({_MASTER}). The ratio is the copy's time over
the sum of the other two in the same round: its median, and from the best to the worst. The goal: at most {LIMIT:g}."""


@dataclass(frozen=True, slots=True)
class FilledTable:
    """W1's table in a database of its own.

    Attributes:
        conninfo: The database.
        rows: How many it has.
        sum: The sum of column amount.
        size_bytes: The table's size, as stored.
    """

    conninfo: str
    rows: int
    sum: int
    size_bytes: int


class Bench:
    """One database with the table, one Spark session, and the ways to be measured.

    Args:
        server: The private server.
        spark: The session.
        folder: For Delta tables, Parquet files and catalogs.
        rows: How many the table gets.
    """

    def __init__(self, server: EmbeddedPostgres, spark: SparkSession, folder: Path, rows: int) -> None:
        self._server, self._spark, self._folder = server, spark, folder
        self._table = fill(server, rows)
        self.table_bytes = self._table.size_bytes
        path = copy_to(spark, self._table, folder / "source")
        self._parquet = str(folder / f"parquet{rows}")
        spark.read.format("delta").load(path).write.parquet(self._parquet)
        shutil.rmtree(folder / "source")

    def ways(self) -> dict[str, Callable[[], float]]:
        """Return the ways by name; each returns its seconds."""
        return {PSQL: self._psql, WRITE: self._write, COPY: self._copy}

    def _psql(self) -> float:
        program = str(self._server.programs.bindir / "psql")
        command = [program, "-X", "-c", "COPY w1 TO STDOUT (FORMAT binary)", self._table.conninfo]
        started_s = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started_s

    def _write(self) -> float:
        path = self._folder / "written"
        started_s = time.perf_counter()
        self._spark.read.parquet(self._parquet).write.format("delta").save(str(path))
        seconds = time.perf_counter() - started_s
        shutil.rmtree(path)
        return seconds

    def _copy(self) -> float:
        started_s = time.perf_counter()
        path = copy_to(self._spark, self._table, self._folder / "copied")
        seconds = time.perf_counter() - started_s
        check(self._spark, self._table, path)
        shutil.rmtree(self._folder / "copied")
        return seconds


def fill(server: EmbeddedPostgres, rows: int) -> FilledTable:
    """Make a database with W1's table, of so many rows, and its publication."""
    dbname = f"copy_{rows}"
    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {dbname} TEMPLATE template0".encode())
    with psycopg.connect(server.conninfo(dbname), autocommit=True) as connection:
        connection.execute(TABLE_W1.encode())
        for first in range(1, rows + 1, _ROWS_AT_ONCE):
            last = min(first + _ROWS_AT_ONCE - 1, rows)
            connection.execute(INSERT_W1.replace("$1", f"{first}::bigint").replace("$2", f"{last}::bigint").encode())
        connection.execute("VACUUM (FREEZE, ANALYZE) w1")
        connection.execute("CREATE PUBLICATION bench FOR TABLE w1")
        row = connection.execute("SELECT sum(amount), pg_table_size('w1') FROM w1").fetchone()
        assert row is not None
        connection.execute("CHECKPOINT")
    return FilledTable(server.conninfo(dbname), rows, *row)


def copy_to(spark: SparkSession, table: FilledTable, folder: Path) -> str:
    """Copy the table as a daemon does, into a folder that does not exist; return the Delta table's path."""
    settings = Subscription(
        name="bench", connection=table.conninfo, publications=("bench",), warehouse=str(folder / "lake")
    )
    catalog = Catalog(catalog_path(folder / "state"))
    catalog.register("bench", enabled=True)
    sync = TableSync(Context(settings, spark, catalog, structlog.get_logger()))
    with (
        Publisher(table.conninfo, application_name="bench") as publisher,
        ReplicationConnection(table.conninfo, application_name="bench") as replication,
    ):
        published = {(one.namespace, one.name): one for one in publisher.tables(["bench"])}
        snapshot = replication.create_slot("bench_copy", temporary=True)
        catalog.create_origin("bench", snapshot.consistent_point, "bench", sync.new_rels(published.values(), ()))
        for error in sync.copy(published, publisher, snapshot).values():
            raise error
    (rel,) = catalog.rels("bench")
    catalog.close()
    return rel.path


def check(spark: SparkSession, table: FilledTable, path: str) -> None:
    """End the program unless the Delta table has the table's rows."""
    found = spark.read.format("delta").load(path).selectExpr("count(*) AS n", "sum(amount) AS s").first()
    assert found is not None
    if (found.n, found.s) != (table.rows, table.sum):
        sys.exit(f"benchmarks: copied {found.n} rows with sum {found.s}, not {table.rows} with {table.sum}")


def main(
    rows: Annotated[int, typer.Option(min=1, help="Number of rows in the table.")] = 10_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Number of runs of each way.")] = 3,
    to: Annotated[Path | None, typer.Option("--report", help="File to write the report to.", metavar="FILE")] = None,
) -> None:
    """Measure, print, and write a report."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    today = dt.datetime.now(dt.UTC).date()
    measured: list[dict[str, float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="pgbridge-copy-") as folder,
        EmbeddedPostgres(settings=SETTINGS, fsync=False) as server,
    ):
        spark = session.start(_MASTER, {"spark.driver.memory": _MEMORY})
        for way in Bench(server, spark, Path(folder), min(rows, _WARM_ROWS)).ways().values():
            way()
        started_s = time.perf_counter()
        bench = Bench(server, spark, Path(folder), rows + (rows <= _WARM_ROWS))
        typer.echo(
            f"{rows} rows, {bench.table_bytes >> 20} MiB, ready in {time.perf_counter() - started_s:.0f} s", err=True
        )
        ways = bench.ways()
        for number in range(rounds):
            first = number % len(ways)
            names = [*list(ways)[first:], *list(ways)[:first]]
            measured.append({name: ways[name]() for name in names})
            told = ", ".join(f"{name} {measured[-1][name]:.1f} s" for name in names)
            typer.echo(f"round {number + 1}: {told}; ratio {_ratio(measured[-1]):.2f}", err=True)
        facts = {"date": str(today), **report.facts(server.version, {"fsync": "off", **SETTINGS})}
        spark.stop()
    typer.echo(f"\n{table(measured, rows)}\n")
    path = to or _REPORTS / f"{today}-copy.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(measured, rows, bench.table_bytes, facts), encoding="utf-8")
    typer.echo(f"wrote {os.path.relpath(path)}")


def _ratio(one: dict[str, float]) -> float:
    return one[COPY] / (one[PSQL] + one[WRITE])


def table(measured: list[dict[str, float]], rows: int) -> str:
    """Return a Markdown table: for each way median seconds, rows per second, ratio."""
    lines = ["| way | seconds | rows/s | ratio |", "|---|---:|---:|---:|"]
    for name in (PSQL, WRITE, COPY):
        seconds = statistics.median(one[name] for one in measured)
        ratio = report.spread([_ratio(one) for one in measured]) if name == COPY else ""
        lines.append(f"| {name} | {seconds:.1f} | {report.grouped(rows / seconds)} | {ratio} |")
    return "\n".join(lines)


def render(measured: list[dict[str, float]], rows: int, table_bytes: int, facts: dict[str, str]) -> str:
    """Return the whole report."""
    lines = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    size = f"{report.grouped(rows)} rows of W1's table, {table_bytes >> 20} MiB as stored; {len(measured)} rounds."
    return f"# The initial copy\n\n{lines}\n\n{_METHOD}\n\n{size}\n\n{table(measured, rows)}\n"


if __name__ == "__main__":
    typer.run(main)
