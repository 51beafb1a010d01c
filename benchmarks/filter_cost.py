"""The cost of a row filter of pgbridge's own: a daemon catches up with W1, with and without one, in turn.

`python -m benchmarks.filter_cost` has two subscriptions to W1's table, one of them with a definitions file. Spark
computes the filter (`bridge.lake.changes.verdicts`); it passes every row, so that all other work is the same. Both run
in one process that has applied changes before. The table has REPLICA IDENTITY FULL: a filter of UPDATE and DELETE
looks at old rows.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from benchmarks import report
from benchmarks.bridge_folder import BridgeFolder
from benchmarks.catch_up import DaemonProcess
from benchmarks.checksum import columns_of, in_postgresql
from benchmarks.daemon_runs import Job
from benchmarks.database import database, insert_lsn
from benchmarks.disturbed import in_turn
from benchmarks.measure import BenchmarkError
from benchmarks.workloads import PUBLICATION, WORKLOADS
from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from benchmarks.database import Connection

FILTER: Final = "(amount >= 0 AND id > 0 AND ratio IS NOT NULL) OR code LIKE 'never%' OR (active AND parent % 7 = 3)"
"""A filter with numbers, a pattern, boolean logic and arithmetic, which every row passes."""

_DBNAME: Final = "bench_filter"
_WAYS: Final = ("without", "with")
_LIMIT: Final = 0.15
_WARM_UP_SCALE: Final = 0.3


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Number of runs of each way.")] = 3,
    scale: Annotated[float, typer.Option(min=0.001, help="Part of W1 to run: 1 for all.")] = 1.0,
    to: Annotated[Path | None, typer.Option("--report", help="File to write the report to.", metavar="FILE")] = None,
) -> None:
    """Measure, print, and write a report."""
    with (
        tempfile.TemporaryDirectory(prefix="pgbridge-filter-") as folder,
        EmbeddedPostgres(settings={"max_wal_size": "16GB"}, fsync=False) as server,
        database(server, _DBNAME) as connection,
        closing(DaemonProcess(Path(folder, "daemon"))) as daemon,
    ):
        WORKLOADS["W1"].prepare(server, _DBNAME)
        connection.execute("ALTER TABLE w1 REPLICA IDENTITY FULL")
        folders = {way: _configured(Path(folder, way), server.conninfo(_DBNAME), way) for way in _WAYS}
        # the initial copy, of nothing; changes with which the JVM compiles its code; and the rounds
        runs = [
            _run(server, connection, daemon, folders, number, scale_)
            for number, scale_ in enumerate((0.0, _WARM_UP_SCALE * scale, *[scale] * rounds))
        ][2:]
    costs = [run["with"] / run["without"] - 1 for run in runs]
    without_s, with_s = (statistics.median(run[way] for run in runs) for way in _WAYS)
    text = (
        f"applying W1 at scale {scale:g}: {without_s:.1f} s without a filter, {with_s:.1f} s with one; it costs "
        f"{statistics.median(costs):.1%} ({min(costs):.1%} to {max(costs):.1%}; the limit is {_LIMIT:.0%})"
    )
    typer.echo(text)
    if to is not None:
        facts = "\n".join(f"- {key}: {value}" for key, value in report.facts("none", {}).items())
        to.write_text(f"# What a row filter costs\n\n{facts}\n\n`{FILTER}`: {text}.\n", encoding="utf-8")


def _configured(path: Path, conninfo: str, way: str) -> BridgeFolder:
    folder, definitions = BridgeFolder(path), path / "definitions.sql"
    keys: dict[str, Any] = {"publication_definitions": str(definitions)} if way == "with" else {}
    folder.configure(conninfo, PUBLICATION, slot_name=f"bench_{way}", **keys)
    definitions.write_text(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE w1 WHERE ({FILTER});\n", encoding="utf-8")
    return folder


def _run(
    server: EmbeddedPostgres,
    connection: Connection,
    daemon: DaemonProcess,
    folders: dict[str, BridgeFolder],
    number: int,
    scale: float,
) -> dict[str, float]:
    """Write the workload into an empty table, and let each way catch up; return its seconds.

    Raises:
        BenchmarkError: A table differs from the publisher's.
    """
    end_lsn = Lsn(0)
    if scale:
        connection.execute("TRUNCATE w1")
        WORKLOADS["W1"].load(server, _DBNAME, scale)
        end_lsn = insert_lsn(connection)
    tables = columns_of(connection, PUBLICATION)
    expected, seconds = in_postgresql(connection, tables), dict[str, float]()
    for way in in_turn(list(folders), number):
        applied = daemon.catch_up(Job(str(folders[way].path), str(end_lsn), tables, server.pid, rest_s=1.0))
        if {name: tuple(sums) for name, sums in applied.checksums.items()} != expected:
            raise BenchmarkError(f"{way} a filter: the tables have {applied.checksums}, not {expected}")
        seconds[way] = applied.seconds
        typer.echo(f"run {number}: {way} a filter {applied.seconds:.1f} s, JVM {applied.jvm_cpu_s:.1f} s", err=True)
    return seconds


if __name__ == "__main__":
    typer.run(main)
