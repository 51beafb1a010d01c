"""The table of commits: made once, refused if it is another table; which tables follow the stream where.

Versions come from the tables' histories; what was lost comes back from there.
"""

from __future__ import annotations

import pytest

from pgbridge.bridge.catalog.commits import CommitRecord
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamp_options
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.snapshots import commits_table
from pgbridge.bridge.snapshots.commit_log import Part
from pgbridge.bridge.snapshots.commits_table import CommitRows
from pgbridge.protocol.lsn import Lsn

ORIGIN = "pgbridge/1/sub/inc"


def table_in(spark, warehouse):
    return CommitRows(spark, commits_table.path_in(str(warehouse)), LocalTables())


def record(number, kind, end_lsn, *names, start_lsn=0):
    tables = tuple(("n", name, f"/lake/{name}") for name in names)
    return CommitRecord(number, kind, None, Lsn(start_lsn), Lsn(end_lsn), None, 5, 1, tables, 1e9 + number)


def test_what_follows_where(spark, tmp_path):
    rows = table_in(spark, tmp_path)
    assert rows.ensure()
    assert not rows.ensure()
    assert rows.last_numbers([ORIGIN]).get(ORIGIN, 0) == 0
    records = [
        record(1, "joined", 0x10, "a", "it's", "c"),
        record(2, "batch", 0x20, "a", "it's"),
        record(3, "left", 0x20, "c"),
        record(4, "joined", 0x35, "d", start_lsn=0x20),  # ahead of the stream
        record(5, "batch", 0x30, "a"),
        record(6, "batch", 0x40, "d"),
        record(7, "batch", 0x50),
    ]
    made = [
        commits_table.row_of("sub", ORIGIN, one, {f"/lake/{name}": one.number for name in ("a", "it's", "c", "d")})
        for one in records
    ]
    rows._append(made, ORIGIN, 7)
    rows._append(made[:3], ORIGIN, 3)  # late, of a daemon that was killed
    assert not rows._append_together(made[:3], {ORIGIN: 3, "another": 9})
    assert rows.last_numbers([ORIGIN]) == {ORIGIN: 7}
    there = spark.read.format("delta").load(rows.path)
    assert there.count() == 7

    def at(position):
        return {one.name: (one.version, one.later) for one in commits_table.tables_at(there, position)}

    assert at(0x0F) == {}
    assert at(0x10) == {"a": (1, True), "it's": (1, True), "c": (1, True)}
    assert at(0x20) == {"a": (2, True), "it's": (2, False)}
    assert at(0x30) == {"a": (5, False), "it's": (2, False)}
    assert at(0x35) == {"a": (5, False), "it's": (2, False), "d": (4, True)}
    assert at(0x50) == {"a": (5, False), "it's": (2, False), "d": (6, False)}


def test_another_table_is_refused(spark, tmp_path):
    rows = table_in(spark, tmp_path)
    spark.range(1).write.format("delta").save(rows.path)
    with pytest.raises(TargetError, match="not a table of commits"):
        rows.ensure()


# --- versions from the tables' histories ------------------------------------------------------------------------------


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


def record_of(lake, number, kind, end_lsn, *names):
    tables = tuple(("n", name, str(lake / name)) for name in names)
    return CommitRecord(number, kind, None, Lsn(end_lsn), Lsn(end_lsn), None, None, 1, tables, 1e9 + number)


def versions(spark, path):
    rows = spark.read.format("delta").load(path).orderBy("position", "number").collect()
    return [(row.kind, row.end_lsn, {one.name: one.version for one in row.tables}) for row in rows]


def test_versions_come_from_the_histories(spark, lake):
    rows = table_in(spark, lake)
    rows.ensure()
    records = [
        record_of(lake, 1, "joined", 0x10, "a"),
        record_of(lake, 2, "joined", 0x10, "b"),
        record_of(lake, 3, "batch", 0x20, "a"),
        record_of(lake, 4, "batch", 0x30, "b"),
        record_of(lake, 5, "batch", 0x40, "a", "b"),
        record_of(lake, 6, "left", 0x40, "b"),
    ]
    rows.append([Part("sub", ORIGIN, records)])
    assert versions(spark, rows.path) == [
        ("joined", "0/10", {"a": 0}),
        ("joined", "0/10", {"b": 0}),
        ("batch", "0/20", {"a": 1}),
        ("batch", "0/30", {"b": 1}),
        ("batch", "0/40", {"a": 2, "b": 1}),  # the batch had nothing for b in the end
        ("left", "0/40", {"b": None}),
    ]
    assert rows.last_numbers([ORIGIN]) == {ORIGIN: 6}
    assert rows.prune(ORIGIN, 1e9) == 0
    assert rows.prune(ORIGIN, 1e9 + 4.5) == 3
    kept = ("joined", "0/30", {"a": 1, "b": 1})
    assert sorted(versions(spark, rows.path)[:2], key=str) == sorted([("batch", "0/30", {"b": 1}), kept], key=str)
    assert [one.version for one in commits_table.tables_at(spark.read.format("delta").load(rows.path), 0x30)] == [1, 1]


def test_those_of_several_subscriptions_are_one_commit(spark, lake):
    """And none of them twice, if one was appended already, by a daemon that was killed."""
    rows = table_in(spark, lake)
    rows.ensure()
    other = "pgbridge/1/other/inc"
    parts = [
        Part("sub", ORIGIN, [record_of(lake, 1, "joined", 0x10, "a"), record_of(lake, 3, "batch", 0x20, "a")]),
        Part("other", other, [record_of(lake, 2, "joined", 0x10, "b")]),
    ]
    rows.append(parts)
    assert table_version(spark, rows.path) == 1
    more = [parts[0], Part("other", other, [record_of(lake, 4, "batch", 0x30, "b")])]
    rows.append(more)
    rows.append(more)
    assert rows.last_numbers([ORIGIN, other, "a third one"]) == {ORIGIN: 3, other: 4}
    told = [("joined", "0/10", {"a": 0}), ("joined", "0/10", {"b": 0}), ("batch", "0/20", {"a": 1})]
    assert versions(spark, rows.path) == [*told, ("batch", "0/30", {"b": 1})]


def test_what_was_lost_comes_back(spark, lake):
    rows = table_in(spark, lake)
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
    assert rows.last_numbers([ORIGIN]).get(ORIGIN, 0) == 0
