"""Statements and table features of planned changes; and on a real table, that they are taken back with their batch."""

from __future__ import annotations

import pyarrow as pa
import pytest

from bridge.evolution.alterations import AddColumn, Alteration, RenameColumn, WidenColumn
from bridge.lake.alter import alter_table, needed_properties, statements
from bridge.lake.commit import restore
from bridge.lake.commit.writes import append_rows
from bridge.lake.create import create_table
from bridge.lake.log.stamp import CommitStamp, stamped
from bridge.spark.session import fork
from protocol.lsn import Lsn

MAPPING = {"delta.columnMapping.mode": "name"}
WIDENING = {"delta.enableTypeWidening": "true"}
NTZ = {"delta.feature.timestampNtz": "supported"}


def test_statements():
    changes: list[Alteration] = [
        AddColumn("a b", pa.int32()),
        AddColumn("c`d", pa.list_(pa.decimal128(10, 2))),
        RenameColumn("x", "y.z"),
        AddColumn("e", pa.timestamp("us", "UTC")),
        WidenColumn("y.z", pa.timestamp("us")),
    ]
    table = "ALTER TABLE delta.`/lake/t`"
    assert list(statements("/lake/t", changes)) == [
        f"{table} ADD COLUMNS (`a b` int, `c``d` array<decimal(10,2)>)",
        f"{table} RENAME COLUMN `x` TO `y.z`",
        f"{table} ADD COLUMNS (`e` timestamp)",
        f"{table} ALTER COLUMN `y.z` TYPE timestamp_ntz",
    ]


@pytest.mark.parametrize(
    ("change", "properties"),
    [
        (AddColumn("a", pa.int32()), {}),
        (AddColumn("a b", pa.int32()), MAPPING),
        (AddColumn("a", pa.timestamp("us", "UTC")), {}),
        (AddColumn("a", pa.list_(pa.timestamp("us"))), NTZ),
        (RenameColumn("a", "b"), MAPPING),
        (WidenColumn("a", pa.int64()), WIDENING),
        (WidenColumn("a", pa.timestamp("us")), WIDENING | NTZ),
    ],
)
def test_what_a_table_must_have_switched_on(change, properties):
    assert needed_properties([change]) == properties


def test_changes_are_made_once_and_taken_back_with_their_batch(spark, tmp_path):
    """All kinds at once; the constants a second time are left out, and nothing is left of it afterwards."""
    path = str(tmp_path / "t")
    session = fork(spark)
    before = session.createDataFrame([(1, "x", 1)], "id int, a string, d int")
    create_table(session, path, before.schema)
    append_rows(before, path)
    changes: list[Alteration] = [
        RenameColumn("a", "A"),
        WidenColumn("id", pa.int64()),
        AddColumn("c", pa.int32(), pa.scalar(7, pa.int32())),
        AddColumn("at", pa.timestamp("us"), pa.scalar(1_000_000, pa.timestamp("us"))),
    ]
    changes[:1] = [RenameColumn("a", "t"), RenameColumn("t", "A")]
    stamp = CommitStamp("app/0", Lsn(10), Lsn(20))
    with stamped(session, CommitStamp("app/0", Lsn(10), Lsn(20), alters=True)):
        alter_table(session, path, changes)
        alter_table(session, path, [AddColumn("e", pa.int32(), pa.scalar(8, pa.int32()))])
    with stamped(session, stamp):
        append_rows(session.createDataFrame([(1 << 40, None)], "id long, c int"), path)
    found = session.read.format("delta").load(path)
    assert found.schema.simpleString() == "struct<id:bigint,A:string,d:int,c:int,at:timestamp_ntz,e:int>"
    rows = {row.id: (row.A, row.c, row.at and row.at.second, row.e) for row in found.collect()}
    assert rows == {1: ("x", 7, 1, None), 1 << 40: (None, None, None, None)}
    for _ in range(2):
        batch = restore.UndoneBatch("app/0", Lsn(10), Lsn(20))
        restore.restore_tables(session, {path: Lsn(10)}, batch, fence=True, on_restored=lambda: None)
        found = session.read.format("delta").load(path)
        assert found.schema == before.schema
        assert [tuple(row) for row in found.collect()] == [(1, "x", 1)]
