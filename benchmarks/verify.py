"""`pgbridge verify` of W1's table, compared with a plain scan of both sides; then of four rows that were planted.

`python -m benchmarks.verify` fills the table on a private server, copies it with the bridge's own `TableSync`, and in
each round takes in turn: psql's COPY to /dev/null and Spark's read of all columns of the Delta table, and then a
verification. At last it plants a missing, an extra and a changed row, and a changed column, and verifies again.
"""

from __future__ import annotations

import datetime as dt
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import psycopg
import structlog
import typer

from benchmarks import report
from benchmarks.copy import copy_to, fill
from benchmarks.processes import Meter
from benchmarks.workloads import SETTINGS
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.config.config import Config, Subscription
from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.spark import session
from pgbridge.bridge.verify import command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from benchmarks.copy import FilledTable

LIMIT: Final = 2.0
_MASTER: Final = "local[2]"
_MEMORY: Final = "3g"
_REPORTS: Final = Path(__file__).with_name("reports")

_METHOD: Final = f"""\
**Plain scan** is the sum of psql's `COPY w1 TO STDOUT (FORMAT binary)` to /dev/null and of Spark's read of all columns
of the Delta table into nothing (`format("noop")`). **Verify** is the whole of `pgbridge verify`, without the start of
Spark ({_MASTER}): slot, snapshot, hashes of all rows on both sides, comparison. The ratio is of both in one round: its
median, and from the best to the worst. The goal: at most {LIMIT:g}."""


class Bench:
    """A table on both sides.

    Args:
        server: The private server.
        spark: A session.
        folder: For the Delta table and the state.
        rows: How many rows the table gets.
    """

    def __init__(self, server: EmbeddedPostgres, spark: SparkSession, folder: Path, rows: int) -> None:
        self._server, self._spark = server, spark
        self.table: FilledTable = fill(server, rows)
        folder.mkdir()
        self.path = copy_to(spark, self.table, folder)
        with closing(Catalog(catalog_path(folder / "state"))) as catalog:
            for rel in catalog.rels("bench"):
                catalog.put_rel("bench", replace(rel, state="r"))  # as once it follows the stream
        with psycopg.connect(self.table.conninfo, autocommit=True) as connection:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (f"bench_{rows}",))
        self._subscription = Subscription(
            name="bench",
            connection=self.table.conninfo,
            publications=("bench",),
            warehouse=str(folder / "lake"),
            slot_name=f"bench_{rows}",
        )
        self._config = Config(state_dir=folder / "state", subscription={"bench": self._subscription})

    def scan(self) -> float:
        """Scan both sides, one after the other; returns the seconds."""
        program = str(self._server.programs.bindir / "psql")
        statement = [program, "-X", "-c", "COPY w1 TO STDOUT (FORMAT binary)", self.table.conninfo]
        started_s = time.perf_counter()
        subprocess.run(statement, check=True, stdout=subprocess.DEVNULL)
        self._spark.read.format("delta").load(self.path).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started_s

    def verify(self) -> tuple[float, dict[str, Any]]:
        """Verify the table; returns the seconds and what was found of it."""

        @contextmanager
        def started(*_: object) -> Iterator[SparkSession]:
            yield self._spark

        started_s = time.perf_counter()
        document = command.collect(self._config, [self._subscription], started=started)
        return time.perf_counter() - started_s, document["subscriptions"][0]["tables"][0]

    def plant(self) -> None:
        """Plant a missing, an extra and a changed row, and a changed column, in Delta."""
        for statement in (
            "DELETE FROM {} WHERE id = 1234",
            "INSERT INTO {} SELECT id + 1000000000, parent, ratio, code, digest, at, active, 7 FROM {} WHERE id = 7",
            "UPDATE {} SET code = 'planted', digest = 'planted', amount = 0 WHERE id = 4321",
            "UPDATE {} SET at = at + INTERVAL 1 MICROSECOND WHERE id = 5000",
        ):
            self._spark.sql(statement.replace("{}", f"delta.`{self.path}`")).collect()


def main(
    rows: Annotated[int, typer.Option(min=10_000, help="Number of rows in the table.")] = 10_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Number of runs of each.")] = 3,
    to: Annotated[Path | None, typer.Option("--report", help="File to write the report to.", metavar="FILE")] = None,
) -> None:
    """Measure, print, and write a report."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    today = dt.datetime.now(dt.UTC).date()
    with (
        tempfile.TemporaryDirectory(prefix="pgbridge-verify-") as folder,
        EmbeddedPostgres(settings=SETTINGS, fsync=False) as server,
    ):
        spark = session.start(_MASTER, {"spark.driver.memory": _MEMORY})
        warm = Bench(server, spark, Path(folder, "warm"), 100_000)
        warm.scan()
        warm.verify()
        bench = Bench(server, spark, Path(folder, "measured"), rows)
        meter = Meter(os.getpid())
        measured: list[tuple[float, float]] = []
        for number in range(rounds):
            scan_s = bench.scan()
            verify_s, found = bench.verify()
            if not found["equal"] or found["rows"] != rows:
                sys.exit(f"benchmarks: an equal table was not found equal: {found}")
            measured.append((scan_s, verify_s))
            told = f"plain scan {scan_s:.1f} s, verify {verify_s:.1f} s, ratio {verify_s / scan_s:.2f}"
            typer.echo(f"round {number + 1}: {told}", err=True)
        bench.plant()
        planted_s, found = bench.verify()
        usage = meter.usage()
        if found["differences"] != {"changed": 2, "extra": 1, "missing": 1}:
            sys.exit(f"benchmarks: what was planted was not found: {found}")
        facts = {"date": str(today), **report.facts(server.version, {"fsync": "off", **SETTINGS})}
        spark.stop()
    peaks = f"{usage.jvm_peak_bytes >> 20} MiB in the JVM, {usage.python_peak_bytes >> 20} MiB in Python"
    ratio = planted_s / statistics.median(scan_s for scan_s, _ in measured)
    found_text = (
        f"The four planted rows were found, and only these, in {planted_s:.1f} s: {ratio:.2f} times a plain scan. "
        f"Memory at its peak: {peaks}."
    )
    text = f"{table(measured, rows)}\n\n{found_text}"
    typer.echo(f"\n{text}\n")
    lines = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    size = f"{report.grouped(rows)} rows of W1's table, {bench.table.size_bytes >> 20} MiB as stored; {rounds} rounds."
    path = to or _REPORTS / f"{today}-verify.md"
    path.write_text(f"# pgbridge verify\n\n{lines}\n\n{_METHOD}\n\n{size}\n\n{text}\n", encoding="utf-8")
    typer.echo(f"wrote {os.path.relpath(path)}")


def table(measured: list[tuple[float, float]], rows: int) -> str:
    """Return a Markdown table: for each way median seconds, rows per second, ratio."""
    scans, verifications = zip(*measured, strict=True)
    ratio = report.spread([verify_s / scan_s for scan_s, verify_s in measured])
    lines = ["| way | seconds | rows/s | ratio |", "|---|---:|---:|---:|"]
    for name, seconds, shown in (
        ("plain scan of both sides", statistics.median(scans), ""),
        ("pgbridge verify", statistics.median(verifications), ratio),
    ):
        lines.append(f"| {name} | {seconds:.1f} | {report.grouped(rows / seconds)} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
