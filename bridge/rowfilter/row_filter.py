"""A publication's row filter as a Spark column whose verdict is PostgreSQL's for every row.

The text is parsed by PostgreSQL's grammar (`sqltext.parser`), typed by its rules (`analysis`) and translated to Spark
node by node (`functions`). A filter that PostgreSQL would refuse, or that Spark cannot compute exactly, is refused
before the first row is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgbridge.bridge.rowfilter.analysis import Analysis
from pgbridge.bridge.rowfilter.types.encodings import encoding_of
from pgbridge.bridge.rowfilter.types.typed import (
    C_COLLATION,
    DATABASE_DEFAULT,
    Collation,
    FilterColumn,
    Resolver,
    Typed,
)
from pgbridge.bridge.sqltext.parser import parse
from pgbridge.bridge.sqltext.refusal import Refused, RowFilterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

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
    """A translated row filter.

    Attributes:
        expression: The filter's text.
        columns: Names of the columns that the filter depends on.
    """

    expression: str
    columns: frozenset[str]
    typed: Typed = field(hash=False)  # constants of it are lists

    def to_spark(self, resolve: Resolver) -> Column:
        """The verdict on each row: true if the row matches, false or NULL if it does not.

        Computing it raises an error for a row for which PostgreSQL would (overflow, division by zero).

        Args:
            resolve: Returns the Spark column that has the values of the named column, as the decoder makes them. The
                session must be in ANSI mode and UTC, as `bridge.spark.session` makes it.
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
    """Translate a row filter, as written in CREATE PUBLICATION or returned by pg_get_expr.

    Args:
        expression: The text of WHERE, with or without its parentheses.
        columns: The table's columns by name.
        table: The table's schema and name, with which a column's name may be qualified.
        default_collation: The database's collation, if more is known about it than that it is deterministic.
        encoding: The database's encoding, in which the server compares and counts text.

    Raises:
        RowFilterError: PostgreSQL would refuse the filter, or Spark cannot compute it exactly.
    """
    try:
        typed = Analysis(columns, table, default_collation, encoding_of(encoding)).condition(parse(expression))
    except Refused as refused:
        raise RowFilterError(expression, refused.at or 0, refused.reason) from None
    except RecursionError:
        raise RowFilterError(expression, 0, "the expression is nested too deeply") from None
    return RowFilter(expression, typed.columns(), typed)
