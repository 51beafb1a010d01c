"""An empty table is created once, whenever a creation before it was cut short; and so is its namespace."""

import uuid
from collections import Counter

import pytest
from pyspark.errors import AnalysisException

from bridge.lake.commit.writes import append_rows
from bridge.lake.create import checkpoint_interval, create_namespace, create_table, find_namespace
from bridge.lake.location import find_schema, place_of, read_table
from bridge.lake.log.durable import local_folder
from bridge.runtime.errors import StoreError, TargetError


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
    assert set(commits) == set(range(30, 46))
    assert max(commits.values()) < 25


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
