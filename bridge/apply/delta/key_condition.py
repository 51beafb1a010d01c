"""A condition that a column has one of many values, such that Spark and Delta read next to nothing without them.

It says the same three times, each time for another reader:

- The values' ranges are for Delta, which leaves out files by their least and greatest value.
- A list of all values is for Spark, which looks each row up in a set. It comes before what follows, which is then
  computed for the rows that are found only.
- A tree of short lists is for Parquet's readers, which leave out pages. Of a long list they know the least and the
  greatest value only. Spark turns a list into a chain of comparisons, up to a length that is a setting; a tree of them,
  and not one long chain, because Java serializes them with a recursion that would exhaust a thread's stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.apply.delta.key_ranges import as_literals, key_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

LIST_VALUES: Final = 100
"""The longest list that Parquet's readers are to take value by value."""

PUSHED_LISTS: Final = {"spark.sql.parquet.pushdown.inFilterThreshold": str(LIST_VALUES)}
"""What a session needs for it."""


def key_condition(column: str, values: pa.ChunkedArray) -> str | None:
    """The condition; None for a type, or a value, that has no literal.

    Args:
        column: The column, as SQL.
        values: The values, at least one, all different, none NULL.
    """
    ranges = key_ranges(column, values)
    if ranges is None:
        return None
    literals = as_literals(values.sort())
    lists = [literals[first : first + LIST_VALUES] for first in range(0, len(literals), LIST_VALUES)]
    return f"{ranges} AND {_among(column, literals)}" + (
        f" AND {_any([_among(column, short) for short in lists])}" if len(lists) > 1 else ""
    )


def _among(column: str, literals: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(literals)})"


def _any(conditions: Sequence[str]) -> str:
    """A balanced tree of OR."""
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    return f"({_any(conditions[:middle])} OR {_any(conditions[middle:])})"
