"""A transaction that is begun here reads one version of the table, and commits with the session's stamp."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from pgbridge.bridge.lake.commit.replace import RowCounter
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.location import read_table
from pgbridge.bridge.lake.log.local_log import entry_of
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamp_options, stamped
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.lake.table_facts import read_facts
from pgbridge.bridge.lake.transaction import can_begin, can_stage, transaction
from pgbridge.bridge.lake.writes import append_rows, commit_nothing
from pgbridge.bridge.spark.session import fork, java_class
from pgbridge.protocol.lsn import Lsn
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
        assert (begun.read_version, begun.schema.names, begun.facts) == (1, ["id"], read_facts(spark, path))


def test_tables_of_catalogs_have_none(spark, path):
    assert can_begin(spark, path)
    assert can_begin(spark, f"file://{path}")
    assert can_begin(spark, "s3a://bucket/t")
    for can in (can_begin, can_stage):
        assert not can(spark, "catalog:lake.public.t")


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


# --- Files that the last commit has written are removed by their names.


def overwritten(session, path, number, meanwhile=lambda: None):
    """Replace the rows by one, in a batch of this number."""
    with stamped(session, CommitStamp("app", Lsn(0), Lsn(number))), transaction(session, path) as begun:
        meanwhile()
        return begun.overwrite(session.range(number, number + 1).toDF("id").coalesce(1))


def ids(spark, path):
    return sorted(row.id for row in read_table(spark, path).collect())


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_an_overwrite_after_an_overwrite_is_one_job(spark, path, zone):
    """Delta's state of the table, for which it takes two more, is not asked for. Elsewhere it might check its lists."""
    session = fork(spark)
    session.conf.set("spark.sql.session.timeZone", zone)
    assert overwritten(session, path, 1) is not None
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.nextJobId()
    with transaction(session, path) as begun:
        assert begun.facts.files == 1
    assert overwritten(session, path, 2) is not None
    assert scheduler.nextJobId() == before + 1
    assert overwritten(session, path, 2) is None
    assert overwritten(session, path, 1) is None
    assert scheduler.nextJobId() == before + 1
    assert ids(spark, path) == [2]
    assert read_facts(spark, path).files == 1
    rows = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 2").collect()
    assert [row.operationMetrics["numRemovedFiles"] for row in rows] == ["1", "1"]
    assert rows[0].operationMetrics.keys() == rows[1].operationMetrics.keys()
    for name in ("operation", "operationParameters", "isBlindAppend", "isolationLevel"):
        assert rows[0][name] == rows[1][name]


@pytest.mark.parametrize("how", ["an empty commit", "rows", "no rows", "a property"])
def test_whoever_commits_meanwhile_makes_it_fail(spark, path, how):
    """Also by nothing but the application id: so a fence keeps a late commit out."""
    session, other = fork(spark), fork(spark)
    statements = {
        "rows": f"INSERT INTO delta.`{path}` VALUES (7)",
        "no rows": f"DELETE FROM delta.`{path}`",
        "a property": f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('a' = 'b')",
    }

    def meanwhile():
        if how in statements:
            work = threading.Thread(target=lambda: other.sql(statements[how]).collect())
        else:
            fence = CommitStamp("app", Lsn(0), Lsn(2), fences=True)
            schema = other.range(0).toDF("id").schema
            work = threading.Thread(target=commit_nothing, args=(other, path, schema, fence))
        work.start()
        work.join()

    assert overwritten(session, path, 1) is not None
    with pytest.raises(PySparkException, match="DELTA_(CONCURRENT|METADATA_CHANGED)"):
        overwritten(session, path, 2, meanwhile)
    assert ids(spark, path) == {"rows": [1, 7], "no rows": []}.get(how, [1])
    assert (overwritten(session, path, 2) is None) == (how == "an empty commit")


def test_a_checksum_of_a_version_that_was_taken_away_is_not_believed(spark, path):
    """Somebody deletes the entry of his TRUNCATE, and leaves its checksum: Delta derives later ones from it."""
    session = fork(spark)
    append_rows(spark.range(20, 22).toDF("id").coalesce(1), path)
    log = Path(path, "_delta_log")
    other = table_version(spark, path) + 1
    spark.sql(f"TRUNCATE TABLE delta.`{path}`").collect()
    for name in (f"{other:020}.json", f".{other:020}.json.crc"):  # Hadoop's own checksum of the file, too
        (log / name).unlink()
    clear = java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache
    clear()
    append_rows(spark.range(30, 31).toDF("id").coalesce(1), path, stamp_options(CommitStamp("app", Lsn(0), Lsn(1))))
    clear()
    append_rows(spark.range(31, 32).toDF("id").coalesce(1), path, stamp_options(CommitStamp("app", Lsn(0), Lsn(2))))
    assert overwritten(session, path, 3) is not None
    assert ids(spark, path) == [3]


def test_files_of_others_are_removed_too(spark, path):
    """The last commit has not written them all, or has no application id of this one."""
    session = fork(spark)
    assert overwritten(session, path, 1) is not None
    append_rows(spark.range(1).toDF("id"), path)
    with stamped(session, CommitStamp("app", Lsn(0), Lsn(2))), transaction(session, path) as begun:
        assert begun.overwrite(spark.range(5, 6).toDF("id")) is not None
    assert ids(spark, path) == [5]
    with stamped(session, CommitStamp("another", Lsn(0), Lsn(2))), transaction(session, path) as begun:
        assert begun.overwrite(session.range(6, 7).toDF("id")) is not None
    assert ids(spark, path) == [6]
    with stamped(session, CommitStamp("app", Lsn(0), Lsn(2))), transaction(session, path) as begun:
        assert begun.overwrite(session.range(7, 8).toDF("id")) is None


# --- What it reads, and what becomes of it.


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


def begun_at(spark, path):
    with transaction(spark, path) as begun:
        return begun.read_version


def test_after_a_commit_of_this_process_the_log_is_not_listed(spark, path):
    """A listing would find the entry that is too far ahead, and fail."""
    assert overwritten(spark, path, 1) is not None
    version = table_version(spark, path)
    entry_of(Path(path, "_delta_log"), version + 5).write_text("")
    assert begun_at(spark, path) == version


def test_what_others_have_committed_is_found(spark, path):
    assert overwritten(spark, path, 1) is not None
    version = table_version(spark, path)
    append_rows(fork(spark).range(5).toDF("id"), path)
    assert begun_at(spark, path) == version + 1
    folder = Path(path, "_delta_log")
    shutil.copy(entry_of(folder, version + 1), entry_of(folder, version + 2))  # by another process
    assert begun_at(spark, path) == version + 2


def test_a_table_that_was_put_back_or_made_again_is_found(spark, path, tmp_path):
    backup = tmp_path / "backup"
    shutil.copytree(path, backup)
    version = table_version(spark, path)
    for put_back in (backup, backup):
        assert overwritten(spark, path, version) is not None
        shutil.rmtree(path)
        shutil.copytree(put_back, path)
        assert begun_at(spark, path) == version
    assert overwritten(spark, path, version + 1) is not None
    shutil.rmtree(path)
    create_table(spark, path, spark.range(1).schema)
    for _ in range(version + 1):
        append_rows(spark.range(1).toDF("id"), path)
    assert begun_at(spark, path) == version + 1
    assert ids(spark, path) == [0] * (version + 1)


def test_after_a_checkpoint_the_snapshot_begins_with_it(spark, tmp_path):
    path = str(tmp_path / "t")
    create_table(spark, path, spark.range(1).schema)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '4')").collect()
    for number in range(1, 10):
        assert overwritten(spark, path, number) is not None
    with transaction(spark, path) as begun:
        assert begun._latest.begun.snapshot().logSegment().checkpointProvider().version() == 8
        assert begun.read_version == 10


# --- Rows that are written to data files beforehand, which one commit adds.


def test_staged_files_are_in_no_version_before_one_replaces_all_rows_by_theirs(spark, path):
    before = spark.range(3).collect()
    with transaction(spark, path) as begun:
        files = begun.stage(spark.range(100, 102).select("id"))
    with transaction(spark, path, {"maxRecordsPerFile": "1"}) as begun:
        files += begun.stage(spark.range(200, 202).coalesce(1).select("id"))
    assert table_version(spark, path) == 1
    assert len(read_table(spark, path).collect()) > len(before)
    with transaction(spark, path, stamp_options(STAMP)) as begun:
        assert len(files) >= 3
        assert all(map(begun.has_file, files))
        begun.overwrite_by(files, STAMP)
    assert sorted(row.id for row in read_table(spark, path).collect()) == [100, 101, 200, 201]
    with transaction(spark, path, stamp_options(STAMP)) as begun:
        begun.overwrite_by(files[:1], STAMP)
    assert table_version(spark, path) == 2, "Delta has the stamp"
    later = replace(STAMP, end_lsn=Lsn(STAMP.end_lsn + 1))
    with transaction(spark, path, stamp_options(later)) as begun:
        begun.overwrite_by(files, later)
    assert sorted(row.id for row in read_table(spark, path).collect()) == [100, 101, 200, 201], "of the same files"
    row = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0]
    assert (row.version, row.operation, row.userMetadata) == (3, "WRITE", later.user_metadata)


def test_a_staged_file_that_is_gone(spark, path):
    with transaction(spark, path) as begun:
        (file,) = begun.stage(spark.range(1).coalesce(1).select("id"))
        Path(path, json.loads(file)["add"]["path"]).unlink()
        assert not begun.has_file(file)


def test_staged_files_after_another_writers_commit(spark, path):
    """The commit fails as any overwrite does, and is tried again."""
    with transaction(spark, path) as begun:
        files = begun.stage(spark.range(1).select("id"))
    with transaction(spark, path) as begun:
        other = threading.Thread(target=append_rows, args=(spark.range(7, 8), path))
        other.start()
        other.join()
        with pytest.raises(PySparkException, match="CONCURRENT"):
            begun.overwrite_by(files, STAMP)
