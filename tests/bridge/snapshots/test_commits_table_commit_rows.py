"""Records get their versions from the tables' histories; what was lost comes back from there."""

from __future__ import annotations

import pytest

from bridge.catalog.commits import CommitRecord
from bridge.lake.log.local_tables import LocalTables
from bridge.lake.log.stamp import CommitStamp, stamp_options
from bridge.snapshots import commits_table
from bridge.snapshots.commits_table import CommitRows
from protocol.lsn import Lsn

ORIGIN = "pgbridge/1/sub/inc"


@pytest.fixture
def lake(spark, tmp_path):
    """Two tables: a has a copy and batches up to 0/20 and 0/40, b a copy and a batch up to 0/30."""
    for name, ends in (("a", (0x20, 0x40)), ("b", (0x30,))):
        path = str(tmp_path / name)
        copied = CommitStamp(f"{ORIGIN}/copy", Lsn(0x10), Lsn(0x10))
        spark.range(1).write.format("delta").options(**stamp_options(copied)).save(path)
        for end in ends:
            stamp = CommitStamp(f"{ORIGIN}/0", Lsn(end - 0x10), Lsn(end), commit_time_us=end)
            spark.range(1).write.format("delta").mode("append").options(**stamp_options(stamp)).save(path)
    return tmp_path


def record(lake, number, kind, end_lsn, *names):
    tables = tuple(("n", name, str(lake / name)) for name in names)
    return CommitRecord(number, kind, None, Lsn(end_lsn), Lsn(end_lsn), None, None, 1, tables, 1e9 + number)


def versions(spark, path):
    rows = spark.read.format("delta").load(path).orderBy("position", "number").collect()
    return [(row.kind, row.end_lsn, {one.name: one.version for one in row.tables}) for row in rows]


def test_versions_come_from_the_histories(spark, lake):
    rows = CommitRows(spark, commits_table.path_in(str(lake)), LocalTables())
    rows.ensure()
    records = [
        record(lake, 1, "joined", 0x10, "a"),
        record(lake, 2, "joined", 0x10, "b"),
        record(lake, 3, "batch", 0x20, "a"),
        record(lake, 4, "batch", 0x30, "b"),
        record(lake, 5, "batch", 0x40, "a", "b"),
        record(lake, 6, "left", 0x40, "b"),
    ]
    rows.append("sub", ORIGIN, records)
    assert versions(spark, rows.path) == [
        ("joined", "0/10", {"a": 0}),
        ("joined", "0/10", {"b": 0}),
        ("batch", "0/20", {"a": 1}),
        ("batch", "0/30", {"b": 1}),
        ("batch", "0/40", {"a": 2, "b": 1}),  # the batch had nothing for b in the end
        ("left", "0/40", {"b": None}),
    ]
    assert rows.last_number(ORIGIN) == 6
    assert rows.prune(ORIGIN, 1e9) == 0
    assert rows.prune(ORIGIN, 1e9 + 4.5) == 3
    kept = ("joined", "0/30", {"a": 1, "b": 1})
    assert sorted(versions(spark, rows.path)[:2], key=str) == sorted([("batch", "0/30", {"b": 1}), kept], key=str)
    assert [one.version for one in commits_table.tables_at(spark.read.format("delta").load(rows.path), 0x30)] == [1, 1]


def test_what_was_lost_comes_back(spark, lake):
    rows = CommitRows(spark, commits_table.path_in(str(lake)), LocalTables())
    rows.ensure()
    tables = [("n", name, str(lake / name)) for name in ("a", "b")]
    assert rows.rebuild("sub", ORIGIN, tables) == 4
    assert rows.rebuild("sub", ORIGIN, tables) == 4  # it was cut short: Delta has it already
    assert sorted(versions(spark, rows.path), key=str) == [
        ("batch", "0/20", {"a": 1}),
        ("batch", "0/30", {"b": 1}),  # the one up to 0/40 may not be finished
        ("joined", "0/10", {"a": 0}),
        ("joined", "0/10", {"b": 0}),
    ]
    assert rows.last_number(ORIGIN) == 0
