"""Wider types in the target: which of them hold every value of a published type exactly, and the cast to them.

PostgreSQL's subscriber reads a value's text as the type of its own column. The bridge does the same where no value is
lost: a Delta table that existed before the subscription may have wider columns than the published table.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from protocol.values.types import ColumnType, Kind, decimal_of

_INTEGERS: Final = (pa.int16(), pa.int32(), pa.int64())
_DIGITS: Final = {pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_REAL_DIGITS: Final = 10  # nine name every real
_EXACT_DIGITS: Final = 200  # more than any real, or halfway point between two, has
_FLOATS_OF_INTEGERS: Final = {
    pa.int16(): {pa.float32(), pa.float64()},
    pa.int32(): {pa.float64()},
}


def holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether a column of type `wide` holds every value of type `narrow`, each as a different value."""
    if wide.equals(narrow):
        return True
    if pa.types.is_list(wide) and pa.types.is_list(narrow):
        return holds(wide.value_type, narrow.value_type)
    if pa.types.is_decimal(wide):
        digits, scale = _DIGITS.get(narrow), 0
        if pa.types.is_decimal(narrow):
            digits, scale = narrow.precision - narrow.scale, narrow.scale
        return digits is not None and wide.scale >= scale and wide.precision - wide.scale >= digits
    if wide in _INTEGERS and narrow in _INTEGERS:
        return _INTEGERS.index(wide) > _INTEGERS.index(narrow)
    if wide in _FLOATS_OF_INTEGERS.get(narrow, ()):
        return True
    return (narrow, wide) in {(pa.float32(), pa.float64()), (pa.date32(), pa.timestamp("us"))}


def widened(values: pa.ChunkedArray, wide: pa.DataType) -> pa.ChunkedArray:
    """Cast values to a wider type that holds them.

    A real becomes the double of its text: 0.1, although the real itself is 0.100000001490116.
    """
    return pa.chunked_array([_widened(chunk, wide) for chunk in values.chunks], wide)


def _widened(values: pa.Array, wide: pa.DataType) -> pa.Array:
    if pa.types.is_list(wide):
        offsets = np.zeros(len(values) + 1, np.int32)
        np.cumsum(pc.fill_null(pc.list_value_length(values), 0), out=offsets[1:])
        items = _widened(pc.list_flatten(values), wide.value_type)
        return pa.ListArray.from_arrays(pa.array(offsets), items, mask=values.is_null())
    return _doubles(values) if (values.type, wide) == (pa.float32(), pa.float64()) else values.cast(wide)


def _doubles(reals: pa.Array) -> pa.Array:
    """Doubles of the texts that `float4out` writes: the shortest text that reads as the real; of several, the nearest.

    Arrow may write a text that is halfway between two reals. The server does not, so such texts are computed here.
    """
    doubles = reals.cast(pa.string()).cast(pa.float64())
    exact = reals.to_numpy(zero_copy_only=False).astype(np.float32)
    numbers = doubles.to_numpy(zero_copy_only=False).copy()
    halfway = np.zeros(len(numbers), np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):
        for towards in (np.inf, -np.inf):
            neighbour = np.nextafter(exact, np.float32(towards)).astype(np.float64)
            halfway |= numbers == (exact.astype(np.float64) + neighbour) / 2
    halfway &= np.isfinite(numbers)
    if not halfway.any():
        return doubles
    with localcontext(prec=_EXACT_DIGITS):
        for index in np.flatnonzero(halfway).tolist():
            numbers[index] = _shortest(exact[index])
    return pa.array(numbers, mask=np.asarray(reals.is_null()))


def _shortest(real: np.float32) -> float:
    value = Decimal(float(real))
    low, high = ((value + Decimal(float(np.nextafter(real, np.float32(towards))))) / 2 for towards in (-np.inf, np.inf))
    for digits in range(1, _REAL_DIGITS):
        unit = Decimal(1).scaleb(value.adjusted() - digits + 1)
        texts = [value.quantize(unit, rounding) for rounding in (ROUND_FLOOR, ROUND_CEILING)]
        inside = [text for text in texts if low < text < high]
        if inside:
            return float(min(inside, key=lambda text: abs(text - value)))
    return float(value)


def published_type(type_: ColumnType) -> pa.DataType:
    """The Arrow type of a published column's values, whatever their type in the target is."""
    if type_.kind is Kind.ARRAY and type_.element is not None:
        return pa.list_(published_type(type_.element))
    if type_.kind is Kind.DECIMAL:
        return decimal_of(type_.typmod)
    return type_.kind.arrow
