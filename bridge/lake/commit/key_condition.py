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

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.lake.commit_errors import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_GAP_SHARE: Final = 32
"""A gap between keys divides a range if it is wider than this part of the range of all keys."""

_INTEGER_SUFFIXES: Final = {pa.int16(): "S", pa.int32(): "", pa.int64(): "L"}
_LEAST_BIGINT: Final = -(1 << 63)

LIST_VALUES: Final = 100
"""The longest list that Parquet's readers are to take value by value."""

PUSHED_LISTS: Final = {"spark.sql.parquet.pushdown.inFilterThreshold": str(LIST_VALUES)}
"""What a session needs for it."""


def key_ranges(column: str, values: pa.ChunkedArray) -> str | None:
    """The condition that a column is in one of the values' ranges; None for a type without such conditions.

    Delta compares each file's least and greatest value with the condition's constants, so these are literals of the
    column's own type. Keys in clusters, as the newest rows and some old ones are, have a range for each cluster.

    Args:
        column: The target's column, as SQL.
        values: The values, at least one, none NULL.
    """
    as_literal = _literal_of(values.type)
    if as_literal is None:
        return None
    ranges = _clusters(values) if pa.types.is_integer(values.type) else [least_and_greatest(values)]
    if any(_LEAST_BIGINT in bounds for bounds in ranges):  # its literal would be an expression
        return None
    conditions = [f"{column} >= {as_literal(low)} AND {column} <= {as_literal(high)}" for low, high in ranges]
    return conditions[0] if len(conditions) == 1 else f"({' OR '.join(conditions)})"


def as_literals(values: pa.ChunkedArray) -> list[str]:
    """Values for which there are key ranges as literals of SQL."""
    as_literal = _literal_of(values.type)
    if as_literal is None:
        raise TypeError(f"{values.type} has no literals")
    return [as_literal(value) for value in values.to_pylist()]


def _literal_of(arrow: pa.DataType) -> Callable[[Any], str] | None:
    if arrow in _INTEGER_SUFFIXES:
        return lambda value: f"{value}{_INTEGER_SUFFIXES[arrow]}"
    if pa.types.is_string(arrow):
        return literal
    if pa.types.is_date(arrow):
        return lambda value: f"DATE'{value.isoformat()}'"
    return None


def least_and_greatest(values: pa.ChunkedArray) -> tuple[Any, Any]:
    """The bounds of values that Arrow can order."""
    bounds = pc.min_max(values).as_py()
    return bounds["min"], bounds["max"]


def _clusters(values: pa.ChunkedArray) -> Sequence[tuple[int, int]]:
    """Ranges of whole numbers, divided at wide gaps."""
    ordered = np.sort(values.to_numpy())
    low, high = int(ordered[0]), int(ordered[-1])
    steps = np.diff(ordered.astype(np.float64))
    ends = np.flatnonzero(steps > max((high - low) / _GAP_SHARE, 1))
    firsts, lasts = ordered[np.append(0, ends + 1)], ordered[np.append(ends, len(ordered) - 1)]
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]


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
