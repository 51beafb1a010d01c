"""Verdicts of Spark on decoded rows: PostgreSQL's for every value, and whose error a filter's error is."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.batch.row_filters import RowFilters
from bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, UPDATE
from bridge.lake.changes.verdicts import SparkVerdicts, exact
from bridge.lake.schema import spark_type
from bridge.rowfilter.on_server.server_filter import VerdictError
from bridge.rowfilter.row_filter import FilterColumn, translate
from protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

TYPES = {name: resolve(oid, -1, {}) for name, oid in (("day", 1082), ("ts", 1114), ("tz", 1184))}
DAYS = [
    "-infinity", "4713-01-01 BC", "0044-03-15 BC", "0001-12-31 BC", "0001-01-01", "2020-02-29", "9999-12-31",
    "10000-01-01", "294246-12-31", "300000-02-28", "5874897-12-31", "infinity", None,
]  # fmt: skip
TIMES = [
    "-infinity", "4713-01-01 00:00:00 BC", "0044-03-15 12:34:56.7 BC", "0001-01-01 00:00:00",
    "2020-02-29 12:34:56.789012", "9999-12-31 23:59:59.999999", "10000-01-01 00:00:00",
    "294246-12-31 23:59:59.999999", "infinity", None,
]  # fmt: skip
EXACT = [
    "day = 'infinity'", "day <> 'infinity'", "day < 'infinity'", "day > '-infinity'", "day <= '-infinity'",
    "day < '0044-03-15 BC'", "day >= '10000-01-01'", "day = '294246-12-31'", "day IN ('infinity', '0044-03-15 BC')",
    "day BETWEEN '0044-03-15 BC' AND '20000-01-01'", "day IS NULL", "day IS DISTINCT FROM 'infinity'",
    "isfinite(day)", "NOT isfinite(ts)", "isfinite(tz)", "coalesce(day, 'infinity') = 'infinity'",
    "greatest(day, '9999-12-31') = day", "nullif(day, '-infinity') IS NULL", "day < ts", "ts <= day", "day = ts",
    "day > timestamp '294270-01-01'", "ts = 'infinity'", "ts < '10000-01-01 00:00:01'", "ts < '294270-01-01'",
    "ts = '294270-01-01'", "ts > '294270-01-01'", "tz > '9999-12-31 23:59:59.999999+00'",
    "tz = '0044-03-15 12:34:56.7+00 BC'", "tz = '-infinity'",
    "CASE WHEN isfinite(day) THEN extract(year FROM day) > 9999 OR extract(month FROM day) = 3 END",
    "CASE WHEN isfinite(day) AND day < '294276-01-01' THEN day + 1 > '10000-01-01' END",
    "CASE WHEN isfinite(ts) THEN ts::date = '0044-03-15 BC' END",
    "CASE WHEN isfinite(ts) THEN ts::date < 'infinity' END",
    "CASE WHEN isfinite(ts) THEN date_trunc('year', ts) = '10000-01-01' END",
    "CASE WHEN isfinite(ts) THEN ts - interval '1 day' < '0044-03-15 BC' END",
]  # fmt: skip
LOUD = [
    "day + 1 = 'infinity'", "day - 1 = 'infinity'", "extract(year FROM day) > 1", "ts::date = 'infinity'",
    "ts + interval '1 day' > ts", "ts - interval '1 day' > ts", "date_trunc('day', ts) = ts", "day::timestamp > ts",
    "day - date '2020-01-01' > 1",
]  # fmt: skip


def seen(spark, rows):
    """Rows of texts as a filter sees them: what a target holds as itself, the rest as a text beside NULL."""
    frame = spark.createDataFrame(rows, "id int, " + ", ".join(f"{name} string" for name in TYPES))
    columns = [F.col("id")]
    for name, type_ in TYPES.items():
        sql_type = spark_type(type_.arrow)
        plain = F.col(name).rlike(r"^\d{4}-[^B]*$")
        value = F.when(plain, F.try_cast(name, sql_type) if hasattr(F, "try_cast") else F.col(name).try_cast(sql_type))
        columns.append(exact(name, value, F.when(~plain, F.col(name)), type_.arrow).alias(name))
    return frame.select(*columns)


def translated(expression):
    return translate(expression, {name: FilterColumn(type_) for name, type_ in TYPES.items()}, table=("public", "r"))


def test_verdicts_are_the_servers(spark, publisher):
    """Of infinities, years before Christ and beyond 9999; with a date or a timestamp beside them."""
    publisher.execute("CREATE TABLE r (id int, day date, ts timestamp, tz timestamptz)")
    rows = [(day, time) for day in DAYS for time in TIMES]
    with publisher.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for number, (day, time) in enumerate(rows):
            zoned = time and (time.replace(" BC", "+00 BC") if "BC" in time else time + "+00" * (time[-1].isdigit()))
            connection.execute("INSERT INTO r VALUES (%s, %s, %s, %s)", (number, day, time, zoned))
        texts = connection.execute("SELECT id, day::text, ts::text, tz::text FROM r ORDER BY id").fetchall()
        verdicts = connection.execute(
            f"SELECT {', '.join(f'({text})' for text in EXACT)} FROM r ORDER BY id"
        ).fetchall()
        connection.commit()
    frame = seen(spark, texts)
    columns = [translated(text).to_spark(F.col).alias(f"v{i}") for i, text in enumerate(EXACT)]
    found = [tuple(row)[1:] for row in frame.select("id", *columns).orderBy("id").collect()]
    wrong = [
        (EXACT[i], texts[n], ours[i], theirs[i])
        for n, (ours, theirs) in enumerate(zip(found, verdicts, strict=True))
        for i in range(len(EXACT))
        if ours[i] != theirs[i]
    ]
    assert wrong == []


@pytest.mark.parametrize("end", ["infinity", "-infinity"])
def test_what_is_not_reckoned_with_infinity_is_an_error(spark, end):
    frame = seen(spark, [(1, end, end, end)])
    for expression in LOUD:
        with pytest.raises(PySparkException, match=r"infinity .*is not translated"):
            frame.select(translated(expression).to_spark(F.col)).collect()


# --- Over the rows of a table: `id int4`, `n int4`, `num numeric(5, 2)`.

POSITIONS = {"n": 1, "num": 2}


def decoded(*changes: tuple[int, Any, Any], **texts: list[str | None]) -> pa.Table:
    """Changes as (operation, old n, new n), an old "-" for none; and texts of values that are not held."""
    none = [old == "-" for _, old, _ in changes]
    columns: dict[str, Any] = {
        "op": pa.array([op for op, _, _ in changes], pa.uint8()),
        "old": pa.array([NO_OLD if n else KEY_TUPLE for n in none], pa.uint8()),
    }
    for i, type_ in enumerate((pa.int32(), pa.int32(), pa.decimal128(5, 2))):
        columns |= {f"new_{i}": pa.nulls(len(changes), type_), f"old_{i}": pa.nulls(len(changes), type_)}
    columns["new_1"] = pa.array([new for _, _, new in changes], pa.int32())
    columns["old_1"] = pa.array([None if n else old for n, (_, old, _) in zip(none, changes, strict=True)], pa.int32())
    return pa.table(columns | {name: pa.array(values, pa.string()) for name, values in texts.items()})


@dataclass(frozen=True)
class Above:
    """`n > limit`."""

    limit: int
    columns: frozenset[str] = frozenset({"n"})

    def to_spark(self, resolve: Callable[[str], Column]) -> Column:
        return resolve("n") > self.limit

    def true(self, n: Any) -> bool:
        """The same, for the model."""
        return n is not None and n > self.limit


def filters_of(text: str) -> RowFilters:
    columns = {"n": FilterColumn(resolve(23, -1, {})), "num": FilterColumn(resolve(1700, (5 << 16 | 2) + 4, {}))}
    found = translate(text, columns)
    return RowFilters(found, found, found)


def test_random_changes(spark):
    """Each action has its own filter, or none; NULL is no match; an UPDATE without an old tuple has its new row's."""
    rng = random.Random(3)

    def n() -> int | None:
        return rng.choice([None, 5, 10, 11, 20])

    changes = [
        (op, n() if op == DELETE or (op == UPDATE and rng.random() < 0.6) else "-", None if op == DELETE else n())
        for op in rng.choices([INSERT, UPDATE, DELETE], k=300)
    ]
    table, verdicts = decoded(*changes), SparkVerdicts(spark)
    for insert, update, delete in ((Above(10), Above(5), Above(10)), (None, Above(10), None), (Above(4), None, None)):
        of = {INSERT: insert, UPDATE: update, DELETE: delete}
        old_passes, new_passes = verdicts.passes(RowFilters(insert, update, delete), table, {"n": 1})
        for (op, old, new), old_passed, new_passed in zip(changes, old_passes, new_passes, strict=True):
            own = of[op]
            assert bool(old_passed) is (own is None or old == "-" or own.true(old))
            assert bool(new_passed) is (own is None or op == DELETE or own.true(new))


def test_rows_without_old_tuples(spark):
    table = decoded((INSERT, "-", 20), (UPDATE, "-", 5)).select(["op", "old", "new_0", "new_1", "new_2"])
    old_passes, new_passes = SparkVerdicts(spark).passes(filters_of("n > 10"), table, {"n": 1})
    assert (old_passes.tolist(), new_passes.tolist()) == ([True, True], [True, False])


def test_the_first_row_with_an_error_is_told(spark):
    """Also of many; a row that the filter of its action does not look at is none."""
    rows = [(INSERT, "-", 1)] * 40 + [(DELETE, 3, None), (UPDATE, 0, 4), (INSERT, "-", 0)] + [(INSERT, "-", 1)] * 40
    with pytest.raises(VerdictError, match="Division by zero") as raised:
        SparkVerdicts(spark).passes(filters_of("1 / n = 1"), decoded(*rows), {"n": 1})
    assert (raised.value.row, raised.value.column) == (41, None)
    only = RowFilters(delete=filters_of("1 / n = 1").delete)
    assert np.all(SparkVerdicts(spark).passes(only, decoded(*rows[41:]), {"n": 1}))


def test_what_a_filter_cannot_see_is_an_error_when_it_looks(spark):
    """With the column, the value and what can be done; a verdict without it is one."""
    rows = decoded((INSERT, "-", 1), (INSERT, "-", 2), (INSERT, "-", 2), unheld_2=["NaN", None, "NaN"])
    passed = SparkVerdicts(spark).passes(filters_of("n = 3 AND num > 1"), rows, POSITIONS)[1]
    assert passed.tolist() == [False, False, False]
    with pytest.raises(VerdictError) as raised:
        SparkVerdicts(spark).passes(filters_of("n = 2 AND num > 1"), rows, POSITIONS)
    error = raised.value
    assert (error.row, error.column) == (2, "num")
    assert error.reason == "column \"num\": value 'NaN' cannot be represented: the column holds finite numbers only"
    assert error.hint.startswith("a row filter uses this value")
    late = spark.sql("SELECT CAST(NULL AS timestamp) AS tz, '294276-12-31 23:59:59+00' AS text")
    with pytest.raises(PySparkException, match="294276"):
        late.select(exact("tz", F.col("tz"), F.col("text"), pa.timestamp("us", "UTC"))).collect()
