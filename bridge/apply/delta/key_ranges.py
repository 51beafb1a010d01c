"""Ranges that hold all keys of a batch, as conditions by which Delta leaves out files.

Delta compares each file's least and greatest value with the condition's constants, so these are literals of the
column's own type; for other types there is no condition. Keys that lie in clusters, as the newest rows and some old
ones do, have a range for each cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.delta.raise_error import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_GAP_SHARE: Final = 32
"""A gap between keys divides a range if it is wider than this part of the range of all keys."""

_INTEGER_SUFFIXES: Final = {pa.int16(): "S", pa.int32(): "", pa.int64(): "L"}
_LEAST_BIGINT: Final = -(1 << 63)


def key_ranges(column: str, values: pa.ChunkedArray) -> str | None:
    """The condition that a column is in one of the values' ranges; None for a type without such conditions.

    Args:
        column: The target's column, as SQL.
        values: The values, at least one, none NULL.
    """
    as_literal = _literal_of(values.type)
    if as_literal is None:
        return None
    ranges = _clusters(values) if pa.types.is_integer(values.type) else [_bounds(values)]
    if any(_LEAST_BIGINT in found for found in ranges):  # its literal would be an expression
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


def _bounds(values: pa.ChunkedArray) -> tuple[Any, Any]:
    found = pc.min_max(values).as_py()
    return found["min"], found["max"]


def _clusters(values: pa.ChunkedArray) -> Sequence[tuple[int, int]]:
    """Ranges of whole numbers, divided at wide gaps."""
    ordered = np.sort(values.to_numpy())
    low, high = int(ordered[0]), int(ordered[-1])
    steps = np.diff(ordered.astype(np.float64))
    ends = np.flatnonzero(steps > max((high - low) / _GAP_SHARE, 1))
    firsts, lasts = ordered[np.append(0, ends + 1)], ordered[np.append(ends, len(ordered) - 1)]
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]
