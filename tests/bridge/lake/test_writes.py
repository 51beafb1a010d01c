"""An overwrite replaces rows, not columns; a stamp keeps rows out that the table has."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException

from pgbridge.bridge.lake import writes
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.log.local_log import last_transaction
from pgbridge.bridge.lake.log.stamp import CommitStamp
from pgbridge.bridge.lake.writes import append_rows, overwrite_rows, write_checkpoint
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT
from pgbridge.protocol.lsn import Lsn
from tests.bridge.lake.lost_entries import lose_entries


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


@pytest.mark.parametrize(("every", "is_ours"), [(None, True), (None, False), (7, False)])
def test_a_checkpoint_makes_up_for_the_entries_before(spark, tmp_path, monkeypatch, every, is_ours):
    """A Connect server has no other way than the interval, which is afterwards what it was."""
    path, rows = str(tmp_path / "t"), spark.createDataFrame([(1,)], "id long")
    create_table(spark, path, rows.schema, properties={} if every is None else {"delta.checkpointInterval": str(every)})
    interval = f"SHOW TBLPROPERTIES delta.`{path}` ('delta.checkpointInterval')"
    before = spark.sql(interval).collect()
    for _ in range(2):
        append_rows(rows, path)
    monkeypatch.setattr(writes, "driver_of", lambda _: SimpleNamespace(is_ours=is_ours))
    write_checkpoint(spark, path)
    assert spark.sql(interval).collect() == before
    append_rows(rows, path)
    lose_entries(spark, path, 1)
    assert rows_at(spark, path) == [(1,)] * 3


def test_a_checkpoint_that_delta_did_not_write_is_an_error(spark, tmp_path, monkeypatch):
    """It only logs why."""
    path, rows = str(tmp_path / "t"), spark.createDataFrame([(1,)], "id long")
    create_table(spark, path, rows.schema)
    write_checkpoint(spark, str(tmp_path / "none"))
    write_checkpoint(spark, "s3a://bucket/t")
    monkeypatch.setattr(writes, "has_checkpoint_after", lambda *_: False)
    with pytest.raises(StateError, match="Delta could not write a checkpoint") as caught:
        write_checkpoint(spark, path)
    assert caught.value.retry
