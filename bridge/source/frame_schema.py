"""The columns of `readStream.format("pgoutput")`: of one table, of all, and as a user may have given them."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from pgbridge.bridge.batch.change_schema import NEW, OLD, OPERATION, POSITION, UNCHANGED
from pgbridge.bridge.lake.schema import spark_schema, spark_type
from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.bridge.source.flat import NAMES as FLAT_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgbridge.bridge.source.options import SourceOptions

COMMON: Final = spark_schema([(OPERATION, pa.string()), *POSITION])
"""The columns of every change, whatever its table."""

TABLE: Final = StructField("table", StringType())
"""The change's table, `namespace.name`, in a stream of several tables."""

IMAGES: Final = (OLD, NEW, UNCHANGED)


def images(columns: Sequence[tuple[str, pa.DataType]]) -> list[StructField]:
    """Return the columns of a table's changes: the row before and after, and which values of `new` were not sent."""
    return _images(StructType([StructField(name, spark_type(arrow)) for name, arrow in columns]))


def _images(row: StructType) -> list[StructField]:
    return [StructField(OLD, row), StructField(NEW, row), StructField(UNCHANGED, ArrayType(StringType()))]


def table_schema(columns: Sequence[tuple[str, pa.DataType]]) -> StructType:
    """Return the schema of a stream of one table."""
    return StructType([*COMMON.fields, *images(columns)])


def tables_schema(tables: Mapping[str, Sequence[tuple[str, pa.DataType]]]) -> StructType:
    """Return the schema of a stream of all tables: a struct for each, NULL in the changes of the others."""
    structs = [StructField(name, StructType(images(columns))) for name, columns in tables.items()]
    return StructType([*COMMON.fields, TABLE, *structs])


_IN_UTC: Final[dict[str, Any]] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""Before Spark 4.2 timestamps are in UTC without it."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """A schema as Arrow has it, with timestamps in UTC."""
    return to_arrow_schema(schema, **_IN_UTC)


_AS_IT_WAS: Final = "leave out .schema(…), or give the schema of an earlier DataFrame of this format"


class ChangeSchema:
    """A stream's schema, perhaps one that a user has given, as the decoder needs it.

    Args:
        schema: The DataFrame's.
        table: The one table of the stream; None for all.
        flat: The DataFrame has the columns of a row, not its images (`bridge.source.flat`).

    Attributes:
        arrow: The schema of the Arrow batches that Spark gets.
        with_images: The same with the images.
        rows: By table, the struct of a row.

    Raises:
        ConfigError: It is no schema of changes.
    """

    def __init__(self, schema: StructType, table: str | None, *, flat: bool = False) -> None:
        self.table = table
        self.flat = flat
        self.arrow = arrow_schema(schema)
        self.with_images = self.arrow
        if flat:
            if tuple(schema.names[: len(FLAT_NAMES)]) != FLAT_NAMES:
                raise ConfigError(
                    f"the schema has the columns {', '.join(schema.names)}; a flat one begins with "
                    f"{', '.join(FLAT_NAMES)}",
                    hint=_AS_IT_WAS,
                )
            row = StructType(schema.fields[len(FLAT_NAMES) :])
            schema = StructType([*COMMON.fields, *_images(row)])
            self.with_images = arrow_schema(schema)
        expected = [field.name for field in COMMON.fields] + (list(IMAGES) if table else [TABLE.name])
        names = schema.fieldNames()
        if names[: len(expected)] != expected or (table is not None and len(names) > len(expected)):
            raise ConfigError(
                f"the schema has the columns {', '.join(names)}; one of changes begins with {', '.join(expected)}",
                hint=_AS_IT_WAS,
            )
        self.rows: dict[str, pa.StructType] = {}
        if table is not None:
            self.rows[table] = self._row(table, self.with_images)
        else:
            for field in list(self.with_images)[len(expected) :]:
                self.rows[field.name] = self._row(field.name, field.type)

    @classmethod
    def of(cls, schema: StructType, options: SourceOptions) -> Self:
        """Return the schema of a query's stream."""
        return cls(schema, options.table, flat=options.flat)

    @staticmethod
    def _row(table: str, fields: pa.Schema | pa.StructType) -> pa.StructType:
        names = [field.name for field in fields]
        if names[-len(IMAGES) :] != list(IMAGES) or not fields.field("old").type.equals(fields.field("new").type):
            raise ConfigError(
                f'the schema\'s column of table "{table}" is not struct<old: struct<…>, new: the same, '
                "unchanged: array<string>>",
                hint=_AS_IT_WAS,
            )
        row: pa.StructType = fields.field("new").type
        return row
