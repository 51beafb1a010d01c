"""Commits to Delta: stamped, refused a second time, and right for names of any kind."""

import json
from dataclasses import replace

import pytest
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.delta import commit
from bridge.apply.target.target import quoted
from bridge.errors import TargetError
from bridge.session import fork
from protocol.lsn import Lsn

STAMP = commit.CommitStamp("pgbridge/1/sub/inc/0", Lsn(0x10), Lsn(0x20))


def rows_at(spark, path):
    return sorted(tuple(row) for row in spark.read.format("delta").load(path).collect())


def test_a_stamped_commit_is_left_out_the_second_time(spark, tmp_path):
    session, path = fork(spark), str(tmp_path / "t")
    frame = session.createDataFrame([(1, "a")], "id long, note string")
    commit.create(session, path, frame.schema)
    for _ in range(2):
        with commit.stamped(session, STAMP):
            commit.append(frame, path)
    assert rows_at(spark, path) == [(1, "a")]
    history = session.sql(f"DESCRIBE HISTORY delta.{quoted(path)}").collect()
    assert json.loads(history[0].userMetadata)["pgbridge"] == {
        "origin": "pgbridge/1/sub/inc/0",
        "start_lsn": "0/10",
        "end_lsn": "0/20",
    }
    commit.append(frame, path)  # the stamp ends with its block
    assert len(rows_at(spark, path)) == 2


def test_a_merge_is_left_out_the_second_time(spark, tmp_path):
    session, path = fork(spark), str(tmp_path / "t")
    frame = session.createDataFrame([(1, 10)], "id long, n long")
    frame.write.format("delta").save(path)
    effects = session.createDataFrame(
        [
            (1, "delete", False, 1, None, "delete"),
            (2, "put", True, 2, 20, "insert"),
            (3, "put", False, 3, 30, "update"),
        ],
        "match_0 long, action string, born boolean, new_0 long, new_1 long, first string",
    )
    merged = []
    for _ in range(2):
        with commit.stamped(session, STAMP):
            merged.append(commit.merge(effects, path, ["id", "n"], [0], []))
    assert merged == [commit.Merged(updated=0, deleted=1, inserted=1), None]
    assert rows_at(spark, path) == [(2, 20)], "1 deleted; 2 inserted; 3 is an update of a missing row"
    frame.write.format("delta").mode("append").save(path)  # 1 is there again: a replay would delete it
    raising = "CAST(raise_error('it was evaluated') AS bigint)"
    with commit.stamped(session, STAMP):
        assert commit.merge(effects.withColumn("first", F.lit("insert")), path, ["id", "n"], [0], [], raising) is None
    assert rows_at(spark, path) == [(1, 10), (2, 20)]
    assert sorted(map(tuple, commit.before_merge(spark, path).collect())) == [(1, 10)]
    assert commit.version(spark, path) == 2


def test_names_of_any_kind(spark, tmp_path):
    path = str(tmp_path / "a `b` 'c' %;é" / "_t")
    frame = spark.createDataFrame([(1, "x", 2)], "`the id` long, `a.b` string, `c,d=(e)` long")
    commit.create(spark, path, frame.schema)
    commit.append(frame, path)
    effects = spark.createDataFrame(
        [(1, "put", False, 1, "y", None, True, "update")],
        "match_0 long, action string, born boolean, new_0 long, new_1 string, new_2 long, unchanged_2 boolean, "
        "first string",
    )
    commit.merge(effects, path, frame.columns, [0], [2])
    assert rows_at(spark, path) == [(1, "y", 2)]


def test_overwrite_keeps_columns_that_are_not_replicated(spark, tmp_path):
    path = str(tmp_path / "t")
    spark.createDataFrame([(1, "own")], "id long, own string").write.format("delta").save(path)
    commit.overwrite(spark.createDataFrame([(2,)], "id long"), path)
    assert rows_at(spark, path) == [(2, None)]


def test_schema_of_tells_nothing_from_something_else(spark, tmp_path):
    assert commit.schema_of(spark, str(tmp_path / "none")) is None
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.txt").write_text("x")
    with pytest.raises(TargetError, match="is not a Delta table"):
        commit.schema_of(spark, str(tmp_path / "files"))
    commit.create(spark, str(tmp_path / "t"), spark.createDataFrame([], "id long").schema)
    schema = commit.schema_of(spark, str(tmp_path / "t"))
    assert schema is not None
    assert schema.fieldNames() == ["id"]


def test_merge_statement_has_each_clause_once():
    statement = commit.merge_statement("v", "/l/p", ["id", "note"], [0], [1], "raise_error('x')")
    assert statement == (
        "MERGE INTO delta.`/l/p` AS t USING v AS s ON t.`id` = s.match_0 "
        "WHEN MATCHED AND s.first IN ('insert', 'arrive') THEN UPDATE SET t.`id` = raise_error('x') "
        "WHEN MATCHED AND s.action = 'delete' THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET t.`id` = s.new_0, "
        "t.`note` = CASE WHEN s.unchanged_1 THEN t.`note` ELSE s.new_1 END "
        "WHEN NOT MATCHED AND s.action = 'put' AND s.born THEN INSERT (`id`, `note`) VALUES (s.new_0, s.new_1)"
    )


def test_versions_of_a_batchs_parts_rise_to_its_end():
    """Between the ends of the batch: Delta leaves out what is not above the version that it has."""
    stamp = commit.CommitStamp("app", Lsn(10), Lsn(20))
    assert [replace(stamp, part=part).txn_version for part in (0, 1)] == [11, 12]
    assert (stamp.txn_version, replace(stamp, part=0).txn_app_id_in_delta) == (20, "app")
