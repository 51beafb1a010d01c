"""What a transaction believes of its table's log without reading it: on a store, a commit of this process.

Of a local folder `tests/bridge/lake/test_transaction.py` has the same questions.
"""

from __future__ import annotations

import json
import threading
import time
from functools import partial

import pytest
from pyspark.errors import PySparkException

from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.location import read_table
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.lake.table_position import check_committed
from pgbridge.bridge.lake.transaction import transaction
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.spark.session import fork, java_class
from pgbridge.protocol.lsn import Lsn

MOST_REQUESTS = 17  # as docs/object-stores.md says


@pytest.fixture
def path(spark, bucket):
    bucket.put_into(spark)
    path = f"{bucket.warehouse}/t"
    create_table(spark, path, spark.range(1).schema)
    return path


def batch(spark, path, number, write):
    """Write rows in a session with the stamp of a number, and return what `write` does."""
    session = fork(spark)
    with stamped(session, CommitStamp("app", Lsn(0), Lsn(number))):
        return write(session, path, number)


def appended(session, path, number):
    append_rows(session.range(number, number + 1).toDF("id").coalesce(1), path)


def overwritten(session, path, number, meanwhile=lambda: None):
    with transaction(session, path) as begun:
        meanwhile()
        return begun.overwrite(session.range(number, number + 1).toDF("id").coalesce(1))


def ids(spark, path):
    return sorted(row.id for row in read_table(spark, path).collect())


@pytest.mark.parametrize(("write", "left"), [(appended, [1, 2, 3]), (overwritten, [3])])
def test_a_commit_after_one_of_this_process_reads_no_entry(spark, path, bucket, write, left):
    batch(spark, path, 1, write)
    for number in (2, 3):
        before = len(bucket.proxy.requests)
        batch(spark, path, number, write)
        made = bucket.proxy.requests[before:]
        assert [r for r in made if r.method == "GET" and r.path.endswith(".json")] == []
        assert len(made) <= MOST_REQUESTS
    assert ids(spark, path) == left
    for number in (3, 2, 1):  # they are there already
        batch(spark, path, number, write)
    assert ids(spark, path) == left
    assert table_version(spark, path) == 3
    metrics = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 2").collect()
    assert len({tuple(sorted(row.operationMetrics)) for row in metrics}) == 1


def entry(spark, path, version):
    """The file of a version in Hadoop's file system, and its path there."""
    place = java_class(spark, "org.apache.hadoop.fs.Path")(f"{path}/_delta_log/{version:020}.json")
    return place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), place


def test_that_a_batch_is_committed_is_known_without_reading(spark, path, bucket):
    """As long as it, and the one before, are the last commits that this JVM knows of; else the log tells."""
    for number in (4, 5):
        batch(spark, path, number, appended)
    before = len(bucket.proxy.requests)
    check_committed(spark, path, CommitStamp("app", Lsn(0), Lsn(5)))
    assert len(bucket.proxy.requests) == before
    fork(spark).sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 0").collect()
    batch(spark, path, 4, appended)  # Delta leaves it out
    with pytest.raises(TargetError, match="has left out the commit up to 0/4"):
        check_committed(spark, path, CommitStamp("app", Lsn(0), Lsn(4)))
    assert len(bucket.proxy.requests) > before


def test_an_entry_that_was_put_back_is_not_taken_for_the_one_that_was_written(spark, path):
    """As a backup has it: without the last batch, and with the checksum of the commit that it replaces."""
    batch(spark, path, 1, overwritten)
    batch(spark, path, 2, overwritten)
    files, place = entry(spark, path, 2)
    lines = spark.read.text(place.toString()).collect()
    other = [line.value for line in lines if "txn" not in json.loads(line.value)]
    assert len(other) == len(lines) - 1
    time.sleep(1.1)  # a store tells the second of a file's last change
    out = files.create(place, True)
    out.write(bytearray("\n".join(other) + "\n", "utf-8"))
    out.close()
    batch(spark, path, 2, overwritten)
    assert table_version(spark, path) == 3
    batch(spark, path, 2, overwritten)
    assert (table_version(spark, path), ids(spark, path)) == (3, [2])


@pytest.mark.parametrize("write", [appended, overwritten])
def test_what_others_commit_is_met(spark, path, write):
    batch(spark, path, 1, write)
    other = fork(spark)
    other.sql(f"INSERT INTO delta.`{path}` VALUES (70)").collect()
    batch(spark, path, 2, write)
    assert ids(spark, path) == ([1, 2, 70] if write is appended else [2])

    def inserted():  # a thread has one transaction
        work = threading.Thread(target=append_rows, args=(other.range(71, 72).toDF("id"), path))
        work.start()
        work.join()

    with pytest.raises(PySparkException, match="DELTA_CONCURRENT"):
        batch(spark, path, 3, partial(overwritten, meanwhile=inserted))
    batch(spark, path, 3, overwritten)
    assert ids(spark, path) == [3]


def test_a_table_that_was_made_again_is_found(spark, path):
    """By another JVM, with as many commits: without the batch's stamp."""
    for number in (1, 2):
        batch(spark, path, number, overwritten)
    made = f"{path}_made"
    create_table(spark, made, spark.range(1).schema)
    for number in (10, 11):
        append_rows(fork(spark).range(number, number + 1).toDF("id"), made)
    files, place = entry(spark, path, 0)
    _, other = entry(spark, made, 0)
    old, new = (each.getParent().getParent() for each in (place, other))
    time.sleep(1.1)
    files.delete(old, True)
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    files.mkdirs(old)
    for status in files.listStatus(new):
        java_class(spark, "org.apache.hadoop.fs.FileUtil").copy(files, status.getPath(), files, old, False, conf)
    batch(spark, path, 2, appended)
    assert ids(spark, path) == [2, 10, 11]
