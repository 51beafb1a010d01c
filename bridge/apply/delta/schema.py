"""Converts schemas of Delta tables and DataFrames between Spark's and Arrow's types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as spark_types

from bridge.apply.target.target import TargetField, TargetSchema, variant_field

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_SIMPLE: tuple[tuple[pa.DataType, spark_types.DataType], ...] = (
    (pa.bool_(), spark_types.BooleanType()),
    (pa.int16(), spark_types.ShortType()),
    (pa.int32(), spark_types.IntegerType()),
    (pa.int64(), spark_types.LongType()),
    (pa.float32(), spark_types.FloatType()),
    (pa.float64(), spark_types.DoubleType()),
    (pa.string(), spark_types.StringType()),
    (pa.binary(), spark_types.BinaryType()),
    (pa.date32(), spark_types.DateType()),
    (pa.timestamp("us"), spark_types.TimestampNTZType()),
    (pa.timestamp("us", "UTC"), spark_types.TimestampType()),
)

_NEEDS_COLUMN_MAPPING = frozenset(" ,;{}()\n\t=")
"""Characters that Parquet does not allow in field names; a column's name with one of them needs Delta's column
mapping."""


def spark_type(arrow: pa.DataType) -> spark_types.DataType:
    """The Spark type for values of an Arrow type."""
    if pa.types.is_decimal(arrow):
        return spark_types.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_list(arrow):
        return spark_types.ArrayType(spark_type(arrow.value_type), containsNull=True)
    return next(spark for candidate, spark in _SIMPLE if arrow.equals(candidate))


def arrow_type(spark: spark_types.DataType) -> pa.DataType | None:
    """The inverse of `spark_type`; None for a Spark type that no published type becomes."""
    if isinstance(spark, spark_types.DecimalType):
        return pa.decimal128(spark.precision, spark.scale)
    if isinstance(spark, spark_types.ArrayType):
        element = arrow_type(spark.elementType)
        return None if element is None else pa.list_(element)
    return next((arrow for arrow, candidate in _SIMPLE if spark == candidate), None)


def spark_schema(fields: Iterable[tuple[str, pa.DataType]], variants: Collection[str] = ()) -> spark_types.StructType:
    """A schema of named Arrow columns, all nullable, and those in `variants` of VARIANT."""
    types = [(name, spark_types.VariantType() if name in variants else spark_type(arrow)) for name, arrow in fields]
    return spark_types.StructType([spark_types.StructField(name, type_, nullable=True) for name, type_ in types])


def target_schema_of(schema: spark_types.StructType) -> TargetSchema:
    """The columns of a Delta table, as `Target` has them."""
    return tuple(
        variant_field(field.name)
        if isinstance(field.dataType, spark_types.VariantType)
        else TargetField(field.name, arrow_type(field.dataType), field.dataType.simpleString())
        for field in schema.fields
    )


def table_properties(names: Sequence[str]) -> dict[str, str]:
    """The Delta table properties that these column names need."""
    if any(_NEEDS_COLUMN_MAPPING.intersection(name) for name in names):
        return {"delta.columnMapping.mode": "name"}
    return {}
