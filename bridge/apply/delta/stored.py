"""From values as they travel to values as Delta stores them: the text of JSON becomes VARIANT.

Spark would take a text for a VARIANT as it is, as one JSON string, without an error. So whoever writes a column's
values to a Delta table has them pass here, at the last moment; before it they can be compared and collected as texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import VariantType

from bridge.apply.target.location import quoted
from protocol.values.types import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from bridge.apply.target.target import TargetColumn


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
    found = {f"new_{i}" for i, column in enumerate(columns) if is_variant(column)}.intersection(changes.columns)
    return changes.withColumns({name: F.parse_json(F.col(name)) for name in sorted(found)}) if found else changes


def has_variant(schema: StructType) -> bool:
    """Whether a table has a column of VARIANT: Spark does not give such rows to Arrow."""
    return any(isinstance(field.dataType, VariantType) for field in schema.fields)
