"""The cost of a row filter: applies W1's changes with and without one, in turn.

`python -m benchmarks.filter_cost` makes W1's changes (1 M inserts, 500 k updates, 100 k deletes) as batches of Arrow,
as the decoder leaves them, asks Spark for the verdicts on them, a block at a time, and applies them to a Delta table
through the project's own `apply_table`. The filter passes every row, so that all other work is the same.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer

from benchmarks import report
from bridge.batch.batch import TableChanges
from bridge.batch.row_filters import RowFilters
from bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, UPDATE
from bridge.lake.changes.verdicts import SparkVerdicts
from bridge.lake.commit.apply_table import apply_table
from bridge.lake.ddl import create_table
from bridge.lake.schema import spark_schema
from bridge.rowfilter.row_filter import FilterColumn, translate
from bridge.spark import session
from bridge.targets.target import Target, TargetColumn, target_schema
from protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_COLUMNS: Final = (
    ("id", 20, -1),
    ("parent", 20, -1),
    ("ratio", 701, -1),
    ("code", 25, -1),
    ("digest", 25, -1),
    ("at", 1184, -1),
    ("active", 16, -1),
    ("amount", 1700, (12 << 16 | 2) + 4),
)
FILTER: Final = "(amount >= 0 AND id > 0 AND ratio IS NOT NULL) OR code LIKE 'never%' OR (active AND parent % 7 = 3)"
"""A filter with numbers, a pattern, boolean logic and arithmetic, which every row passes."""

_BATCH: Final = 500_000
_BLOCK: Final = 50_000
_LIMIT: Final = 0.15


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Number of runs of each way.")] = 3,
    scale: Annotated[float, typer.Option(min=0.001, help="Part of W1 to run: 1 for all.")] = 1.0,
    to: Annotated[Path | None, typer.Option("--report", help="File to write the report to.", metavar="FILE")] = None,
) -> None:
    """Measure, print, and write a report."""
    columns = tuple(TargetColumn(name, resolve(oid, typmod, {})) for name, oid, typmod in _COLUMNS)
    one = translate(FILTER, {column.name: FilterColumn(column.type) for column in columns})
    ways: dict[str, RowFilters | None] = {"without": None, "with": RowFilters(one, one, one)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(prefix="pgbridge-filter-") as folder:
        spark = session.start("local[2]", {"spark.driver.memory": "3g"})
        _run(spark, f"{folder}/warm", columns, ways["with"], min(scale, 0.05))
        for number in range(rounds):
            order = list(ways) if number % 2 == 0 else list(ways)[::-1]
            for name in order:
                seconds[name].append(_run(spark, f"{folder}/{name}{number}", columns, ways[name], scale))
                typer.echo(f"round {number + 1}: {name} a filter {seconds[name][-1]:.1f} s", err=True)
        spark.stop()
    costs = [with_ / without - 1 for with_, without in zip(seconds["with"], seconds["without"], strict=True)]
    text = (
        f"applying W1 at scale {scale:g}: {statistics.median(seconds['without']):.1f} s without a filter, "
        f"{statistics.median(seconds['with']):.1f} s with one; it costs {statistics.median(costs):.1%} "
        f"({min(costs):.1%} to {max(costs):.1%}; the limit is {_LIMIT:.0%})"
    )
    typer.echo(text)
    if to is not None:
        facts = "\n".join(f"- {key}: {value}" for key, value in report.facts("none", {}).items())
        to.write_text(f"# What a row filter costs\n\n{facts}\n\n`{FILTER}`: {text}.\n", encoding="utf-8")


def _run(
    spark: SparkSession, path: str, columns: tuple[TargetColumn, ...], filters: RowFilters | None, scale: float
) -> float:
    """Apply all changes to a new table; return the seconds."""
    fields = [(column.name, column.type.arrow) for column in columns]
    create_table(spark, path, spark_schema(fields))
    target, verdicts = Target("public", "w1", path, target_schema(fields)), SparkVerdicts(spark)
    positions = {column.name: i for i, column in enumerate(columns)}
    total_s = 0.0
    for changes in _batches(columns, scale):
        started_s = time.perf_counter()
        for first in range(0, len(changes) if filters is not None else 0, _BLOCK):
            assert filters is not None
            old_passes, new_passes = verdicts.passes(filters, changes.slice(first, _BLOCK), positions)
            assert old_passes.all()
            assert new_passes.all()
        apply_table(spark, TableChanges(target, columns, (0,), changes))
        total_s += time.perf_counter() - started_s
    return total_s


def _batches(columns: tuple[TargetColumn, ...], scale: float) -> Iterator[pa.Table]:
    """Return W1's changes, in the columns of `TableChanges.changes`."""
    for op, rows in ((INSERT, 1_000_000), (UPDATE, 500_000), (DELETE, 100_000)):
        total = max(1, round(rows * scale))
        for first in range(1, total + 1, _BATCH):
            yield _changes(columns, op, np.arange(first, min(first + _BATCH, total + 1)))


def _changes(columns: tuple[TargetColumn, ...], op: int, ids: np.ndarray) -> pa.Table:
    count = len(ids)
    texts = pc.cast(pa.array(ids), pa.string())
    values = [
        pa.array(ids),
        pa.array(ids * 7919 % 1_000_003),
        pa.array(np.sqrt(ids) + (op == UPDATE)),
        pc.utf8_lpad(texts, 20, "x"),
        pc.utf8_lpad(texts, 32, "abcdef0123456789"[0]),
        pa.array(ids * 1_000_001, pa.timestamp("us", "UTC")),
        pa.array(ids % 3 == 0),
        pc.cast(pc.divide(pa.array(ids * 104_729 % 1_000_000_007).cast(pa.float64()), 100.0), pa.decimal128(12, 2)),
    ]
    if op == DELETE:
        values = [pa.nulls(count, column.type.arrow) for column in columns]
    table = {
        "seq": pa.array(np.arange(count)),
        "op": pa.array(np.full(count, op, np.int16)),
        "old": pa.array(np.full(count, KEY_TUPLE if op == DELETE else NO_OLD, np.int16)),
        **{f"new_{i}": value.cast(columns[i].type.arrow) for i, value in enumerate(values)},
    }
    if op == DELETE:
        # the replica identity covers the filter's columns, as PostgreSQL demands
        old = _changes(columns, INSERT, ids)
        table |= {f"old_{i}": old[f"new_{i}"] for i in range(len(columns))}
    return pa.table(table)


if __name__ == "__main__":
    typer.run(main)
