"""Tables that pgbridge creates compact their small files, which changes nothing of what crashes and undos leave."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from bridge import session
from bridge.apply.applier import Applier
from bridge.apply.batch.batch import Batch
from bridge.apply.delta.commit_sessions import commit_session
from bridge.apply.effects.operations import INSERT
from bridge.errors import ApplyError
from protocol.lsn import Lsn
from tests.bridge.apply.made_batches import Cut, failing
from tests.bridge.apply.made_targets import changes, content

MIN_FILES = "spark.databricks.delta.autoCompact.minNumFiles"
ROWS = [(key, "new") for key in range(4)]


def batch_of(target, key):
    """The batch that inserts a row."""
    start = 0x10 * (key + 1)
    return Batch(Lsn(start), Lsn(start + 0x10), Lsn(start + 8), 7, 1, 1, [changes(target, (INSERT, None, key, "new"))])


def operations(spark, target):
    """What was committed, the first commit first."""
    return [row.operation for row in spark.sql(f"DESCRIBE HISTORY delta.`{target.path}`").collect()][::-1]


def files(spark, target):
    return spark.sql(f"DESCRIBE DETAIL delta.`{target.path}`").collect()[0].numFiles


@pytest.fixture
def bridge(spark, catalog, target):
    """For which three files are many. It has applied two batches, each of which added a file."""
    own = session.fork(spark)
    commit_session(own, small=True).conf.set(MIN_FILES, "3")
    made = Applier(own, catalog, subscription="sub", origin_name="pgbridge_sub")
    for key in (0, 1):
        made.apply(batch_of(target, key))
    return made


def test_small_files_are_compacted(spark, target, bridge):
    assert files(spark, target) == 2
    bridge.apply(batch_of(target, 2))
    assert (operations(spark, target)[-2:], files(spark, target)) == (["WRITE", "OPTIMIZE"], 1)
    bridge.apply(batch_of(target, 3))
    assert (content(spark, target), files(spark, target)) == (ROWS, 2)


def test_an_undo_takes_back_the_rows_that_were_compacted(spark, target, bridge):
    with failing(PySparkException("no answer"), "table_committed"), pytest.raises(ApplyError, match="no answer"):
        bridge.apply(batch_of(target, 2))
    assert operations(spark, target)[-3:] == ["WRITE", "OPTIMIZE", "RESTORE"]
    assert (content(spark, target), files(spark, target)) == (ROWS[:2], 2)
    bridge.apply(batch_of(target, 2))
    assert content(spark, target) == ROWS[:3]


def test_a_batch_that_was_compacted_before_a_crash_is_applied_once(spark, target, bridge):
    with failing(Cut(), "table_committed"), pytest.raises(Cut):
        bridge.apply(batch_of(target, 2))
    made = operations(spark, target)
    bridge.apply(batch_of(target, 2))
    assert (operations(spark, target), content(spark, target)) == (made, ROWS[:3])
    bridge.apply(batch_of(target, 3))
    assert content(spark, target) == ROWS
