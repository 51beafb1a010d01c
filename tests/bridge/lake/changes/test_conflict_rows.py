"""Conflicts are appended without the stamp of a batch, to a table that is made once; another one is refused."""

from __future__ import annotations

import pytest

from pgbridge.bridge.effects.conflicts import DELETE_MISSING, Conflict, Conflicts
from pgbridge.bridge.lake.changes.conflict_rows import ConflictRows, rows_of
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.spark.session import fork
from pgbridge.protocol.lsn import Lsn

KEYS = tuple(Conflict("public.t", DELETE_MISSING, ("id",), (str(number),)) for number in range(3))
ROWS = rows_of(
    "sub",
    Conflicts("public.t", {DELETE_MISSING: 3}, {DELETE_MISSING: KEYS}),
    xid=None,
    finish_lsn=Lsn(0x18),
    commit_time_us=0,
)


def test_rows_are_appended_whatever_the_session_s_stamp(spark, tmp_path):
    table = ConflictRows.of(fork(spark), str(tmp_path))
    for _ in range(2):
        table.ensure()
        with stamped(table.parent, CommitStamp("app", Lsn(1), Lsn(2))):
            table.append(ROWS)
    written = spark.read.format("delta").load(table.path)
    assert [row.key for row in written.orderBy("key").collect()] == [f'{{"id": "{n}"}}' for n in (0, 0, 1, 1, 2, 2)]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table.path}`").collect()
    assert {row.userMetadata for row in history} == {None}


def test_another_table_in_its_place_is_refused(spark, tmp_path):
    table = ConflictRows.of(fork(spark), str(tmp_path))
    create_table(spark, table.path, spark.range(1).schema)
    with pytest.raises(TargetError, match="is not a table of conflicts: its columns are struct<id:bigint>"):
        table.ensure()
