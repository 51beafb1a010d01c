"""What a commit costs: kinds of change, numbers of rows, sizes of tables, serial and random keys. No PostgreSQL.

Spark makes the tables. Changes are as the batcher leaves them, and the project's own `apply_table` commits them. After
each commit the table is restored, so that all commits find the same rows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from benchmarks.apply_tables import RANDOM
from benchmarks.disturbed import in_turn, stolen_s
from pgbridge.bridge.batch.batch import TableChanges
from pgbridge.bridge.lake.commit.apply_table import apply_table
from pgbridge.bridge.lake.commit.execute import enable_vectors
from pgbridge.bridge.lake.commit.plan import LARGE_BYTES
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.location import read_table
from pgbridge.bridge.lake.schema import spark_schema
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.lake.table_facts import KnownTables, read_facts
from pgbridge.bridge.lake.writes import overwrite_rows
from pgbridge.bridge.spark import session
from pgbridge.bridge.targets.target import Target, target_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from benchmarks.apply_tables import Case, Size

MASTER: Final = "local[2]"

_ROWS_PER_FILE: Final = 1_000_000
_FILES_AT_ONCE: Final = 10


@dataclass(frozen=True, slots=True)
class Cost:
    """What one commit cost.

    Attributes:
        seconds: Wall clock.
        cpu_s: CPU time of the JVM and of this process.
        jobs: Spark's jobs.
        files: Files that were written beside the log: data and deletion vectors.
        size_bytes: Their size.
        stolen_s: CPU time of this machine that the host gave to others.
    """

    seconds: float
    cpu_s: float
    jobs: int
    files: int
    size_bytes: int
    stolen_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A case's commits."""

    case: Case
    costs: list[Cost] = field(default_factory=list)


def measure(
    folder: Path, cases: Sequence[Case], *, rounds: int, say: Callable[[str], None] = lambda _: None
) -> list[Measured]:
    """Measure commits. In each round every case runs once; they take turns in being first.

    Args:
        folder: For the tables.
        cases: What to commit.
        rounds: Number of commits of each case, after one that is not measured.
        say: Called with a line for each table and commit.
    """
    spark = session.start(MASTER, {"spark.driver.memory": "3g", "spark.local.dir": str(folder / "spark")})
    try:
        meter = _Meter(spark)
        targets: dict[Size, Target] = {}
        for size in dict.fromkeys(case.size for case in cases):
            targets[size] = make_table(spark, str(folder / f"t{len(targets)}"), size)
            say(f"made a table of {size}")
        measured = {case: Measured(case) for case in cases}
        known = KnownTables()
        sessions = {size: session.fork(spark) for size in targets}
        for number in range(rounds + 1):
            for case in in_turn(list(cases), number):
                cost = _commit(meter, sessions[case.size], targets[case.size], case, number, known)
                if number:
                    measured[case].costs.append(cost)
                    say(f"round {number}: {case}: {cost.seconds:.2f} s, CPU {cost.cpu_s:.2f} s, {cost.jobs} jobs")
        return list(measured.values())
    finally:
        session.driver_of(spark).stop(spark)


def make_table(spark: SparkSession, path: str, size: Size) -> Target:
    """Make a table of a size, in files of a million rows, as a copy leaves it: a large one is in its key's order."""
    fields = [(column.name, column.type.arrow) for column in size.columns]
    create_table(spark, path, spark_schema(fields))
    for first in range(0, size.rows, _FILES_AT_ONCE * _ROWS_PER_FILE):
        last = min(first + _FILES_AT_ONCE * _ROWS_PER_FILE, size.rows)
        rows = spark.range(first, last, 1, -(-(last - first) // _ROWS_PER_FILE)).selectExpr(*size.expressions())
        rows.write.format("delta").mode("append").save(path)
    if size.keys == RANDOM and read_facts(spark, path).size_bytes >= LARGE_BYTES:
        divided = read_table(spark, path).repartitionByRange(size.rows // _ROWS_PER_FILE, "id")
        overwrite_rows(divided.sortWithinPartitions("id"), path)
    enable_vectors(
        spark, path, KnownTables(), places=False
    )  # here, because the RESTORE after the first commit would take it back
    return Target("public", Path(path).name, path, target_schema(fields))


class _Meter:
    """Measures what calls cost on one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._own = psutil.Process()
        self._jvm = next(child for child in self._own.children(recursive=True) if "java" in child.name())

    def cost(self, commit: Callable[[], None], path: str) -> Cost:
        """Call `commit`, which writes to a table."""
        files, jobs, cpu_s, stolen = set(_data_files(path)), self._jobs(), self._cpu_s(), stolen_s()
        started_s = time.perf_counter()
        commit()
        seconds = time.perf_counter() - started_s
        new = set(_data_files(path)) - files
        return Cost(
            seconds,
            self._cpu_s() - cpu_s,
            self._jobs() - jobs,
            len(new),
            sum(file.stat().st_size for file in new),
            stolen_s() - stolen,
        )

    def _jobs(self) -> int:
        context: Any = self._spark.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark does not count jobs
        return int(context.dagScheduler().nextJobId())

    def _cpu_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in (self._own, self._jvm))


def _data_files(path: str) -> Iterator[Path]:
    return (file for file in Path(path).iterdir() if file.is_file() and file.suffix != ".crc")


def _commit(meter: _Meter, spark: SparkSession, target: Target, case: Case, seed: int, known: KnownTables) -> Cost:
    """Commit changes to a table, and restore it."""
    changes = TableChanges(target, case.size.columns, (0,), case.changes_of(seed))
    version = table_version(spark, target.path)
    cost = meter.cost(lambda: apply_table(spark, changes, known=known), target.path)
    spark.sql(f"RESTORE TABLE delta.`{target.path}` TO VERSION AS OF {version}").collect()
    return cost
