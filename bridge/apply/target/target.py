"""A subscription's Delta table: where it lies, which columns and key it has, and how PostgreSQL's types stand in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from bridge.apply.target.widening import holds
from bridge.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from protocol.values.types import ColumnType

_SQL_TYPES: Final = {
    pa.bool_(): "boolean", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint", pa.float32(): "float",
    pa.float64(): "double", pa.string(): "string", pa.binary(): "binary", pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz", pa.timestamp("us", "UTC"): "timestamp",
}  # fmt: skip


def sql_type(arrow: pa.DataType) -> str:
    """The type of a Delta column for values of an Arrow type, as Spark SQL writes it."""
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_list(arrow):
        return f"array<{sql_type(arrow.value_type)}>"
    return _SQL_TYPES[arrow]


class TargetField(NamedTuple):
    """A column of a Delta table.

    Attributes:
        name: Its name.
        arrow: The type of its values; None for a type that no published type becomes.
        sql_type: The type as Spark SQL writes it, for messages.
    """

    name: str
    arrow: pa.DataType | None
    sql_type: str


TargetSchema = tuple[TargetField, ...]
"""The columns of a Delta table, in its order."""


def target_field(name: str, arrow: pa.DataType) -> TargetField:
    """A column for values of an Arrow type."""
    return TargetField(name, arrow, sql_type(arrow))


def target_schema(fields: Iterable[tuple[str, pa.DataType]]) -> TargetSchema:
    """Columns for values of these Arrow types."""
    return tuple(target_field(name, arrow) for name, arrow in fields)


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
    schema: TargetSchema

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
        fields = {field.name: field for field in self.schema}
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
            there = fields[column.name].arrow
            if there is None or not holds(there, column.type.arrow):
                raise TargetError(
                    f'column "{column.name}" of target "{self.qualified_name}" is '
                    f"{fields[column.name].sql_type}, but the published values are {sql_type(column.type.arrow)}",
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
