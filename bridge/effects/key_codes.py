"""Numbers for keys: equal keys have equal numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_MOST = 1 << 62


def key_codes(columns: Sequence[pa.ChunkedArray]) -> Ints:
    """Return a number for each row, the same for equal keys only.

    Values are equal as Spark has it: 0.0 is -0.0, NaN is NaN; a NULL, which no key has, is NULL.
    """
    if len(columns) == 1 and pa.types.is_integer(columns[0].type) and not columns[0].null_count:
        return np.asarray(columns[0].to_numpy()).astype(np.int64, copy=False)
    codes, number = _codes(columns[0])
    for column in columns[1:]:
        more, count = _codes(column)
        if number * count > _MOST:
            codes = np.unique(codes, return_inverse=True)[1]
            number = len(codes)
        codes, number = codes * count + more, number * count
    return codes


def _codes(column: pa.ChunkedArray) -> tuple[Ints, int]:
    """Numbers from 0 for one column, and how many there may be."""
    if pa.types.is_nested(column.type):
        numbers: dict[Any, int] = {}
        found = [numbers.setdefault(_hashable(value), len(numbers)) for value in column.to_pylist()]
        return np.array(found, np.int64), len(numbers) + 1
    if pa.types.is_floating(column.type):
        nan = pa.scalar(float("nan"), column.type)
        column = pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0.0, column.type)))
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):  # no chunks: no rows
        return np.zeros(0, np.int64), 1
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary) + 1


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, float):
        return "NaN" if np.isnan(value) else value + 0.0
    return value
