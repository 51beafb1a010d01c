"""What is known of a table is read from its log, or asked of Spark, now and then."""

from __future__ import annotations

import pytest

from pgbridge.bridge.lake import table_facts
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.table_facts import KnownTables, read_facts
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT, Layout


def test_they_are_asked_for_now_and_then(spark, tmp_path):
    """It helps to choose a way; an old answer only makes a commit slower."""
    path = str(tmp_path / "t")
    frame = spark.createDataFrame([(1,)], "id long")
    create_table(spark, path, frame.schema)
    known = KnownTables()
    first = known.facts(spark, path)
    assert (first.files, first.size_bytes, first.vectors_undecided, first.plain) == (0, 0, True, True)
    append_rows(frame, path)
    facts = [known.facts(spark, path) for _ in range(table_facts._LOOK_AGAIN_AFTER)]
    assert {one.files for one in facts[:-1]} == {0}
    assert facts[-1].files == 1
    assert facts[-1].size_bytes > 100


VECTORS = "'delta.enableDeletionVectors' = 'true'"


@pytest.mark.parametrize(
    ("layout", "statements"),
    [
        (NO_LAYOUT, []),
        (Layout(partition_by=("region",)), []),
        (Layout(cluster_by=("id",)), []),
        (Layout(cluster_by=("id",)), ["ALTER TABLE {} CLUSTER BY NONE"]),
        (NO_LAYOUT, [f"ALTER TABLE {{}} SET TBLPROPERTIES ({VECTORS})", "DELETE FROM {} WHERE id = 1"]),
        (NO_LAYOUT, ["ALTER TABLE {} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"]),
        (NO_LAYOUT, ["ALTER TABLE {} UNSET TBLPROPERTIES ('pgbridge.created')"]),
    ],
)
def test_those_of_a_local_table_are_read_from_its_log(spark, tmp_path, monkeypatch, layout, statements):
    """They say the same as Spark does."""
    path = str(tmp_path / "t")
    frame = spark.createDataFrame([(1, "a"), (2, "b"), (3, "c")], "id long, region string")
    create_table(spark, path, frame.schema, layout)
    append_rows(frame, path)
    for statement in statements:
        spark.sql(statement.format(f"delta.`{path}`")).collect()
    asked = table_facts._described(spark, path)
    monkeypatch.setattr(table_facts, "_described", lambda *_: pytest.fail("Spark was asked"))
    assert read_facts(spark, path) == asked


@pytest.mark.parametrize("text", [None, "{}", '{"metadata": {}, "domainMetadata": [], "numFiles": 1}', "[]", "cut"])
def test_spark_is_asked_if_the_writer_of_the_log_has_not_said_them(spark, tmp_path, text):
    path = tmp_path / "t"
    frame = spark.createDataFrame([(1,)], "id long")
    create_table(spark, str(path), frame.schema)
    checksum = path / "_delta_log" / f"{0:020}.crc"
    checksum.unlink() if text is None else checksum.write_text(text)
    facts = read_facts(spark, str(path))
    assert (facts.files, facts.plain, facts.vectors_undecided) == (0, True, True)


def test_all_writers_of_a_process_keep_rows_within_one_bound():
    """Three hundred subscriptions have as many writers."""
    assert KnownTables().rows is KnownTables().rows
    assert KnownTables().places is KnownTables().places
