"""Converts between Spark's and Arrow's types, and values as they travel to values as Delta stores them.

The text of JSON becomes VARIANT. Spark would take a text for a VARIANT as it is, as one JSON string, without an error.
So whoever writes a column's values to a Delta table has them pass here, at the last moment; before it they can be
compared and collected as texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as F, types as spark_types
from pyspark.sql.types import StructType, VariantType

from pgbridge.bridge.targets.location import quoted
from pgbridge.bridge.targets.target import TargetColumn, TargetField, TargetSchema, variant_field
from pgbridge.protocol.values.types import Place

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

METADATA: Final = "_metadata"
"""Spark's name for what it knows of a row's place. Delta names it in each query that makes deletion vectors or reads
rows of a file that has some: a table with a column of this name must have none."""

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


def is_variant(column: TargetColumn) -> bool:
    """Whether a column of the target is of VARIANT."""
    return column.type.place is Place.VARIANT


def stored(value: str, column: TargetColumn) -> str:
    """An expression of SQL, as the target's column stores it."""
    return f"parse_json({value})" if is_variant(column) else value


def stored_column(value: str, column: TargetColumn) -> Column:
    """A column of changes, as the target's column stores it, under that one's name."""
    return (F.parse_json(F.col(value)) if is_variant(column) else F.col(value)).alias(column.name)


def canonical(value: str, column: TargetColumn) -> str:
    """An expression for a text of JSON in the form that a VARIANT has as a text; others as they are."""
    return f"to_json(parse_json({value}))" if is_variant(column) else value


def stored_rows(rows: DataFrame, variants: Collection[str]) -> DataFrame:
    """Rows under the target's column names, with these columns as VARIANT."""
    if not variants:
        return rows
    return rows.select(
        *(
            (F.parse_json(F.col(quoted(name))) if name in variants else F.col(quoted(name))).alias(name)
            for name in rows.columns
        )
    )


def stored_changes(changes: DataFrame, columns: Sequence[TargetColumn]) -> DataFrame:
    """Changes whose new values are as the target's columns store them."""
    variants = {f"new_{i}" for i, column in enumerate(columns) if is_variant(column)}.intersection(changes.columns)
    return changes.withColumns({name: F.parse_json(F.col(name)) for name in sorted(variants)}) if variants else changes


def has_variant(schema: StructType) -> bool:
    """Whether a table has a column of VARIANT: Spark does not give such rows to Arrow."""
    return any(isinstance(field.dataType, VariantType) for field in schema.fields)
