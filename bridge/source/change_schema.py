"""The columns of a change: what the rows of `readStream.format("pgoutput")` look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from bridge.batch.change_schema import NEW, OLD, OPERATION, POSITION, UNCHANGED
from bridge.lake.schema import spark_schema, spark_type
from bridge.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMON: Final = spark_schema([(OPERATION, pa.string()), *POSITION])
"""The columns of every change, whatever its table."""

TABLE: Final = StructField("table", StringType())
"""The change's table, `namespace.name`, in a stream of several tables."""

IMAGES: Final = (OLD, NEW, UNCHANGED)


def images(columns: Sequence[tuple[str, pa.DataType]]) -> list[StructField]:
    """Return the columns of a table's changes: the row before and after, and which values of `new` were not sent."""
    row = StructType([StructField(name, spark_type(arrow)) for name, arrow in columns])
    return [StructField(OLD, row), StructField(NEW, row), StructField(UNCHANGED, ArrayType(StringType()))]


def table_schema(columns: Sequence[tuple[str, pa.DataType]]) -> StructType:
    """Return the schema of a stream of one table."""
    return StructType([*COMMON.fields, *images(columns)])


def tables_schema(tables: Mapping[str, Sequence[tuple[str, pa.DataType]]]) -> StructType:
    """Return the schema of a stream of all tables: a struct for each, NULL in the changes of the others."""
    structs = [StructField(name, StructType(images(columns))) for name, columns in tables.items()]
    return StructType([*COMMON.fields, TABLE, *structs])


class ChangeSchema:
    """A stream's schema, perhaps one that a user has given, as the decoder needs it.

    Args:
        schema: The DataFrame's.
        table: The one table of the stream; None for all.

    Attributes:
        arrow: The schema of the Arrow batches.
        rows: By table, the struct of a row.

    Raises:
        ConfigError: It is no schema of changes.
    """

    def __init__(self, schema: StructType, table: str | None) -> None:
        self.table = table
        self.arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        expected = [field.name for field in COMMON.fields] + (list(IMAGES) if table else [TABLE.name])
        names = schema.fieldNames()
        if names[: len(expected)] != expected or (table is not None and len(names) > len(expected)):
            raise ConfigError(
                f"the schema has the columns {', '.join(names)}; one of changes begins with {', '.join(expected)}",
                hint="leave out .schema(…), or give the schema of an earlier DataFrame of this format",
            )
        self.rows: dict[str, pa.StructType] = {}
        if table is not None:
            self.rows[table] = self._row(table, self.arrow)
        else:
            for field in list(self.arrow)[len(expected) :]:
                self.rows[field.name] = self._row(field.name, field.type)

    @staticmethod
    def _row(table: str, fields: pa.Schema | pa.StructType) -> pa.StructType:
        names = [field.name for field in fields]
        if names[-len(IMAGES) :] != list(IMAGES) or not fields.field("old").type.equals(fields.field("new").type):
            raise ConfigError(
                f'the schema\'s column of table "{table}" is not struct<old: struct<…>, new: the same, '
                "unchanged: array<string>>",
                hint="leave out .schema(…), or give the schema of an earlier DataFrame of this format",
            )
        row: pa.StructType = fields.field("new").type
        return row
