"""An overwrite replaces rows, not columns; a stamp keeps rows out that the table has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.log.local_log import last_transaction
from pgbridge.bridge.lake.log.stamp import CommitStamp
from pgbridge.bridge.lake.writes import append_rows, overwrite_rows
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT
from pgbridge.protocol.lsn import Lsn


def rows_at(spark, path):
    return sorted(tuple(row) for row in spark.read.format("delta").load(path).collect())


def test_overwrite_keeps_columns_that_are_not_replicated(spark, tmp_path):
    path = str(tmp_path / "t")
    spark.createDataFrame([(1, "own")], "id long, own string").write.format("delta").save(path)
    overwrite_rows(spark.createDataFrame([(2,)], "id long"), path)
    assert rows_at(spark, path) == [(2, None)]


def copy(spark, path, number):
    stamp = CommitStamp("app", Lsn(1), Lsn(2), copy_number=number)
    rows = spark.createDataFrame([(number,)], "id long").coalesce(1)
    overwrite_rows(rows, path, stamp, rows_per_file=10, layout=NO_LAYOUT)


def test_the_first_rows_of_a_table_are_one_job(spark, tmp_path):
    path = str(tmp_path / "t")
    create_table(spark, path, spark.createDataFrame([], "id long").schema)
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.nextJobId()
    copy(spark, path, 7)
    assert scheduler.nextJobId() == before + 1
    assert rows_at(spark, path) == [(7,)]
    row = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0]
    assert (row.operation, row.operationParameters["mode"]) == ("WRITE", "Overwrite")
    assert row.userMetadata == CommitStamp("app", Lsn(1), Lsn(2)).user_metadata


def test_a_stamp_keeps_rows_out_however_long_ago_it_was(spark, tmp_path):
    """The log of a young table, its last commits, and Delta's state of it tell the same."""
    path = str(tmp_path / "t")
    create_table(spark, path, spark.createDataFrame([], "id long").schema)
    copy(spark, path, 7)
    for number in range(10):
        copy(spark, path, 6)
        copy(spark, path, 7)
        append_rows(spark.createDataFrame([(number,)], "id long"), path)
    assert rows_at(spark, path) == sorted([(7,), *((number,) for number in range(10))])
    copy(spark, path, 8)
    assert rows_at(spark, path) == [(8,)]
    Path(path, "_delta_log", f"{11:020}.json").unlink()
    assert last_transaction(Path(path, "_delta_log"), 12, "app") == 8
    Path(path, "_delta_log", f"{12:020}.json").unlink()
    assert last_transaction(Path(path, "_delta_log"), 12, "app") is None


def test_a_table_that_has_gone_is_not_made_again(spark, tmp_path):
    path = str(tmp_path / "t")
    create_table(spark, path, spark.createDataFrame([], "id long").schema)
    shutil.rmtree(path)
    with pytest.raises(AnalysisException):
        append_rows(spark.createDataFrame([(1,)], "id long"), path, {"txnAppId": "app", "txnVersion": "1"})
    assert not Path(path).exists()
