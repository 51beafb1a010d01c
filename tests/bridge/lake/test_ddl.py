"""An empty table is created once, whenever a creation before it was cut short; and so is its namespace.

Statements and table features of planned changes; and on a real table, that they are taken back with their batch.
"""

from __future__ import annotations

import uuid
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from pgbridge.bridge.evolution.alterations import AddColumn, Alteration, RenameColumn, WidenColumn
from pgbridge.bridge.lake.commit import restore
from pgbridge.bridge.lake.ddl import (
    alter_table,
    checkpoint_interval,
    create_namespace,
    create_table,
    find_namespace,
    needed_properties,
    statements,
)
from pgbridge.bridge.lake.location import find_schema, place_of, read_table
from pgbridge.bridge.lake.log.local_log import local_folder
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.runtime.errors import StoreError, TargetError
from pgbridge.bridge.spark.session import fork
from pgbridge.protocol.lsn import Lsn


@pytest.fixture
def namespace(spark):
    """A namespace of the test's own, which is there already."""
    name = f"made_{uuid.uuid4().hex}"
    spark.sql(f"CREATE NAMESPACE {name}")
    yield name
    spark.sql(f"DROP NAMESPACE {name} CASCADE")


def default_place(spark, namespace, name):
    rows = spark.sql(f"DESCRIBE NAMESPACE {namespace}").collect()
    return f"{next(row[1] for row in rows if row[0] == 'Location')}/{name}"


def test_what_a_creation_left_that_was_cut_short_becomes_the_table(spark, namespace):
    """Delta commits before the catalog has the table."""
    schema = spark.range(1).schema
    location = f"catalog:spark_catalog.{namespace}.t"
    create_table(spark, default_place(spark, namespace, "t"), schema)
    create_table(spark, location, schema)
    append_rows(spark.range(2), location)
    assert read_table(spark, location).count() == 2
    assert local_folder(place_of(spark, location) or "") == local_folder(default_place(spark, namespace, "t"))


@pytest.mark.parametrize("left", ["rows", "columns", "other"])
def test_files_of_others_are_not_touched(spark, namespace, left):
    place = default_place(spark, namespace, "t")
    if left == "other":
        spark.sql(f"CREATE TABLE delta.`{place}` (id bigint) USING delta")
    else:
        create_table(spark, place, spark.range(1).withColumnRenamed("id", "id" if left == "rows" else "x").schema)
        if left == "rows":
            append_rows(spark.range(1), place)
    location = f"catalog:spark_catalog.{namespace}.t"
    with pytest.raises(StoreError, match="there are files already") as raised:
        create_table(spark, location, spark.range(1).schema)
    assert find_schema(spark, location) is None
    spark.sql(raised.value.hint.rpartition("in Spark: ")[2]).collect()
    assert find_schema(spark, location) == read_table(spark, place).schema


def test_tables_with_as_many_commits_do_not_write_their_checkpoints_at_once():
    commits = Counter(checkpoint_interval(f"/lake/public/t{i}") for i in range(160))
    assert set(commits) <= set(range(100, 132))
    assert max(commits.values()) < 15
    on_stores = Counter(checkpoint_interval(f"s3a://lake/public/t{i}") for i in range(160))
    assert set(on_stores) == set(range(20, 28))
    assert max(on_stores.values()) < 40


def test_a_namespace_is_created_once(spark):
    name = f"ns_{uuid.uuid4().hex}"
    assert find_namespace(spark, "spark_catalog", None)
    assert not find_namespace(spark, "spark_catalog", name)
    create_namespace(spark, "spark_catalog", name)
    create_namespace(spark, "spark_catalog", name)
    assert find_namespace(spark, "spark_catalog", name)
    spark.sql(f"DROP NAMESPACE {name}")


def test_a_catalog_that_refuses_is_told_with_the_remedy(spark):
    with pytest.raises(TargetError, match='Spark knows no catalog "nowhere"'):
        find_namespace(spark, "nowhere", None)
    with pytest.raises(StoreError, match="cannot be created") as raised:
        create_namespace(spark, "spark_catalog", "not-allowed")
    assert "CREATE NAMESPACE `spark_catalog`.`not-allowed`; or grant" in str(raised.value)
    assert isinstance(raised.value.__cause__, AnalysisException)


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


@pytest.mark.parametrize(
    "change", [AddColumn("_metadata", pa.string(), pa.scalar("x")), RenameColumn("a", "_metadata")]
)
def test_a_column_of_the_name_of_sparks_metadata_and_deletion_vectors(spark, tmp_path, change):
    """With them Spark could neither read the table nor change it; an undo has them again."""
    path, session = str(tmp_path / "t"), fork(spark)
    table = f"delta.`{path}`"
    before = session.range(0, 20, 1, 1).selectExpr("id", "'x' AS a")
    create_table(session, path, before.schema)
    append_rows(before, path)
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')").collect()
    session.sql(f"DELETE FROM {table} WHERE id = 3").collect()
    stamp = CommitStamp("app/0", Lsn(10), Lsn(20), alters=True)
    with stamped(session, stamp):
        alter_table(session, path, [change])
    made = session.sql(f"DESCRIBE HISTORY {table}").filter("version > 3").collect()
    assert {commit.userMetadata for commit in made} == {stamp.user_metadata}, "all are the batch's, to be taken back"
    session.sql(f"DELETE FROM {table} WHERE id = 4").collect()
    rows = {(row.id, row["_metadata"]) for row in session.sql(f"SELECT id, _metadata FROM {table}").collect()}
    assert rows == {(number, "x") for number in range(20) if number not in {3, 4}}
    session.sql(f"RESTORE TABLE {table} TO VERSION AS OF 3").collect()
    session.sql(f"DELETE FROM {table} WHERE id = 5").collect()
    ids = {row.id for row in session.sql(f"SELECT id, a FROM {table}").collect()}
    assert ids == {number for number in range(20) if number not in {3, 5}}
