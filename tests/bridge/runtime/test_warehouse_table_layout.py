"""A layout knows its columns, and the key of the configuration that names them."""

from pgbridge.bridge.runtime.warehouse import NO_LAYOUT, Layout


def test_a_layout_names_its_columns_and_their_key():
    assert (Layout(cluster_by=("a", "b")).columns, Layout(cluster_by=("a",)).option) == (("a", "b"), "cluster_by")
    assert (Layout(partition_by=("a",)).columns, Layout(partition_by=("a",)).option) == (("a",), "partition_by")
    assert Layout() == NO_LAYOUT
    assert NO_LAYOUT.columns == ()
