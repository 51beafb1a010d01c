"""A batch's commits are found in the tables' histories and taken back; others' are not."""

from __future__ import annotations

import re

import pytest

from bridge.apply.delta.create import create_table
from bridge.apply.delta.overwrite import overwrite_rows
from bridge.apply.delta.restore import UndoneBatch, restore_tables
from bridge.apply.delta.stamp import CommitStamp
from bridge.errors import TargetError
from bridge.session import fork
from protocol.lsn import Lsn

ME = "pgbridge/1/sub/inc/0"


@pytest.fixture
def path(spark, tmp_path):
    """A table with the row 1 by a batch up to 0/10, and 2 by one up to 0/20."""
    path = str(tmp_path / "t")
    create_table(spark, path, spark.createDataFrame([], "id long").schema)
    for id_, lsn in ((1, 0x10), (2, 0x20)):
        overwrite_rows(spark.createDataFrame([(n,) for n in range(1, id_ + 1)], "id long"), path, stamp(lsn))
    return path


def stamp(lsn, app_id=ME):
    return CommitStamp(app_id, Lsn(0), Lsn(lsn))


def test_the_last_batch_and_no_other(spark, path, tmp_path):
    """Found by application id and end; twice is once; nothing lies at another path; maintenance is no obstacle.

    Where somebody else's rows would be lost, what the error tells to do helps.
    """
    session = fork(spark)
    restored: list[int] = []

    def back(lsn, app_id=ME):
        restored.clear()
        missing = str(tmp_path / "missing")
        batch = UndoneBatch(app_id, Lsn(lsn))
        restore_tables(session, [path, missing], batch, on_restored=lambda: restored.append(lsn))
        ids = sorted(row.id for row in session.read.format("delta").load(path).collect())
        return ids, restored == [lsn]

    assert back(0x30) == ([1, 2], False)
    assert back(0x10) == ([1, 2], False)
    assert back(0x20, "pgbridge/1/sub/inc/1") == ([1, 2], False)
    session.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('a' = 'b')").collect()
    assert back(0x20) == ([1], True)
    assert back(0x20) == ([1], False)
    overwrite_rows(session.createDataFrame([(7,)], "id long"), path, stamp(0x20, "pgbridge/1/sub/inc/1"))
    assert back(0x20, "pgbridge/1/sub/inc/1") == ([1], True)
    session.sql(f"INSERT INTO delta.`{path}` VALUES (5)").collect()
    assert back(0x20, "pgbridge/1/sub/inc/1") == ([1, 5], False)
    overwrite_rows(session.createDataFrame([(8,)], "id long"), path, stamp(0x40, "pgbridge/1/sub/inc/2"))
    session.sql(f"DELETE FROM delta.`{path}` WHERE id = 8").collect()
    with pytest.raises(TargetError, match=r"\(DELETE\) after it\nHINT:  see DESCRIBE") as caught:
        back(0x40, "pgbridge/1/sub/inc/2")
    before = int(re.findall(r"TO VERSION AS OF (\d+)", caught.value.hint)[0])
    session.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {before}").collect()
    assert back(0x40, "pgbridge/1/sub/inc/2") == ([1, 5], False)
