"""`pgbridge.merge_into`: what it refuses; tests/bridge/source/test_stream.py has it at work."""

from __future__ import annotations

from typing import Any

import pytest

import pgbridge
from pgbridge.bridge.runtime.errors import ConfigError, TargetError
from pgbridge.bridge.source.merge import settings

ROW = "struct<id: int, note: string>"
CHANGES = (
    "operation string, commit_lsn bigint, ordinal bigint, xid bigint, commit_time timestamp, origin string, "
    f"old {ROW}, new {ROW}, unchanged array<string>"
)


def batch(spark, *rows):
    """A batch of changes: (operation, old, new) each, as one transaction."""
    return spark.createDataFrame(
        [
            (operation, 1, i, 1, None, None, None if old is None else (old, None), new, None)
            for i, (operation, old, new) in enumerate(rows)
        ],
        CHANGES,
    )


@pytest.fixture
def merge(spark, tmp_path):
    path = str(tmp_path / "t")
    spark.createDataFrame([(1, "a"), (2, "b")], "id int, note string").write.format("delta").save(path)
    return pgbridge.merge_into(path, key=["id"], application="q")


def rows(spark, merge):
    return sorted(tuple(row) for row in spark.read.format("delta").load(merge.path).collect())


def test_the_same_batch_is_committed_once(spark, merge):
    """By its number, whatever it has; a batch without changes makes no commit."""
    merge(batch(spark, ("UPDATE", None, (1, "x")), ("DELETE", 2, None), ("INSERT", None, (3, "c"))), 0)
    assert rows(spark, merge) == [(1, "x"), (3, "c")]
    merge(batch(spark, ("DELETE", 1, None)), 0)
    merge(batch(spark), 1)
    assert rows(spark, merge) == [(1, "x"), (3, "c")]
    merge(batch(spark, ("TRUNCATE", None, None), ("INSERT", None, (9, None))), 2)
    assert rows(spark, merge) == [(9, None)]
    merge(batch(spark, ("TRUNCATE", None, None), ("INSERT", None, (8, None))), 2)
    assert rows(spark, merge) == [(9, None)]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{merge.path}`").collect()
    assert [row.operation for row in history] == ["WRITE", "MERGE", "WRITE"]


def test_a_row_that_is_missing_and_moves_is_an_error(spark, merge):
    """Its other values are nowhere: the table is not the copy that the stream begins at."""
    with pytest.raises(TargetError, match="a row is missing whose key the server has changed") as raised:
        merge(batch(spark, ("UPDATE", 7, (8, "moved"))), 0)
    assert "Beginning again" in str(raised.value.hint)
    assert rows(spark, merge) == [(1, "a"), (2, "b")]


def test_changes_that_contradict_each_other_are_an_error(spark, merge):
    with pytest.raises(TargetError, match="do not follow from each other"):
        merge(batch(spark, ("INSERT", None, (5, "a")), ("INSERT", None, (5, "b"))), 0)


def test_frames_that_are_no_changes_are_refused(spark, merge):
    with pytest.raises(ConfigError, match="must have one table's changes"):
        merge(spark.createDataFrame([(1,)], "id int"), 0)
    with pytest.raises(ConfigError, match='no column "nr" of the key; it has id, note'):
        pgbridge.merge_into(merge.path, key=["nr"])(batch(spark), 0)
    keys: list[Any] = ["id", [], ()]
    for path in ("t", "catalog:a.b.c"):
        with pytest.raises(ConfigError, match="absolute path"):
            pgbridge.merge_into(path, key=["id"])
    for key in keys:
        with pytest.raises(ConfigError, match="names of the key's columns"):
            pgbridge.merge_into(merge.path, key=key)


def test_rows_that_are_missing_are_told(spark, merge, caplog):
    """As PostgreSQL's subscription does: it goes on, and says so."""
    merge(batch(spark, ("UPDATE", None, (7, "x")), ("DELETE", 9, None), ("UPDATE", None, (1, "y"))), 0)
    assert rows(spark, merge) == [(1, "y"), (2, "b")]
    assert [record.getMessage() for record in caplog.records if "lacked rows" in record.getMessage()]


def test_another_query_is_refused(spark, merge):
    merge(batch(spark, ("UPDATE", None, (1, "x"))), 0)
    merge(batch(spark, ("UPDATE", None, (1, "y"))), 0)  # the same batch, left out
    other = pgbridge.merge_into(merge.path, key=["id"], application="other")
    with pytest.raises(ConfigError, match="has batch 0 of the query q, and this is a query that begins"):
        other(batch(spark), 0)
    merge(batch(spark, ("UPDATE", None, (1, "z"))), 1)
    with pytest.raises(ConfigError, match="has batch 1 of the query q"):
        merge(batch(spark), 0)


def test_outside_of_a_query_it_needs_a_name(spark, merge):
    unnamed = pgbridge.merge_into(merge.path, key=["id"])
    with pytest.raises(ConfigError, match="does not tell which query") as raised:
        unnamed(batch(spark, ("DELETE", 1, None)), 0)
    assert "application=" in str(raised.value.hint)


def test_a_session_has_its_settings_again(spark):
    name = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(name)
    with settings(spark, {name: "INT96", "spark.pgbridge.x": "1"}):
        assert spark.conf.get(name) == "INT96"
    assert spark.conf.get(name) == before
    assert spark.conf.get("spark.pgbridge.x", None) is None
