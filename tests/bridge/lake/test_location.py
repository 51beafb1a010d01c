"""Where a catalog's table is, and what is found at a location."""

import shutil
import uuid

import pytest

from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.location import find_schema, place_of, read_table
from pgbridge.bridge.lake.log.local_log import local_folder
from pgbridge.bridge.lake.writes import overwrite_rows
from pgbridge.bridge.runtime.errors import TargetError


@pytest.fixture
def location(spark):
    """A location in a namespace of the test's own."""
    namespace = f"at_{uuid.uuid4().hex}"
    yield f"catalog:spark_catalog.{namespace}.t"
    spark.sql(f"DROP NAMESPACE IF EXISTS {namespace} CASCADE")


def test_a_table_is_found_until_it_is_dropped(spark, location):
    frame = spark.range(3)
    assert find_schema(spark, location) is None
    assert place_of(spark, location) is None
    create_table(spark, location, frame.schema)
    overwrite_rows(frame, location)
    found = find_schema(spark, location)
    assert found is not None
    assert found.simpleString() == frame.schema.simpleString()
    assert sorted(row.id for row in read_table(spark, location).collect()) == [0, 1, 2]
    assert read_table(spark, location, version=0).collect() == []
    folder = local_folder(place_of(spark, location) or "")
    assert folder is not None
    assert (folder / "_delta_log").is_dir()
    spark.sql(f"DROP TABLE {location.removeprefix('catalog:')}")
    assert find_schema(spark, location) is None
    assert place_of(spark, location, now=True) is None


def test_the_folder_of_a_table_has_a_name_of_any_kind(spark, location, tmp_path):
    namespace = location.split(".")[1]
    place = tmp_path / "a b%20ü#+"
    spark.sql(f"CREATE NAMESPACE {namespace} LOCATION '{place}'")
    create_table(spark, location, spark.range(1).schema)
    folder = local_folder(place_of(spark, location) or "")
    assert folder is not None
    assert (folder / "_delta_log").is_dir()


def test_files_that_are_gone_are_not_a_table_that_is_gone(spark, location):
    create_table(spark, location, spark.range(1).schema)
    folder = local_folder(place_of(spark, location) or "")
    assert folder is not None
    shutil.rmtree(folder)
    with pytest.raises(TargetError, match="its files are gone") as caught:
        find_schema(spark, location)
    spark.sql(caught.value.hint.partition("run in Spark: ")[2].partition(";")[0]).collect()
    assert find_schema(spark, location) is None, "the copy makes it anew"


def test_a_catalog_that_spark_does_not_know(spark):
    with pytest.raises(TargetError, match='Spark knows no catalog "nowhere"'):
        find_schema(spark, "catalog:nowhere.shop.t")
