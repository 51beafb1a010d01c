"""A transaction that is begun here reads one version of the table, and commits with the session's stamp."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import functions as F

from bridge.lake.ddl import create_table
from bridge.lake.location import read_table
from bridge.lake.log.stamp import CommitStamp, stamped
from bridge.lake.table import table_version
from bridge.lake.table_facts import read_facts
from bridge.lake.transaction import RowCounter, can_begin, transaction
from bridge.lake.writes import append_rows
from bridge.spark.session import fork
from protocol.lsn import Lsn
from tests.bridge.apply.made_targets import copied

STAMP = CommitStamp("app", Lsn(1), Lsn(2))


@pytest.fixture
def path(spark, tmp_path):
    def make(path):
        frame = spark.range(10).toDF("id").coalesce(1)
        create_table(spark, path, frame.schema)
        append_rows(frame, path)

    copied(spark, str(tmp_path / "a table"), "ten rows", make)
    return str(tmp_path / "a table")


def test_it_knows_the_table(spark, path):
    with transaction(spark, path) as begun:
        assert (begun.read_version, begun.columns, begun.facts) == (1, ["id"], read_facts(spark, path))


def test_tables_of_catalogs_and_object_stores_have_none(spark, path):
    assert can_begin(spark, path)
    assert can_begin(spark, f"file://{path}")
    assert not can_begin(spark, "s3a://bucket/t")
    assert not can_begin(spark, "lake.public.t")


def test_it_counts_what_it_writes_and_is_left_out_the_second_time(spark, path):
    session = fork(spark)
    for made, rows in ((True, 5), (False, 0)):
        with stamped(session, STAMP), transaction(session, path) as begun:
            counter = RowCounter(session)
            frame = read_table(session, path).filter(counter.counting(F.col("id") < 5))
            written = begun.overwrite(frame.select((F.col("id") + 1).alias("id")))
            assert (written is not None and written.version == begun.read_version + 1) == made
            assert counter.rows == rows
    assert table_version(spark, path) == 2
    row = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0]
    assert (row.operation, row.operationParameters["mode"], row.userMetadata) == (
        "WRITE",
        "Overwrite",
        STAMP.user_metadata,
    )
    assert sorted(row.id for row in read_table(spark, path).collect()) == [*range(1, 11)]


def test_queries_within_read_the_version_of_its_beginning(spark, path):
    with transaction(spark, path):
        writer = threading.Thread(target=append_rows, args=(spark.range(1).toDF("id"), path))
        writer.start()
        writer.join()
        assert read_table(spark, path).count() == 10
    assert read_table(spark, path).count() == 11


def test_what_is_not_committed_is_given_up(spark, path):
    with pytest.raises(KeyError), transaction(spark, path):
        raise KeyError
    append_rows(spark.range(1).toDF("id"), path)
    assert table_version(spark, path) == 2
