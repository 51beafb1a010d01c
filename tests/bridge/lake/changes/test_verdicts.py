"""Verdicts of Spark on decoded rows: PostgreSQL's for every value, and whose error a filter's error is.

What is published of a table: filters for Spark, or a server's, of real tables.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, functions as F

from pgbridge.bridge.batch.row_filters import RowFilters, ServerFilters
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, UPDATE
from pgbridge.bridge.lake.changes.verdicts import _SETTINGS, AnyOf, EntryFilterCompiler, SparkVerdicts, exact
from pgbridge.bridge.lake.schema import spark_type
from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.publication.routing import Routing
from pgbridge.bridge.receive.filter_server import FilterServer
from pgbridge.bridge.receive.publications import read_relations
from pgbridge.bridge.receive.publisher import Publisher as Server
from pgbridge.bridge.rowfilter.row_filter import FilterColumn, RowFilterError, translate
from pgbridge.bridge.rowfilter.server_filter import VerdictError
from pgbridge.bridge.spark.session import companion, fork
from pgbridge.protocol.values.types import resolve
from pgbridge.protocol.values.value_array import show
from tests.bridge.publication.server_publications import routing

if TYPE_CHECKING:
    from collections.abc import Callable

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


def test_a_filter_with_a_list(spark):
    """Its columns are remembered by the filter, which has it as a constant."""
    rows = decoded((INSERT, "-", 1), (INSERT, "-", 2), (INSERT, "-", 7))
    passed = SparkVerdicts(spark).passes(filters_of("n = ANY ('{1,7}'::int[])"), rows, POSITIONS)[1]
    assert passed.tolist() == [True, False, True]


def test_filters_without_columns(spark):
    table, nobody = decoded((INSERT, "-", 20), (UPDATE, 1, 5), (DELETE, 3, None)), filters_of("1 = 2")
    old_passes, new_passes = SparkVerdicts(spark).passes(nobody, table, {})
    assert (old_passes.tolist(), new_passes.tolist()) == ([True, False, False], [False, False, True])


def test_the_first_row_with_an_error_is_told(spark):
    """Also of many; a row that the filter of its action does not look at is none."""
    rows = [(INSERT, "-", 1)] * 40 + [(DELETE, 3, None), (UPDATE, 0, 4), (INSERT, "-", 0)] + [(INSERT, "-", 1)] * 40
    with pytest.raises(VerdictError, match="Division by zero") as raised:
        SparkVerdicts(spark).passes(filters_of("1 / n = 1"), decoded(*rows), {"n": 1})
    assert (raised.value.row, raised.value.column) == (41, None)
    only = RowFilters(delete=filters_of("1 / n = 1").delete)
    assert np.all(SparkVerdicts(spark).passes(only, decoded(*rows[41:]), {"n": 1}))


def test_an_and_protects_what_is_behind_it_in_compiled_code_too(spark):
    """Also what is written twice there: common parts would be computed first."""
    session = fork(spark)
    compiling = companion(session, "verdicts", _SETTINGS)
    compiling.conf.set("spark.sql.codegen.wholeStage", "true")  # the tests' Spark compiles nothing
    compiling.conf.set("spark.sql.codegen.factoryMode", "CODEGEN_ONLY")
    compiling.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")  # as for many rows
    rows = decoded((INSERT, "-", 0), (INSERT, "-", 5))
    for behind in ("10 / n BETWEEN 1 AND 3", "10.0::float8 / n > 0.5", "CASE WHEN n > 0 THEN 9 / n + 9 / n > 1 END"):
        passed = SparkVerdicts(session).passes(filters_of(f"n <> 0 AND {behind}"), rows, {"n": 1})[1]
        assert passed.tolist() == [False, True], behind


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

    def text_seen(*row: str | None) -> Any:
        frame = spark.createDataFrame([row], "v string, text string")
        return frame.select(exact("v", F.col("v"), F.col("text"), pa.string()).alias("v")).collect()[0].v

    assert (text_seen("a", None), text_seen(None, ""), text_seen(None, None)) == ("a", "", None)
    with pytest.raises(PySparkException, match="4dfc6c6c6572"):
        text_seen(None, show(b"M\xfcller"))


@pytest.fixture
def entry_of(publisher):
    """The entry of a table by a text of definitions."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, n int, note text)")
    publisher.execute("CREATE TABLE other (id int PRIMARY KEY)")

    def made(text, name="t"):
        return {entry.target.name: entry for entry in routing(publisher, text).targets.values()}[name]

    return made


def types(wanted):
    return [resolve(oid, typmod, {}) for oid, typmod in wanted]


def test_any_of_several_filters(spark, entry_of):
    """NULL in one does not hide that another is true."""
    text = "CREATE PUBLICATION p FOR TABLE t WHERE (n > 5); CREATE PUBLICATION q FOR TABLE t WHERE (id = 1)"
    found = EntryFilterCompiler(types, None).compile(entry_of(text))
    assert isinstance(found, RowFilters)
    either = found.insert
    assert isinstance(either, AnyOf)
    assert either.columns == {"n", "id"}
    from pyspark.sql import functions as F

    frame = spark.sql("VALUES (1, NULL), (2, 6), (3, 1), (4, NULL) AS t(id, n)")
    matching = frame.filter(F.coalesce(either.to_spark(F.col), F.lit(False)))
    assert sorted(row.id for row in matching.collect()) == [1, 2]


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("note ILIKE 'a%'", 'filter_server = "publisher" has the PostgreSQL server compute it'),
        ("now() > '2020-01-01'", ""),  # which no server does
    ],
)
def test_what_is_not_translated_is_refused_with_the_way_out(entry_of, expression, hint):
    entry = entry_of(f"CREATE PUBLICATION p FOR TABLE t WHERE ({expression})")
    with pytest.raises(RowFilterError) as caught:
        EntryFilterCompiler(types, None).compile(entry)
    assert caught.value.hint == hint


@pytest.mark.parametrize(("locale", "translated"), [("C", True), ("C.UTF-8", False)])
def test_case_by_the_builtin_provider(postgresql_server, publisher, locale, translated):
    """Of "C" it is ASCII's; the others have the tables of the server's Unicode."""
    name = f"{publisher.name}_builtin"
    with postgresql_server.connect() as admin:
        if admin.info.server_version < 170000:
            pytest.skip("needs PostgreSQL 17")
        admin.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE '{locale}'".encode()
        )
    with postgresql_server.connect(name) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        assert connection.execute("SELECT lower('Ä' COLLATE \"default\") = 'Ä'").fetchone() == (translated,)
    text = "CREATE PUBLICATION p FOR TABLE t WHERE (lower(note) = 'a') WITH (publish = 'insert')"
    with Server(postgresql_server.conninfo(name), application_name="test") as server:
        (entry,) = Routing(parse(text, "f.sql"), read_relations(server)).targets.values()
    compiler = EntryFilterCompiler(types, None)
    if translated:
        assert isinstance(compiler.compile(entry), RowFilters)
    else:
        with pytest.raises(RowFilterError, match="only the server knows"):
            compiler.compile(entry)


def test_what_is_not_translated_is_the_servers(publisher, entry_of):
    """Of a table of which one filter is, all are; what they look at is known exactly, for the identity's sake."""
    of_server = "lpad('note', id, 'n') ILIKE 'note%'"
    text = (
        "CREATE PUBLICATION p FOR TABLE t WHERE (id > 3), other WHERE (id > 7);"
        f"CREATE PUBLICATION q FOR TABLE t WHERE ({of_server});"
    )
    subscription = Subscription(
        name="s",
        connection=publisher.conninfo,
        publications=("x",),
        warehouse="lake",
        filter_server="publisher",
    )
    with FilterServer(subscription) as server:
        compiler = EntryFilterCompiler(types, server)
        assert isinstance(compiler.compile(entry_of(text, "other")), RowFilters)
        found = compiler.compile(entry_of(text))
        with pytest.raises(RowFilterError, match=r"mutable functions are not allowed"):
            compiler.compile(entry_of("CREATE PUBLICATION p FOR TABLE t WHERE (now() > '2020-01-01')"))
    assert isinstance(found, ServerFilters)
    assert found.columns == {"id"}
    assert found.update == found.insert == found.delete
    assert compiler.columns_of(of_server) == {"id"}
