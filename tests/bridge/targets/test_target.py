"""Targets: the Delta types for PostgreSQL's, paths, names, and the check of a relation's columns."""

from dataclasses import replace

import pyarrow as pa
import pytest

from bridge.lake.schema import target_schema_of
from bridge.runtime.errors import TargetError
from bridge.targets import target
from bridge.targets.target import Target, TargetColumn
from protocol.values.types import resolve
from tests.bridge.apply.made_targets import COLUMNS, empty_target

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
