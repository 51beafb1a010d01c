"""Many small batches on one table: whether the last ones take as long as the first, and how many files there are.

No PostgreSQL: changes are as the batcher leaves them, and the project's own `apply_table` commits them, each batch with
a stamp of its own. Nothing is restored, so the log grows as it does in use. Files are maintained as those of a stream
that is never idle.
"""

from __future__ import annotations

import json
import statistics
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.apply import MASTER, make_table
from benchmarks.apply_tables import Size
from pgbridge.bridge.apply.maintenance import DeltaTables, Maintenance, Policy
from pgbridge.bridge.batch.batch import TableChanges
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.effects.events import INSERT, UPDATE
from pgbridge.bridge.lake.commit.apply_table import apply_table
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.table_facts import KnownTables
from pgbridge.bridge.runtime import log
from pgbridge.bridge.spark import session
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from pgbridge.bridge.targets.target import Target

_ROWS: Final = 100_000
_INSERTS: Final = 0.3  # of a batch's changes; the others are updates of rows that the table has, wherever they are
_SAY_EVERY: Final = 100
_LAG_S: Final = 5.0  # the stream's: it is never idle


@dataclass(slots=True)
class Series:
    """The batches on one table.

    Attributes:
        keys: One of `apply_tables.KEYS`.
        seconds: Of each batch, with the maintenance before it; without those that were not measured.
        files: The number of the table's data files after each of them.
    """

    keys: str
    seconds: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def parts(self, number: int) -> Iterator[tuple[list[float], list[int]]]:
        """Divide the batches into parts of about the same length; the earlier ones first."""
        for rows in np.array_split(np.arange(len(self.seconds)), number):
            yield [self.seconds[row] for row in rows], [self.files[row] for row in rows]

    def ratio(self) -> float:
        """The median of the last twentieth over that of the first."""
        parts = list(self.parts(20))
        return statistics.median(parts[-1][0]) / statistics.median(parts[0][0])


def measure(
    folder: Path,
    all_keys: Sequence[str],
    *,
    batches: int,
    changes: int,
    warm_up: int,
    say: Callable[[str], None] = lambda _: None,
) -> list[Series]:
    """Apply batches to a table for each kind of keys.

    Args:
        folder: For the tables.
        all_keys: Some of `apply_tables.KEYS`.
        batches: How many batches each gets.
        changes: How many changes a batch has.
        warm_up: How many batches each gets before, to a table of their own: a young JVM is slow.
        say: Called with a line for each hundred.
    """
    spark = session.start(MASTER, {"spark.local.dir": str(folder / "spark")})
    try:
        for keys in all_keys:
            _apply(spark, str(folder / f"warm-{keys}"), keys, warm_up, changes, lambda _: None)
        return [_apply(spark, str(folder / keys), keys, batches, changes, say) for keys in all_keys]
    finally:
        session.driver_of(spark).stop(spark)


def _apply(spark: SparkSession, path: str, keys: str, batches: int, changes: int, say: Callable[[str], None]) -> Series:
    size, series, own = Size(_ROWS, keys), Series(keys), session.fork(spark)
    target = make_table(own, path, size)
    known = KnownTables()
    made, files = _batches(size, target, batches, changes), _Files(Path(path, "_delta_log"))
    with closing(Catalog(catalog_path(Path(f"{path}-state")))) as catalog:
        maintenance = _maintenance(own, catalog, target)
        for number, batch in enumerate(made, start=1):
            started_s = time.perf_counter()
            if maintenance.due(_LAG_S):
                maintenance.run_one(_LAG_S)
            with stamped(own, CommitStamp("pgbridge/many_batches", Lsn(number - 1), Lsn(number))):
                apply_table(own, batch, known=known)
            maintenance.committed([path])
            series.seconds.append(time.perf_counter() - started_s)
            series.files.append(files.count())
            if number % _SAY_EVERY == 0:
                say(f"{keys}: {number} batches, the last {series.seconds[-1]:.2f} s, {series.files[-1]} files")
    return series


def _maintenance(spark: SparkSession, catalog: Catalog, target: Target) -> Maintenance:
    catalog.register("many", enabled=True)
    catalog.put_rel("many", RelRow(target.namespace, target.name, "r", Lsn(0), target.path))
    tables, policy = DeltaTables(spark, LocalTables()), Policy("created", 0)
    return Maintenance(catalog, "many", tables, policy, log.get("many"), lambda: False, time.time)


class _Files:
    """Counts a table's data files by its log: what Spark reads for that would make the next batch faster.

    Args:
        log: The folder `_delta_log`.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._version = 0
        self._paths: set[str] = set()

    def count(self) -> int:
        """Read the commits since the last call."""
        while (commit := self._log / f"{self._version:020}.json").exists():
            for line in commit.read_text(encoding="utf-8").splitlines():
                action = json.loads(line)
                if "remove" in action:
                    self._paths.discard(action["remove"]["path"])
                if "add" in action:
                    self._paths.add(action["add"]["path"])
            self._version += 1
        return len(self._paths)


def _batches(size: Size, target: Target, batches: int, changes: int) -> Iterator[TableChanges]:
    random, rows = np.random.default_rng(1), size.rows
    inserts = max(1, round(changes * _INSERTS))
    for _ in range(batches):
        old = random.choice(rows, changes - inserts, replace=False)
        ids = np.concatenate([old, np.arange(rows, rows + inserts)])
        rows += inserts
        op = np.where(np.arange(changes) < changes - inserts, UPDATE, INSERT).astype(np.int16)
        table: pa.Table = size.changes(ids, op)
        yield TableChanges(target, size.columns, (0,), table)
