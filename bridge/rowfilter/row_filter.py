"""A publication's row filter as a Spark column whose verdict is PostgreSQL's for every row.

The text is read by PostgreSQL's grammar (`parser`), typed by its rules (`analysis`) and computed by Spark, node by
node. What PostgreSQL does not take, and what cannot be had exactly, is refused before any row is seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.rowfilter.analysis import Analysis
from bridge.rowfilter.columns import FilterColumn
from bridge.rowfilter.types.encodings import encoding_of
from bridge.rowfilter.types.typed import C_COLLATION, DATABASE_DEFAULT, Collation
from bridge.sqltext.parser import parse
from bridge.sqltext.refusal import Refused, RowFilterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

    from bridge.rowfilter.types.typed import Resolver, Typed

__all__ = [
    "C_COLLATION",
    "DATABASE_DEFAULT",
    "Collation",
    "FilterColumn",
    "RowFilter",
    "RowFilterError",
    "translate",
]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A row filter that can be computed.

    Attributes:
        expression: Its text.
        columns: Names of the columns that it depends on.
        typed: Its typed expression.
    """

    expression: str
    columns: frozenset[str]
    typed: Typed

    def to_spark(self, resolve: Resolver) -> Column:
        """The verdict: a row matches where it is true; NULL is no match, which is left to the caller.

        Where PostgreSQL raises an error for a row (overflow, division by zero), computing this does.

        Args:
            resolve: The Spark column that holds a column's values, as the decoder makes them. The session must be
                in ANSI mode and UTC, as `bridge.session` makes it.
        """
        return self.typed.to_spark(resolve)


def translate(
    expression: str,
    columns: Mapping[str, FilterColumn],
    *,
    table: tuple[str, str] = ("", ""),
    default_collation: Collation = DATABASE_DEFAULT,
    encoding: str = "UTF8",
) -> RowFilter:
    """Read a row filter, as it is written in CREATE PUBLICATION or shown by pg_get_expr.

    Args:
        expression: The text between the parentheses of WHERE; with them, too.
        columns: The table's columns by name.
        table: Its schema and name, which may be put before a column's name.
        default_collation: The database's, if more is known of it than that it is deterministic.
        encoding: The database's, in which the server compares and counts text.

    Raises:
        RowFilterError: PostgreSQL would refuse it, or it cannot be computed exactly.
    """
    try:
        typed = Analysis(columns, table, default_collation, encoding_of(encoding)).condition(parse(expression))
    except Refused as refused:
        raise RowFilterError(expression, refused.at or 0, refused.reason) from None
    except RecursionError:
        raise RowFilterError(expression, 0, "the expression is nested too deeply") from None
    return RowFilter(expression, typed.columns(), typed)
