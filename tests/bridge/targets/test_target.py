"""Targets: the Delta types for PostgreSQL's, paths, names, and the check of a relation's columns.

Which types hold which others, and values cast to them, as PostgreSQL reads their text into a wider column.

A layout names columns of the Delta table, of types that Delta clusters or partitions by.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pgbridge.bridge.lake.schema import target_schema_of
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT, Layout
from pgbridge.bridge.targets import target
from pgbridge.bridge.targets.target import (
    Target,
    TargetColumn,
    TargetField,
    check_layout,
    holds,
    kept_layout,
    layout_properties,
    new_type,
    published_type,
    target_schema,
    unpublished_column,
    widened,
)
from pgbridge.protocol.values.types import Place, resolve
from tests.bridge.apply.made_targets import COLUMNS, empty_target
from tests.oracle.extension_types import CATALOG, GEOMETRY, VECTOR
from tests.protocol.made_rows import typmod_of

CONTRACT = {
    # pg_type oid, typmod: Delta's type, as CONTRACT.md has it
    (16, -1): "boolean",
    (21, -1): "smallint",
    (23, -1): "int",
    (20, -1): "bigint",
    (26, -1): "bigint",
    (700, -1): "float",
    (701, -1): "double",
    (1700, (12 << 16) + 2 + 4): "decimal(12,2)",
    (1700, -1): "string",
    (1700, (40 << 16) + 2 + 4): "string",
    (25, -1): "string",
    (2950, -1): "string",
    (3802, -1): "string",
    (17, -1): "binary",
    (1082, -1): "date",
    (1114, -1): "timestamp_ntz",
    (1184, -1): "timestamp",
    (1007, -1): "array<int>",
    (1231, (5 << 16) + 1 + 4): "array<decimal(5,1)>",
}


@pytest.mark.parametrize(("declared", "delta"), CONTRACT.items())
def test_delta_types_are_the_contracts(declared, delta):
    assert target.sql_type(resolve(*declared).arrow) == delta


def column(name, oid):
    """A replicated column."""
    return TargetColumn(name, resolve(oid, -1))


def test_check_finds_missing_columns_and_other_types_in_any_order():
    schema = target.target_schema([("b", pa.string()), ("a", pa.int64()), ("extra", pa.int64())])
    table = Target("public", "t", "/lake/public/t", schema)
    assert table.check([column("b", 25), column("a", 20)]) == (column("b", 25), column("a", 20))
    (wide,) = table.check([column("a", 23)])
    assert (wide.type.oid, wide.type.arrow) == (23, pa.int64())
    with pytest.raises(TargetError, match=r'relation "public.t" is missing replicated columns: "c", "d"'):
        table.check([column("a", 20), column("c", 25), column("d", 25)])
    with pytest.raises(
        TargetError, match='column "a" of target "public.t" is bigint, but the published values are string'
    ):
        table.check([column("a", 25)])


def test_the_printed_statement_adds_what_is_missing(spark, tmp_path):
    """Also where names have to be quoted."""
    made = empty_target(spark, tmp_path)
    published = [*COLUMNS, column("b`c", 25), column("select", 1700), column("list", 1007), column("t", 1184)]
    with pytest.raises(TargetError, match="missing") as caught:
        made.check(published)
    spark.sql(caught.value.hint.removeprefix("run in Spark: ")).collect()
    schema = target_schema_of(spark.read.format("delta").load(made.path).schema)
    assert [column.name for column in replace(made, schema=schema).check(published)] == [
        column.name for column in published
    ]


@pytest.mark.parametrize(
    ("there", "published", "held"),
    [
        (pa.int64(), 23, True),
        (pa.int32(), 20, False),
        (pa.float64(), 700, True),
        (pa.float64(), 20, False),
        (pa.decimal128(12, 2), 23, True),
        (pa.decimal128(11, 2), 23, False),
        (pa.timestamp("us"), 1082, True),
        (pa.timestamp("us", "UTC"), 1082, False),
        (pa.string(), 23, False),
    ],
)
def test_a_wider_type_is_accepted_if_it_holds_every_value(there, published, held):
    table = Target("public", "t", "/lake/public/t", target.target_schema([("a", there)]))
    if held:
        (found,) = table.check([column("a", published)])
        assert (found.type.arrow, found.type.oid) == (there, published)
        return
    with pytest.raises(TargetError, match='column "a" of target "public.t" is'):
        table.check([column("a", published)])


INT2, INT4, INT8 = pa.int16(), pa.int32(), pa.int64()
REAL, DOUBLE, DATE, STAMP, ZONED = (
    pa.float32(),
    pa.float64(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
)

FIRST, LAST = (dt.datetime.fromisoformat(day) for day in ("0001-01-01", "9999-12-31"))

HELD = [
    (INT4, INT2), (INT8, INT2), (INT8, INT4), (REAL, INT2), (DOUBLE, INT2), (DOUBLE, INT4), (DOUBLE, REAL),
    (STAMP, DATE), (pa.decimal128(5, 0), INT2), (pa.decimal128(12, 2), INT4), (pa.decimal128(19, 0), INT8),
    (pa.decimal128(20, 4), pa.decimal128(18, 2)), (pa.list_(INT8), pa.list_(INT4)),
    (pa.list_(pa.list_(DOUBLE)), pa.list_(pa.list_(REAL))), (pa.string(), pa.string()),
]  # fmt: skip
NOT_HELD = [
    (INT2, INT4), (REAL, INT4), (DOUBLE, INT8), (REAL, DOUBLE), (DATE, STAMP), (ZONED, DATE), (ZONED, STAMP),
    (STAMP, ZONED), (pa.decimal128(4, 0), INT2), (pa.decimal128(11, 2), INT4), (pa.decimal128(18, 0), INT8),
    (pa.decimal128(19, 4), pa.decimal128(18, 2)), (pa.decimal128(38, 1), pa.decimal128(18, 2)), (pa.string(), INT4),
    (INT8, pa.decimal128(5, 0)), (DOUBLE, pa.decimal128(5, 0)), (pa.list_(INT8), INT4), (INT8, pa.list_(INT4)),
    (pa.list_(INT2), pa.list_(INT4)), (INT4, pa.bool_()), (pa.binary(), pa.string()),
]  # fmt: skip


@pytest.mark.parametrize(("wide", "narrow"), HELD)
def test_types_that_hold_others(wide, narrow):
    assert holds(wide, narrow)
    assert not holds(narrow, wide) or wide == narrow


@pytest.mark.parametrize(("wide", "narrow"), NOT_HELD)
def test_types_that_do_not_hold_others(wide, narrow):
    assert not holds(wide, narrow)


def test_values_in_wider_types():
    """The least and the greatest value of each type, and NULL."""
    cases: list[tuple[pa.Array, pa.DataType, list[Any]]] = [
        (pa.array([-32768, 32767, None], INT2), pa.decimal128(5, 0), [Decimal(-32768), Decimal(32767), None]),
        (pa.array([-(2**31), 2**31 - 1], INT4), DOUBLE, [-(2.0**31), 2.0**31 - 1]),
        (pa.array([-(2**63), 2**63 - 1], INT8), pa.decimal128(19, 0), [Decimal(-(2**63)), Decimal(2**63 - 1)]),
        (pa.array([Decimal("-9.99")], pa.decimal128(3, 2)), pa.decimal128(38, 37), [Decimal("-9.99")]),
        (pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]), STAMP, [FIRST, LAST]),
        (pa.array([[1, None], [], None], pa.list_(INT4)), pa.list_(INT8), [[1, None], [], None]),
    ]
    for values, wide, expected in cases:
        sliced = pa.chunked_array([values, values.slice(1), values.slice(0, 0)])
        found = widened(sliced, wide)
        assert (found.type, found.to_pylist()) == (wide, [*expected, *expected[1:]])


def test_reals_are_the_doubles_of_their_text(publisher):
    """Reals of all sizes become what a subscriber's column of type double precision has."""
    some = [
        "0.1", "-0", "Infinity", "-Infinity", "3.4028235e38", "1e-45", "16777216", "43665352", "33554436", "1.1", "0.3",
        "9.5367432e-07", "1e15", "1e16", "123456.7", "1.17549435e-38", "8388608.5",
    ]  # fmt: skip
    rows = publisher.query(
        """SELECT r, r::text::float8 FROM (SELECT unnest(%s::real[]) AS r
            UNION ALL SELECT ((random() - 0.5) * 10 ^ (random() * 76 - 38))::real FROM generate_series(1, 20000)
            UNION ALL SELECT (2::float8 ^ n)::real FROM generate_series(-149, 127) n) AS reals""",
        (some,),
    )
    reals, doubles = (list(values) for values in zip(*rows, strict=True))
    found = widened(pa.chunked_array([[*reals, None, float("nan")]], REAL), DOUBLE).to_pylist()
    assert [str(one) for one in found] == [*map(str, doubles), "None", "nan"]
    lists = widened(pa.chunked_array([[reals, None, []]], pa.list_(REAL)), pa.list_(DOUBLE)).to_pylist()
    assert lists == [doubles, None, []]


@pytest.mark.parametrize("declared", [(23, -1), (700, -1), (1700, -1), (1700, typmod_of(9, 2)), (25, -1), (1007, -1)])
def test_published_type(declared):
    type_ = resolve(*declared)
    assert published_type(type_) == type_.arrow


def test_types_of_extensions_fit_what_they_are_parsed_to_and_strings():
    """A table that is there has its own columns, perhaps wider ones, whatever new columns become."""
    vector, shape = resolve(VECTOR, -1, CATALOG), resolve(GEOMETRY, -1, CATALOG)
    assert (new_type(vector, ()), new_type(shape, {"jsonb", "vector"})) == (vector, shape)
    assert new_type(vector, {"vector"}).arrow == pa.list_(REAL)
    assert new_type(shape, {"geometry"}).arrow == pa.binary()
    assert new_type(resolve(4072, -1), {"jsonb"}) == resolve(4072, -1), "jsonpath is read as jsonb is, and none"
    for type_, fitting in ((vector, (pa.list_(REAL), pa.list_(DOUBLE))), (shape, (pa.binary(),))):
        for arrow in (pa.string(), *fitting):
            assert target.target_field("c", arrow).fitted(type_) == replace(type_, arrow=arrow)
        for arrow in (pa.list_(pa.int32()), pa.list_(pa.string()), pa.float32(), pa.list_(REAL), pa.binary()):
            assert target.target_field("c", arrow).fitted(type_) is None or arrow in fitting
        assert target.variant_field("c").fitted(type_) is None


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
