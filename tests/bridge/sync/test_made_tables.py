"""A table that is made has the columns and the layout that it should have."""

from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.lake.location import layout_of
from pgbridge.bridge.lake.table import read_target_schema
from pgbridge.bridge.lake.table_facts import read_facts
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT, Layout
from pgbridge.bridge.sync.made_tables import make_table
from pgbridge.bridge.targets.target import TargetColumn
from pgbridge.protocol.lsn import INVALID
from pgbridge.protocol.values.types import resolve


def test_a_made_table_has_its_layout(spark, tmp_path):
    columns = [TargetColumn("id", resolve(23, -1)), TargetColumn("region", resolve(25, -1))]
    for number, layout in enumerate((NO_LAYOUT, Layout(partition_by=("region",)), Layout(cluster_by=("id",)))):
        rel = RelRow("public", "t", "i", INVALID, str(tmp_path / str(number)), 1)
        made = make_table(spark, rel, columns, "mirror", layout, {})
        assert (made, layout_of(spark, rel.path)) == (read_target_schema(spark, rel.path), layout)
        assert read_facts(spark, rel.path).plain == (layout == NO_LAYOUT), "others must not be written anew"
