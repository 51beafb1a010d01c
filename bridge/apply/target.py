"""A subscription's Delta table: where it lies, which columns and key it has, and how PostgreSQL's types stand in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as spark_types

from bridge.apply.evolution.widening import holds
from bridge.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.values.types import ColumnType

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
"""Characters that Parquet field names may not have; a table with one of them in a column's name uses Delta's
column mapping."""


def spark_type(arrow: pa.DataType) -> spark_types.DataType:
    """The Spark type of a column whose values come as this Arrow type."""
    if pa.types.is_decimal(arrow):
        return spark_types.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_list(arrow):
        return spark_types.ArrayType(spark_type(arrow.value_type), containsNull=True)
    return next(spark for candidate, spark in _SIMPLE if arrow.equals(candidate))


def arrow_type(spark: spark_types.DataType) -> pa.DataType | None:
    """The Arrow type of a target's column, as `spark_type`; None for what no published type becomes."""
    if isinstance(spark, spark_types.DecimalType):
        return pa.decimal128(spark.precision, spark.scale)
    if isinstance(spark, spark_types.ArrayType):
        element = arrow_type(spark.elementType)
        return None if element is None else pa.list_(element)
    return next((arrow for arrow, candidate in _SIMPLE if spark == candidate), None)


def spark_schema(fields: Sequence[tuple[str, pa.DataType]]) -> spark_types.StructType:
    """A DataFrame's schema for named Arrow columns; every column may be NULL."""
    return spark_types.StructType(
        [spark_types.StructField(name, spark_type(arrow), nullable=True) for name, arrow in fields]
    )


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A replicated column: its name and how its values stand in the target."""

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Target:
    """Where a published table goes.

    Attributes:
        namespace: The published table's schema.
        name: The published table's name.
        path: The Delta table's folder.
        schema: The Delta table's columns, as they were when it was opened.
    """

    namespace: str
    name: str
    path: str
    schema: spark_types.StructType

    @property
    def qualified_name(self) -> str:
        """`namespace.name`, unquoted, as in messages."""
        return f"{self.namespace}.{self.name}"

    def check(self, columns: Sequence[TargetColumn]) -> tuple[TargetColumn, ...]:
        """Hold the columns of a Relation message against the Delta table's; their order does not matter.

        Returns:
            The columns, in the types that they have in the Delta table, which may be wider.

        Raises:
            TargetError: A column is missing, or has a type that does not hold all published values.
        """
        fields = {field.name: field.dataType for field in self.schema.fields}
        missing = [column.name for column in columns if column.name not in fields]
        if missing:
            listed = ", ".join(f'"{name}"' for name in missing)
            plural = "s" if len(missing) > 1 else ""
            raise TargetError(
                f'logical replication target relation "{self.qualified_name}" is missing '
                f"replicated column{plural}: {listed}",
                hint=f"add it: ALTER TABLE delta.{quoted(self.path)} ADD COLUMN …",
            )
        found = []
        for column in columns:
            there = arrow_type(fields[column.name])
            if there is None or not holds(there, column.type.arrow):
                wanted = spark_type(column.type.arrow)
                raise TargetError(
                    f'column "{column.name}" of target "{self.qualified_name}" is '
                    f"{fields[column.name].simpleString()}, but the published values are {wanted.simpleString()}",
                    hint=f"the Delta table at {self.path} must have the type of the published column, or a wider one",
                )
            found.append(replace(column, type=replace(column.type, arrow=there)))
        return tuple(found)


def unrepresentable_hint(*, in_key: bool) -> str:
    """What can be done about a value that its column cannot hold."""
    if in_key:
        return (
            "rows are found by this column, so such a value cannot become NULL: leave its rows out with a row filter, "
            "or give the table a replica identity without the column"
        )
    return 'set unrepresentable = "null" to store NULL for such values'


def quoted(name: str) -> str:
    """A name or path in Spark SQL's backticks."""
    return "`" + name.replace("`", "``") + "`"


def table_path(warehouse: str, namespace: str, name: str) -> str:
    """`<warehouse>/<namespace>/<name>`; a slash in a name is written %2F (and a percent sign %25).

    So is the first letter of a name that Delta gives its log: the folder above would be taken for a Delta table.
    """
    parts = [part.replace("%", "%25").replace("/", "%2F") for part in (namespace, name)]
    parts = ["%2E" * len(part) if part in {".", ".."} else part for part in parts]
    parts = [part.replace("_", "%5F", 1) if part == "_delta_log" else part for part in parts]
    return "/".join([warehouse.rstrip("/"), *parts])


def table_properties(names: Sequence[str]) -> dict[str, str]:
    """Delta table properties that these column names need."""
    if any(_NEEDS_COLUMN_MAPPING.intersection(name) for name in names):
        return {"delta.columnMapping.mode": "name"}
    return {}
