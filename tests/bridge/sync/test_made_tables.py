"""What is checked of a table before it is made, and what is known of it afterwards."""

import pytest

from bridge.apply.delta.delta_table import read_target_schema, table_size
from bridge.apply.delta.layout import layout_of
from bridge.apply.target.target import TargetColumn
from bridge.errors import TargetError
from bridge.publication.published_table import PublishedColumn, PublishedTable
from bridge.sync.made_tables import check_before, make_table, remember_made
from bridge.table_layout import NO_LAYOUT, Layout
from bridge.track.catalog_rows import RelRow
from protocol.lsn import INVALID
from protocol.values.types import resolve

COLUMNS = {"id": 23, "region": 25, "many": 1007, "own_type": 99999}
TABLE = PublishedTable(
    1,
    "public",
    "t",
    "r",
    "d",
    tuple(PublishedColumn(name, oid, -1, name == "id", False) for name, oid in COLUMNS.items()),
    (),
)


@pytest.mark.parametrize(
    ("mode", "column", "is_allowed"),
    [
        ("mirror", "region", True),
        ("mirror", "own_type", True),
        ("mirror", "many", False),
        ("mirror", "valid_to", False),
        ("history", "region", True),
        ("history", "valid_to", True),
        ("changelog", "operation", True),
        ("changelog", "region", False),
        ("changelog", "new", False),
    ],
)
def test_a_layout_is_of_the_columns_that_the_mode_gives_the_delta_table(mode, column, is_allowed):
    check_before(TABLE, mode, NO_LAYOUT)
    layout = Layout(partition_by=(column,))
    if is_allowed:
        check_before(TABLE, mode, layout)
    else:
        with pytest.raises(TargetError, match='"public.t" cannot be laid out by partition_by'):
            check_before(TABLE, mode, layout)


def test_a_made_table_is_known_as_delta_has_it(spark, tmp_path):
    columns = [TargetColumn("id", resolve(23, -1)), TargetColumn("region", resolve(25, -1))]
    for number, layout in enumerate((NO_LAYOUT, Layout(partition_by=("region",)), Layout(cluster_by=("id",)))):
        rel = RelRow("public", "t", "i", INVALID, str(tmp_path / str(number)), 1)
        made = make_table(spark, rel, columns, "mirror", layout)
        assert (made, layout_of(spark, rel.path)) == (read_target_schema(spark, rel.path), layout)
        remember_made(spark, rel.path, layout)
        assert table_size(spark, rel.path).plain == (layout == NO_LAYOUT), "others must not be written anew"
