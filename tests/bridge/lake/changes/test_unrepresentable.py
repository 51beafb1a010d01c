"""Values that a target cannot hold: what filters make of them is PostgreSQL's; what passes is NULL or an error."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, UPDATE
from bridge.lake.changes.unrepresentable import exact, held, unheld_of
from bridge.lake.schema import spark_type
from bridge.lake.source import as_frame
from bridge.rowfilter.row_filter import FilterColumn, translate
from bridge.targets.target import TargetColumn
from protocol.values.types import resolve

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
        columns.append(exact(name, value, F.when(~plain, F.col(name)), sql_type).alias(name))
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


def test_what_a_filter_cannot_see_is_an_error_when_it_looks(spark):
    """With the column, the value and what can be done; a verdict without it is one."""
    frame = spark.sql("SELECT 1 AS id, CAST(NULL AS decimal(5,2)) AS n, 'NaN' AS text")
    value = exact("n", F.col("n"), F.col("text"), frame.schema["n"].dataType)
    assert frame.select((F.col("id") == 2) & (value > 1)).collect() == [(False,)]
    with pytest.raises(PySparkException) as raised:
        frame.select(value > 1).collect()
    found = unheld_of(raised.value)
    assert found is not None
    assert found.column == "n"
    assert found.message == ("column \"n\": value 'NaN' cannot be represented: the column holds finite numbers only")
    assert found.hint.startswith("a row filter uses this value")
    assert unheld_of(ValueError("something else")) is None
    late = spark.sql("SELECT CAST(NULL AS timestamp) AS tz, '294276-12-31 23:59:59+00' AS text")
    with pytest.raises(PySparkException, match="294276"):
        late.select(exact("tz", F.col("tz"), F.col("text"), late.schema["tz"].dataType)).collect()


COLUMNS = [TargetColumn("id", resolve(1082, -1, {})), TargetColumn("day", resolve(1082, -1, {}))]


def passed(spark, op, old=NO_OLD, *, new=(None, None), olds=(None, None), key=(0,), policy="error"):
    """A change with these texts, as it comes out; or what it was stopped by."""
    day = pa.array([None], pa.date32())
    table = pa.table(
        {
            "op": pa.array([op], pa.int16()), "old": pa.array([old], pa.int16()),
            "new_0": day, "new_1": day, "old_0": day, "old_1": day,
            **{f"unheld_{i}": pa.array([text], pa.string()) for i, text in enumerate(new)},
            **{f"oldunheld_{i}": pa.array([text], pa.string()) for i, text in enumerate(olds)},
        }
    )  # fmt: skip
    frame = held(as_frame(spark, table), COLUMNS, key, policy)
    assert frame.columns == ["op", "old", "new_0", "new_1", "old_0", "old_1"]
    try:
        return frame.select("op", "old").collect() == [(op, old)]
    except PySparkException as error:
        found = unheld_of(error)
        assert found is not None
        return found.column, "found by this column" in found.hint


def test_what_has_passed(spark):
    """NULL where it may be; a key's never; of an old row only what it is found by."""
    odd = (None, "infinity")
    assert passed(spark, INSERT, new=odd) == ("day", False)
    assert passed(spark, INSERT, new=odd, policy="null") is True
    assert passed(spark, UPDATE, new=("infinity", None), policy="null") == ("id", True)
    assert passed(spark, DELETE, KEY_TUPLE, new=odd, olds=odd) is True
    assert passed(spark, DELETE, KEY_TUPLE, olds=("infinity", None), policy="null") == ("id", True)
    assert passed(spark, DELETE, KEY_TUPLE, olds=odd, key=()) == ("day", False)
    assert passed(spark, DELETE, KEY_TUPLE, olds=odd, key=(), policy="null") is True
    assert passed(spark, UPDATE, new=(None, None), olds=("infinity", None)) is True


def test_without_such_values_nothing_is_done(spark):
    frame = spark.sql("SELECT 1 AS op, 0 AS old, 2 AS new_0")
    assert held(frame, COLUMNS[:1], (0,), "error") is frame
