"""A table that is made has the columns and the layout that it should have."""

from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.lake.location import layout_of
from pgbridge.bridge.lake.table import read_target_schema
from pgbridge.bridge.lake.table_facts import read_facts
from pgbridge.bridge.publication.published_table import PublishedColumn, PublishedTable
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT, Layout
from pgbridge.bridge.sync.made_tables import make_table, new_columns
from pgbridge.bridge.targets.target import TargetColumn, sql_type
from pgbridge.protocol.lsn import INVALID
from pgbridge.protocol.values.types import Place, resolve
from tests.oracle.extension_types import CATALOG, EMBEDDING, GEOMETRY, VECTOR

JSONB = 3802


def test_a_made_table_has_its_layout(spark, tmp_path):
    columns = [TargetColumn("id", resolve(23, -1)), TargetColumn("region", resolve(25, -1))]
    for number, layout in enumerate((NO_LAYOUT, Layout(partition_by=("region",)), Layout(cluster_by=("id",)))):
        rel = RelRow("public", "t", "i", INVALID, str(tmp_path / str(number)), 1)
        made = make_table(spark, rel, columns, "mirror", layout, {})
        assert (made, layout_of(spark, rel.path)) == (read_target_schema(spark, rel.path), layout)
        assert read_facts(spark, rel.path).plain == (layout == NO_LAYOUT), "others must not be written anew"


def test_columns_that_may_identify_rows_stay_strings():
    """Those of the primary key, and of the replica identity's index."""
    columns = tuple(
        PublishedColumn(
            f"{name}{role}", oid, -1, in_primary_key=role == "_key", in_replica_identity_index=role == "_index"
        )
        for name, oid in (("doc", JSONB), ("v", VECTOR), ("e", EMBEDDING), ("g", GEOMETRY), ("n", 23))
        for role in ("", "_key", "_index")
    )
    table = PublishedTable(1, "public", "t", "r", "d", columns, ())

    def made(*parsed):
        found = new_columns(table, CATALOG, parsed)
        return {
            column.name: "variant" if column.type.place is Place.VARIANT else sql_type(column.type.arrow)
            for column in found
            if column.type.place is Place.VARIANT or sql_type(column.type.arrow) not in {"string", "int"}
        }

    assert made() == {}
    assert made("jsonb") == {"doc": "variant"}
    assert made("vector", "geometry") == {"v": "array<float>", "e": "array<float>", "g": "binary"}
