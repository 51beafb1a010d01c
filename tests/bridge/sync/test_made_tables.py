"""What is known of a table that was made."""

from dataclasses import replace

from bridge.apply.delta.delta_table import forget_size, read_target_schema, table_size
from bridge.apply.delta.layout import layout_of
from bridge.apply.target.target import TargetColumn
from bridge.session import fork
from bridge.sync.made_tables import make_table, remember_made
from bridge.table_layout import NO_LAYOUT, Layout
from bridge.track.catalog_rows import RelRow
from protocol.lsn import INVALID
from protocol.values.types import resolve


def test_a_made_table_is_known_as_delta_has_it(spark, tmp_path):
    columns = [TargetColumn("id", resolve(23, -1)), TargetColumn("region", resolve(25, -1))]
    for number, layout in enumerate((NO_LAYOUT, Layout(partition_by=("region",)), Layout(cluster_by=("id",)))):
        rel = RelRow("public", "t", "i", INVALID, str(tmp_path / str(number)), 1)
        made = make_table(spark, rel, columns, "mirror", layout)
        assert (made, layout_of(spark, rel.path)) == (read_target_schema(spark, rel.path), layout)
        remember_made(spark, rel.path, layout)
        assert table_size(spark, rel.path).plain == (layout == NO_LAYOUT), "others must not be written anew"


def test_properties_that_spark_gives_new_tables_are_known(spark, tmp_path):
    """With a change data feed, a table must not be written anew: its readers would get all rows."""
    session = fork(spark)
    session.conf.set("spark.databricks.delta.properties.defaults.enableChangeDataFeed", "true")
    rel = RelRow("public", "t", "i", INVALID, str(tmp_path / "t"), 1)
    make_table(session, rel, [TargetColumn("id", resolve(23, -1))], "mirror", NO_LAYOUT)
    known = remember_made(session, rel.path, NO_LAYOUT)
    assert known is not None
    assert (known.plain, known.vectors_undecided) == (False, True)


def test_the_rows_of_a_made_table_are_counted_by_its_files(spark, tmp_path):
    rel = RelRow("public", "t", "i", INVALID, str(tmp_path / "t"), 1)
    make_table(spark, rel, [TargetColumn("id", resolve(20, -1))], "mirror", NO_LAYOUT)
    spark.range(1000).repartition(2).writeTo(f"delta.`{rel.path}`").append()
    known = remember_made(spark, rel.path, NO_LAYOUT)
    assert known is not None
    assert (known.files, known.rows, known.version, known.plain) == (2, 1000, 1, True)
    assert known.uncompressed_bytes is not None
    assert known.uncompressed_bytes > 1000 * 4
    forget_size(rel.path)
    asked = table_size(spark, rel.path)
    assert replace(known, version=None, rows=None, uncompressed_bytes=None) == asked
