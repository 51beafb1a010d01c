"""The table of commits: made once, refused if it is another table, and which tables follow the stream where."""

from __future__ import annotations

import pytest

from bridge.catalog.commits import CommitRecord
from bridge.runtime.errors import TargetError
from bridge.snapshots import commits_table
from protocol.lsn import Lsn

ORIGIN = "pgbridge/1/sub/inc"


def record(number, kind, end_lsn, *names, start_lsn=0):
    tables = tuple(("n", name, f"/lake/{name}") for name in names)
    return CommitRecord(number, kind, None, Lsn(start_lsn), Lsn(end_lsn), None, 5, 1, tables, 1e9 + number)


def test_what_follows_where(spark, tmp_path):
    path = commits_table.path_in(str(tmp_path))
    commits_table.ensure(spark, path)
    commits_table.ensure(spark, path)
    assert commits_table.last_number(spark, path, ORIGIN) == 0
    records = [
        record(1, "joined", 0x10, "a", "it's", "c"),
        record(2, "batch", 0x20, "a", "it's"),
        record(3, "left", 0x20, "c"),
        record(4, "joined", 0x35, "d", start_lsn=0x20),  # ahead of the stream
        record(5, "batch", 0x30, "a"),
        record(6, "batch", 0x40, "d"),
        record(7, "batch", 0x50),
    ]
    rows = [
        commits_table.row_of("sub", ORIGIN, one, {f"/lake/{name}": one.number for name in ("a", "it's", "c", "d")})
        for one in records
    ]
    commits_table.append(spark, path, rows, ORIGIN, 7)
    commits_table.append(spark, path, rows[:3], ORIGIN, 3)  # late, of a daemon that was killed
    assert commits_table.last_number(spark, path, ORIGIN) == 7
    there = spark.read.format("delta").load(path)
    assert there.count() == 7

    def at(position):
        return {one.name: (one.version, one.later) for one in commits_table.tables_at(there, position)}

    assert at(0x0F) == {}
    assert at(0x10) == {"a": (1, True), "it's": (1, True), "c": (1, True)}
    assert at(0x20) == {"a": (2, True), "it's": (2, False)}
    assert at(0x30) == {"a": (5, False), "it's": (2, False)}
    assert at(0x35) == {"a": (5, False), "it's": (2, False), "d": (4, True)}
    assert at(0x50) == {"a": (5, False), "it's": (2, False), "d": (6, False)}
    commits_table.prune(spark, path, ORIGIN, 0x40)
    assert spark.read.format("delta").load(path).count() == 2


def test_another_table_is_refused(spark, tmp_path):
    path = commits_table.path_in(str(tmp_path))
    spark.range(1).write.format("delta").save(path)
    with pytest.raises(TargetError, match="not a table of commits"):
        commits_table.ensure(spark, path)
