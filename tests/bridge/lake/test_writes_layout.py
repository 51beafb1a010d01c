"""A table keeps its clustering or partition columns, whatever replaces its rows."""

import uuid

import pytest

from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.location import layout_of, partition_columns, read_table
from pgbridge.bridge.lake.table import read_target_schema
from pgbridge.bridge.lake.table_facts import read_facts
from pgbridge.bridge.lake.writes import overwrite_rows
from pgbridge.bridge.runtime.warehouse import Layout
from pgbridge.protocol.values.types import Place

COLUMNS = "id int, `a b;c` string, day date"
ROWS = [(1, "x", None), (2, None, None), (3, " ", None)]
LAYOUTS = [Layout(cluster_by=("a b;c", "day")), Layout(partition_by=("day", "a b;c"))]


@pytest.fixture(params=["path", "catalog"])
def location(request, spark, tmp_path):
    if request.param == "path":
        yield str(tmp_path / "t")
        return
    name = f"laid_{uuid.uuid4().hex}"
    spark.sql(f"CREATE NAMESPACE {name}")
    yield f"catalog:spark_catalog.{name}.t"
    spark.sql(f"DROP NAMESPACE {name} CASCADE")


@pytest.mark.parametrize("layout", LAYOUTS, ids=["clustered", "partitioned"])
def test_overwrites_keep_the_layout(spark, location, layout, request):
    """Also in a session whose overwrites replace single partitions by default: all rows must go."""
    mode = "spark.sql.sources.partitionOverwriteMode"
    spark.conf.set(mode, "dynamic")
    request.addfinalizer(lambda: spark.conf.unset(mode))
    rows = spark.createDataFrame(ROWS, COLUMNS)
    create_table(spark, location, rows.schema, layout)

    def found():
        return sorted(tuple(row) for row in read_table(spark, location).collect())

    assert layout_of(spark, location) == layout
    assert set(partition_columns(spark, location)) == set(layout.partition_by)
    assert not read_facts(spark, location).plain
    places = {field.name: field.place for field in read_target_schema(spark, location) or ()}
    assert places["a b;c"] is (Place.PARTITION if layout.partition_by else Place.COLUMN)
    overwrite_rows(rows, location)
    assert (found(), layout_of(spark, location)) == (sorted(ROWS), layout)
    overwrite_rows(rows.filter("id = 2"), location)
    assert found() == [ROWS[1]]
    overwrite_rows(rows.select("id"), location)
    assert (found(), layout_of(spark, location)) == ([(id_, None, None) for id_, *_ in sorted(ROWS)], layout)
    overwrite_rows(rows.selectExpr("cast(id AS bigint) AS id", "`a b;c`", "1 AS n"), location, columns_too=True)
    kept = Layout(*(tuple(name for name in names if name != "day") for names in layout))
    assert (found(), layout_of(spark, location)) == ([(id_, text, 1) for id_, text, _ in ROWS], kept)


def test_a_clustering_column_may_stand_anywhere(spark, tmp_path):
    """Delta collects statistics of the first 32 columns only, unless it is told otherwise."""
    path = str(tmp_path / "t")
    columns = ", ".join(f"c{number} int" for number in range(40))
    layout = Layout(cluster_by=("c39",))
    create_table(spark, path, spark.createDataFrame([], columns).schema, layout)
    assert layout_of(spark, path) == layout
