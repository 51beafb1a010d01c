"""The condition by which Spark, Delta and Parquet look for keys has each key, in lists that are short enough."""

from __future__ import annotations

import datetime as dt
import re

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pgbridge.bridge.lake.commit.key_condition import LIST_VALUES, PUSHED_LISTS, key_condition, key_ranges


def test_few_values_are_one_list():
    assert key_condition("`k`", pa.chunked_array([["b", "a"], ["it's"]])) == (
        "`k` >= 'a' AND `k` <= 'it\\'s' AND `k` IN ('a', 'b', 'it\\'s')"
    )
    assert key_condition("k", pa.chunked_array([[7]])) == "k >= 7L AND k <= 7L AND k IN (7L)"


@pytest.mark.parametrize("number", [LIST_VALUES, LIST_VALUES + 1, 7 * LIST_VALUES, 5_000])
def test_many_values_are_a_tree_of_short_lists_after_one_of_all(number):
    values = [f"{i * 7919 % number:05}" for i in range(number)]
    condition = key_condition("k", pa.chunked_array([values]))
    assert condition is not None
    lists = [listed.split(", ") for listed in re.findall(r"k IN \(([^)]*)\)", condition)]
    assert lists[0] == [f"'{value}'" for value in sorted(values)]
    short = lists[1:]
    assert [one for listed in short for one in listed] == (lists[0] if number > LIST_VALUES else [])
    assert all(len(listed) <= LIST_VALUES == int(*PUSHED_LISTS.values()) for listed in short)
    depth = deepest = 0
    for character in condition:
        depth += {"(": 1, ")": -1}.get(character, 0)
        deepest = max(deepest, depth)
    assert depth == 0
    assert deepest <= len(short).bit_length() + 2


def test_a_type_or_a_value_without_a_literal_has_none():
    assert key_condition("k", pa.chunked_array([[1.5]])) is None
    assert key_condition("k", pa.chunked_array([[-(1 << 63)]])) is None


def ranges(values, arrow):
    return key_ranges("t.k", pa.chunked_array([pa.array(values, arrow)]))


def test_literals_have_the_columns_type():
    """With another type Spark would cast the column, and Delta could not compare it with its statistics."""
    assert ranges([3, 1, 2], pa.int64()) == "t.k >= 1L AND t.k <= 3L"
    assert ranges([3], pa.int32()) == "t.k >= 3 AND t.k <= 3"
    assert ranges([-3, 4], pa.int16()) == "(t.k >= -3S AND t.k <= -3S OR t.k >= 4S AND t.k <= 4S)"
    assert ranges(["b", "it's", "a"], pa.string()) == "t.k >= 'a' AND t.k <= 'it\\'s'"
    assert ranges([dt.date(2026, 1, 2)], pa.date32()) == "t.k >= DATE'2026-01-02' AND t.k <= DATE'2026-01-02'"
    assert ranges([1.5], pa.float64()) is None
    assert ranges([-(1 << 63), 1], pa.int64()) is None


def test_clusters_have_ranges_of_their_own():
    newest = list(range(1_000_000, 1_001_000))
    assert ranges([*newest, 17, 20, 500_000], pa.int64()) == (
        "(t.k >= 17L AND t.k <= 20L OR t.k >= 500000L AND t.k <= 500000L OR t.k >= 1000000L AND t.k <= 1000999L)"
    )
    assert ranges(range(0, 1_000_000, 10_000), pa.int64()) == "t.k >= 0L AND t.k <= 990000L"
    assert ranges([-(1 << 62) * 2 + 1, (1 << 63) - 1], pa.int64()) == (
        "(t.k >= -9223372036854775807L AND t.k <= -9223372036854775807L"
        " OR t.k >= 9223372036854775807L AND t.k <= 9223372036854775807L)"
    )


@pytest.mark.parametrize(
    ("make", "arrow"),
    [
        ("id", pa.int64()),
        ("int(id)", pa.int32()),
        ("lpad(string(id), 8, '0')", pa.string()),
        ("date_add(DATE'2026-01-01', int(id))", pa.date32()),
    ],
)
def test_a_merge_does_not_read_files_outside_of_the_ranges(spark, tmp_path, make, arrow):
    path = str(tmp_path / "t")
    for first in (0, 100, 200):
        rows = spark.range(first, first + 10, 1, 1).selectExpr(f"{make} AS k", "id AS n")
        rows.write.format("delta").mode("append").save(path)
    table = spark.read.format("delta").load(path)
    wanted = table.filter("n IN (3, 205)").select("k").toArrow()["k"]
    (tmp_path / "t" / table.filter("n = 100").inputFiles()[0].rpartition("/")[2]).unlink()
    spark.range(0, 300).selectExpr(f"{make} AS k", "id").filter("id IN (3, 205)").createOrReplaceTempView("keys")
    condition = key_ranges("t.k", wanted if pa.types.is_integer(arrow) else wanted.slice(0, 1))

    def merge(found):
        statement = f"MERGE INTO delta.`{path}` AS t USING keys AS s ON t.k = s.k AND {found} WHEN MATCHED THEN DELETE"
        spark.sql(statement).collect()

    merge(condition)
    with pytest.raises((PySparkException, Py4JError)):
        merge("true")
