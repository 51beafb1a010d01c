"""Large tables get deletion vectors, which change what a commit writes and not what crashes and undos leave."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from pgbridge.bridge.batch.batch import Batch
from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.lake.commit import plan
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.bridge.targets.target import Target, target_schema
from pgbridge.protocol.lsn import Lsn
from tests.bridge.apply.made_batches import Cut, applier, batch, failing, settling
from tests.bridge.apply.made_targets import changes, content, empty_target

PROPERTY = "delta.enableDeletionVectors"
ROWS = [(1, "old"), (2, "old"), (3, "old")]


@pytest.fixture
def target(spark, tmp_path):
    """A table of three rows in one file."""
    made = empty_target(spark, tmp_path)
    append_rows(spark.createDataFrame(ROWS, "id long, note string").coalesce(1), made.path)
    return made


@pytest.fixture
def every_size_is_large(monkeypatch):
    monkeypatch.setattr(plan, "LARGE_BYTES", 1)
    monkeypatch.setattr(plan, "_PLACES_BYTES", 1)


def vectors(spark, target):
    """What the property says."""
    return spark.sql(f"DESCRIBE DETAIL delta.`{target.path}`").collect()[0].properties.get(PROPERTY)


def last(spark, target):
    """The last commit's operation, and its deletion vectors."""
    commit = spark.sql(f"DESCRIBE HISTORY delta.`{target.path}` LIMIT 1").collect()[0]
    return commit.operation, commit.operationMetrics.get("numTargetDeletionVectorsAdded")


def deleted_by_vectors(target):
    """How many rows each deletion vector of the last commit marks."""
    entry = max(Path(target.path, "_delta_log").glob("*.json")).read_text()
    added = [line["add"] for line in map(json.loads, entry.splitlines()) if "add" in line]
    return [add["deletionVector"]["cardinality"] for add in added if "deletionVector" in add]


@pytest.mark.usefixtures("every_size_is_large")
def test_a_large_table_keeps_its_files(spark, catalog, target):
    """The ALTER TABLE is no commit of the batch, and is made once."""
    version = table_version(spark, target.path)
    applier(spark, catalog).apply(batch(changes(target, (UPDATE, None, 1, "new"), (DELETE, 2, None, None))))
    assert content(spark, target) == [(1, "new"), (3, "old")]
    assert last(spark, target) == ("MERGE", None)  # by place
    assert deleted_by_vectors(target) == [2]
    commits = spark.sql(f"DESCRIBE HISTORY delta.`{target.path}` LIMIT 2").collect()
    assert [commit.version for commit in commits] == [version + 2, version + 1]
    assert (commits[1].operation, commits[1].userMetadata) == ("SET TBLPROPERTIES", None)
    again = Batch(Lsn(0x20), Lsn(0x30), Lsn(0x28), 8, 1, 1, [changes(target, (UPDATE, None, 1, "newer"))])
    applier(spark, catalog).apply(again)
    assert content(spark, target) == [(1, "newer"), (3, "old")]
    assert table_version(spark, target.path) == version + 3


@pytest.mark.usefixtures("every_size_is_large")
def test_a_large_table_with_a_column_of_the_name_of_sparks_metadata_is_left_as_it_is(spark, catalog, tmp_path):
    """Delta names `_metadata` in each query that makes deletion vectors, and cannot tell the two apart."""
    schema = target_schema([("id", pa.int64()), ("note", pa.string()), ("_metadata", pa.string())])
    made = Target("public", "t", str(tmp_path / "t"), schema)
    spark.sql(
        f"CREATE TABLE delta.`{made.path}` (id bigint, note string, _metadata string) USING delta"
        " TBLPROPERTIES ('pgbridge.created' = 'true')"
    ).collect()
    spark.sql(f"INSERT INTO delta.`{made.path}` VALUES (1, 'old', 'kept'), (2, 'old', 'gone')").collect()
    applier(spark, catalog).apply(batch(changes(made, (UPDATE, None, 1, "new"), (DELETE, 2, None, None))))
    assert (vectors(spark, made), content(spark, made)) == (None, [(1, "new", "kept")])


def test_a_small_table_is_left_as_it_is(spark, catalog, target):
    applier(spark, catalog).apply(batch(changes(target, (UPDATE, None, 1, "new"))))
    assert vectors(spark, target) is None
    assert last(spark, target) == ("MERGE", "0")


@pytest.mark.usefixtures("every_size_is_large")
@pytest.mark.parametrize(
    "statement",
    [f"SET TBLPROPERTIES ('{PROPERTY}' = 'false')", "UNSET TBLPROPERTIES ('pgbridge.created')"],
    ids=["refused", "adopted"],
)
def test_tables_are_left_to_whoever_decided_or_created_them(spark, catalog, target, statement):
    spark.sql(f"ALTER TABLE delta.`{target.path}` {statement}").collect()
    applier(spark, catalog).apply(batch(changes(target, (UPDATE, None, 1, "new"))))
    assert vectors(spark, target) != "true"
    assert content(spark, target) == [(1, "new"), *ROWS[1:]]


@pytest.mark.usefixtures("every_size_is_large")
def test_a_decision_since_the_last_look_counts(spark, catalog, target):
    bridge = applier(spark, catalog)
    bridge._known.facts(spark, target.path)
    spark.sql(f"ALTER TABLE delta.`{target.path}` SET TBLPROPERTIES ('{PROPERTY}' = 'false')").collect()
    bridge.apply(batch(changes(target, (UPDATE, None, 1, "new"))))
    assert vectors(spark, target) == "false"


@pytest.mark.usefixtures("every_size_is_large")
def test_inserts_alone_need_none(spark, catalog, target):
    applier(spark, catalog).apply(batch(changes(target, (INSERT, None, 4, "new"))))
    assert vectors(spark, target) is None


@pytest.mark.usefixtures("every_size_is_large")
@pytest.mark.parametrize("point", faults.LARGE_POINTS)
def test_killed_before_the_batch_is_committed(spark, catalog, target, point):
    one = batch(changes(target, (UPDATE, None, 1, "new")))
    with failing(Cut(), point), pytest.raises(Cut):
        applier(spark, catalog).apply(one)
    assert (content(spark, target), vectors(spark, target)) == (ROWS, "true")
    settling(spark, catalog).keep()
    applier(spark, catalog).apply(one)
    assert content(spark, target) == [(1, "new"), *ROWS[1:]]
    # by place, because the first try has given it vectors; its file stays, with one
    assert last(spark, target) == ("MERGE", None)
    assert deleted_by_vectors(target) == [1]


@pytest.mark.usefixtures("every_size_is_large")
def test_an_undo_takes_back_the_rows_and_not_the_property(spark, catalog, target):
    one = batch(changes(target, (UPDATE, None, 1, "new"), (DELETE, 2, None, None)))
    bridge = applier(spark, catalog)
    with failing(PySparkException("no answer"), "table_committed"), pytest.raises(ApplyError, match="no answer"):
        bridge.apply(one)
    assert (content(spark, target), vectors(spark, target)) == (ROWS, "true")
    bridge.apply(one)
    assert content(spark, target) == [(1, "new"), (3, "old")]


@pytest.mark.usefixtures("every_size_is_large")
def test_a_restore_to_before_the_property_takes_it_back(spark, catalog, target):
    """Delta leaves the protocol, which does no harm; the next batch sets the property again."""
    version = table_version(spark, target.path)
    applier(spark, catalog).apply(batch(changes(target, (DELETE, 1, None, None))))
    spark.sql(f"RESTORE TABLE delta.`{target.path}` TO VERSION AS OF {version}").collect()
    assert (content(spark, target), vectors(spark, target)) == (ROWS, None)
    again = Batch(Lsn(0x20), Lsn(0x30), Lsn(0x28), 8, 1, 1, [changes(target, (DELETE, 2, None, None))])
    applier(spark, catalog).apply(again)
    assert content(spark, target) == [(1, "old"), (3, "old")]
    assert deleted_by_vectors(target) == [1]
