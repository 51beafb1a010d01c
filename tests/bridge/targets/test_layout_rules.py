"""A layout names columns of the Delta table, of types that Delta clusters or partitions by."""

import pyarrow as pa
import pytest

from bridge.runtime.errors import TargetError
from bridge.runtime.warehouse import NO_LAYOUT, Layout
from bridge.targets.layout_rules import check_layout, kept_layout, layout_properties
from bridge.targets.target import TargetField, target_schema, unpublished_column
from protocol.values.types import Place

BOTH = {
    "small": pa.int16(), "whole": pa.int32(), "big": pa.int64(), "money": pa.decimal128(9, 2), "word": pa.string(),
    "day": pa.date32(), "local": pa.timestamp("us"), "instant": pa.timestamp("us", "UTC"),
}  # fmt: skip
NEITHER = {"bytes": pa.binary(), "many": pa.list_(pa.int32())}
SCHEMA = (
    *target_schema({**BOTH, **NEITHER, "yes": pa.bool_(), "real": pa.float32(), "double": pa.float64()}.items()),
    TargetField("doc", pa.string(), "variant", Place.VARIANT),
    TargetField("new", None, "struct<id:int>"),
)


@pytest.mark.parametrize("name", [field.name for field in SCHEMA])
def test_types_that_delta_allows(name):
    allowed = {"cluster_by": {*BOTH, "real", "double"}, "partition_by": {*BOTH, "yes"}}
    for option, names in allowed.items():
        layout = Layout(**{option: (name,)})
        if name in names:
            check_layout("public.t", layout, SCHEMA)
        else:
            with pytest.raises(TargetError, match=f'public.t" cannot be laid out by {option}: its column "{name}" is'):
                check_layout("public.t", layout, SCHEMA)


def test_columns_that_are_not_there_are_refused_with_a_hint():
    for name, advice in (("WORD", 'write "word"'), ("words", "its columns are small, whole")):
        with pytest.raises(TargetError, match=f'it has no column "{name}"') as caught:
            check_layout("public.t", Layout(partition_by=(name,)), SCHEMA)
        assert advice in caught.value.hint
    only = target_schema({"id": pa.int32(), "day": pa.date32()}.items())
    with pytest.raises(TargetError, match="every column would be a partition column"):
        check_layout("public.t", Layout(partition_by=("day", "id")), only)
    check_layout("public.t", Layout(cluster_by=("day", "id")), only)
    check_layout("public.t", NO_LAYOUT, ())


def test_delta_collects_statistics_of_clustering_columns_wherever_they_stand():
    leaves = [f"c{number}" for number in range(40)]
    assert layout_properties(Layout(cluster_by=("c3", "c31")), leaves) == {}
    assert layout_properties(Layout(cluster_by=("c3", "c32")), leaves) == {"delta.dataSkippingNumIndexedCols": "33"}
    assert layout_properties(Layout(partition_by=("c39",)), leaves) == {}


def test_what_is_left_of_a_layout_once_columns_are_replaced():
    """By name and type: a partition's value passes through a text, and Delta clusters by no array."""
    columns = [unpublished_column(field, field.arrow) for field in SCHEMA if field.arrow is not None]
    by = ("word", "gone", "many", "bytes", "day")
    assert kept_layout(Layout(partition_by=by), columns) == Layout(partition_by=("word", "day"))
    assert kept_layout(Layout(cluster_by=(*by, "real")), columns) == Layout(cluster_by=("word", "day", "real"))
    assert kept_layout(Layout(cluster_by=("valid_to", "word")), columns, ("valid_to",)).cluster_by == (
        "valid_to",
        "word",
    )
    assert kept_layout(Layout(partition_by=("word",)), columns[4:5]) == NO_LAYOUT  # the files would have no column
