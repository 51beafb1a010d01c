"""A batch's commits are found in the tables' histories and taken back; others' are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgbridge.bridge.lake.commit.restore import UndoneBatch, restore_tables
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.log.stamp import CommitStamp
from pgbridge.bridge.lake.table_position import history_of
from pgbridge.bridge.lake.writes import append_rows, overwrite_rows
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.spark.session import fork
from pgbridge.protocol.lsn import Lsn
from tests.bridge.apply.made_targets import copied
from tests.bridge.lake.lost_entries import lose_entries
from tests.faults.soak_day import age

ME = "pgbridge/1/sub/inc/0"


@pytest.fixture
def path(spark, tmp_path):
    """A table with the row 1 by a batch up to 0/10, and 2 by one up to 0/20."""

    def make(path):
        create_table(spark, path, spark.createDataFrame([], "id long").schema)
        for id_, lsn in ((1, 0x10), (2, 0x20)):
            overwrite_rows(spark.createDataFrame([(n,) for n in range(1, id_ + 1)], "id long"), path, stamp(lsn))

    copied(spark, str(tmp_path / "t"), "two batches", make)
    return str(tmp_path / "t")


def stamp(lsn, app_id=ME):
    return CommitStamp(app_id, Lsn(0), Lsn(lsn))


def ids(session, path):
    return sorted(row.id for row in session.read.format("delta").load(path).collect())


def restored(session, path, position, batch, *others, fence=False):
    """Undo a batch; return how many RESTOREs there were."""
    times: list[int] = []
    tables = {path: Lsn(position), **dict.fromkeys(others, Lsn(0))}
    restore_tables(session, tables, batch, fence=fence, on_restored=lambda: times.append(1))
    return len(times)


def test_a_version_from_before_the_files_retention(spark, path):
    """A table that nothing has changed for a month: the batch that failed is the first one since."""
    age(Path(path))
    overwrite_rows(spark.createDataFrame([(7,)], "id long"), path, stamp(0x40))
    session = fork(spark)
    assert restored(session, path, 0x30, UndoneBatch(ME, Lsn(0x30), Lsn(0x40))) == 1
    assert ids(session, path) == [1, 2]


def test_what_ends_after_a_position_and_nothing_else(spark, path, tmp_path):
    """Twice is once; nothing lies at another path; maintenance is no obstacle.

    Where somebody else's rows would be lost, what the error tells to do helps.
    """
    session = fork(spark)
    missing = str(tmp_path / "missing")

    def back(position, app_id=ME):
        number = restored(session, path, position, UndoneBatch(app_id, Lsn(position), Lsn(0x50)), missing)
        return ids(session, path), number

    assert back(0x30) == ([1, 2], 0)
    assert back(0x20) == ([1, 2], 0)
    session.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('a' = 'b')").collect()
    assert back(0x10) == ([1], 1)
    assert back(0x10) == ([1], 0)
    overwrite_rows(session.createDataFrame([(7,)], "id long"), path, stamp(0x20, "pgbridge/1/sub/inc/1"))
    assert back(0x10, "pgbridge/1/sub/inc/1") == ([1], 1)
    session.sql(f"INSERT INTO delta.`{path}` VALUES (5)").collect()
    assert back(0x10, "pgbridge/1/sub/inc/1") == ([1, 5], 0)
    overwrite_rows(session.createDataFrame([(8,)], "id long"), path, stamp(0x40, "pgbridge/1/sub/inc/2"))
    session.sql(f"DELETE FROM delta.`{path}` WHERE id = 8").collect()
    with pytest.raises(TargetError, match=r"\(DELETE\) after it\nHINT:  see DESCRIBE") as caught:
        back(0x10, "pgbridge/1/sub/inc/2")
    assert caught.value.hint is not None
    before = int(re.findall(r"TO VERSION AS OF (\d+)", caught.value.hint)[0])
    session.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {before}").collect()
    assert back(0x10, "pgbridge/1/sub/inc/2") == ([1, 5], 0)


def test_kept_batches_and_the_one_after_them(spark, path):
    """By whichever application id: each has its end in the table's log."""
    session = fork(spark)
    overwrite_rows(session.createDataFrame([(1,), (2,), (3,)], "id long"), path, stamp(0x30, "pgbridge/1/sub/inc/1"))
    batch = UndoneBatch("pgbridge/1/sub/inc/2", Lsn(0x10), Lsn(0x30))
    assert restored(session, path, 0x20, batch) == 1
    assert ids(session, path) == [1, 2]
    assert restored(session, path, 0x10, batch) == 1
    assert ids(session, path) == [1]


@pytest.mark.parametrize("has_it", [True, False])
def test_a_fence_keeps_a_late_commit_out(spark, path, has_it):
    """It is empty, and no position; Delta refuses what comes with the same stamp."""
    session = fork(spark)
    app_id = "pgbridge/1/sub/inc/1"
    late = session.createDataFrame([(1,), (2,), (3,)], "id long")
    if has_it:
        overwrite_rows(late, path, stamp(0x30, app_id))
    batch = UndoneBatch(app_id, Lsn(0x20), Lsn(0x30))
    assert restored(session, path, 0x20, batch, fence=True) == has_it
    overwrite_rows(late, path, stamp(0x30, app_id))
    assert ids(session, path) == [1, 2]
    own = history_of(session, path).own(("pgbridge/1/sub/inc/",))
    assert own is not None
    assert (own.position, own.given_up) == (0x20, False)


def test_a_doubtful_batch_that_somebody_has_taken_back_by_hand(spark, path):
    """As the hint told, because his own rows were in the way: they do not come back, and are not missed."""
    session = fork(spark)
    session.sql(f"INSERT INTO delta.`{path}` VALUES (5)").collect()
    batch = UndoneBatch(ME, Lsn(0x10), Lsn(0x20), doubtful=True)
    with pytest.raises(TargetError, match=r"version 2 cannot be undone") as caught:
        restored(session, path, 0x10, batch)
    assert caught.value.hint is not None
    (before,) = {int(version) for version in re.findall(r"TO VERSION AS OF (\d+)", caught.value.hint)}
    session.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {before}").collect()
    assert restored(session, path, 0x10, batch) == 0
    assert ids(session, path) == [1]
    own = history_of(session, path).own(("pgbridge/1/sub/inc/",))
    assert own is not None
    assert own.position == 0x10


@pytest.mark.parametrize("times", [1, 2])
def test_the_log_entries_of_a_doubtful_batch_do_not_matter(spark, path, times):
    """Nor those of its undo, if the flush of that may have failed, too: the last checkpoint is on the disk."""
    session = fork(spark)
    for _ in range(times):
        restored(session, path, 0x10, UndoneBatch(ME, Lsn(0x10), Lsn(0x20), doubtful=True))
    lose_entries(session, path, 2)
    assert ids(spark, path) == [1]
    own = history_of(session, path).own(("pgbridge/1/sub/inc/",))
    assert own is not None
    assert own.position == 0x10, "also if only the entry of the RESTORE were lost, see test_history_undo"
    append_rows(session.createDataFrame([(7,)], "id long"), path)
    assert ids(spark, path) == [1, 7]


def test_what_somebody_commits_just_before_the_restore_is_brought_back(spark, path, monkeypatch):
    """Then the batch cannot be undone before he has acted, as if he had been seen at first."""
    session = fork(spark)
    batch = UndoneBatch(ME, Lsn(0x10), Lsn(0x20))
    version = UndoneBatch.version

    def and_delete(*arguments):
        looked = version(*arguments)
        spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1").collect()
        return looked

    with monkeypatch.context() as patch:
        patch.setattr(UndoneBatch, "version", and_delete)
        with pytest.raises(
            TargetError, match=r"version 2 cannot be undone, .* committed version 3 \(DELETE\)"
        ) as caught:
            restored(session, path, 0x10, batch)
    assert ids(session, path) == [2]
    assert caught.value.hint is not None
    assert {int(version) for version in re.findall(r"TO VERSION AS OF (\d+)", caught.value.hint)} == {1}
    with pytest.raises(TargetError, match=r"version 2 cannot be undone, .* committed version 3 \(DELETE\)"):
        restored(session, path, 0x10, batch)
    session.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 1").collect()
    assert restored(session, path, 0x10, batch) == 0
    assert ids(session, path) == [1]
