"""Arrays in both forms -> Arrow lists; their elements are read by the reader of the element type.

A column holds only arrays of one dimension whose lower bound is 1; an empty array has no bounds.
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pgbridge.protocol.values import types, value_array
from pgbridge.protocol.values.value_array import Bools, Bytes, Ints, MalformedValue, Reader, Unrepresentable, ValueArray

if TYPE_CHECKING:
    from collections.abc import Callable


MORE_DIMENSIONS: Final = "the column holds arrays of one dimension only"
OTHER_LOWER_BOUND: Final = "the column holds arrays whose lower bound is 1 only"

_HEADER_BYTES: Final = 12  # number of dimensions, flag for NULLs, element type
_ONE_DIMENSION_BYTES: Final = 20  # and the number of elements, the lower bound
_MAX_DIMENSIONS: Final = 6  # MAXDIM
_LENGTH_BYTES: Final = 4
_FEW_ARRAYS: Final = 16  # with fewer arrays, NumPy's steps cost more than Python's
_SHOWN_BYTES: Final = 60
_SHOWN_ELEMENTS: Final = 10
_LENGTH: Final = struct.Struct(">i")

_QUOTE, _BACKSLASH, _OPEN, _CLOSE = b'"\\{}'
_NULL: Final = int.from_bytes(b"NULL", "big")
_BOUNDS: Final = re.compile(rb"\[(-?\d+):-?\d+\](?:\[-?\d+:-?\d+\])*=")


class _Elements(NamedTuple):
    """The elements of several arrays; array i has those from offsets[i] to offsets[i + 1]."""

    offsets: Ints
    values: ValueArray
    null: Bools


def _lists(
    elements: _Elements, nulls: Bools | None, type_: types.ColumnType, policy: Unrepresentable, read_element: Reader
) -> pa.Array:
    """Make lists of the elements; a fault of an element becomes one of its array."""
    offsets, values, null = elements
    element = type_.element
    assert element is not None  # noqa: S101 - resolve gives every array its element
    present = np.flatnonzero(~null)
    items = pa.nulls(len(null), element.arrow)
    if len(present):
        present_values = values if len(present) == len(null) else values.select(present)
        try:
            items = value_array.merge(
                [(present, read_element(present_values, element, policy))], len(null), element.arrow
            )
        except value_array.BadValueError as fault:
            place = int(present[fault.index])
            fault.index = _owner(offsets, place)
            fault.reason = f"element {place - offsets[fault.index] + 1}: {fault.reason}"
            raise
    mask = None if nulls is None else pa.array(nulls)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, mask=mask)


def _owner(bounds: Ints, place: int) -> int:
    """The index of the interval between two bounds that contains this place."""
    return int(np.searchsorted(bounds, place, side="right")) - 1


def _counted(counts: Ints | Bools) -> Ints:
    """The sum of the counts before each item, and at the end the sum of all."""
    before = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=before[1:])
    return before


def _refuse(nested: Bools, shifted: Bools, policy: Unrepresentable, text_of: Callable[[int], str]) -> Bools | None:
    """Refuse arrays of several dimensions, and those that do not start at 1; return which are to become NULL."""
    refused = nested | shifted
    return value_array.refuse(
        refused, policy, text_of, MORE_DIMENSIONS if nested[refused.argmax()] else OTHER_LOWER_BOUND
    )


# Text form: array_out


def read_text(values: ValueArray, type_: types.ColumnType, policy: Unrepresentable, read_element: Reader) -> pa.Array:
    """Read `{1,NULL,"two words"}`, with `[2:4]=` in front if the lower bound is not 1."""
    braced, shifted = _without_bounds(values)
    first, ends = braced.data[braced.starts], braced.starts + braced.lengths
    wrong = (braced.lengths < 2) | (first != _OPEN) | (braced.data[ends - 1] != _CLOSE)
    nested = braced.data[braced.starts + 1] == _OPEN
    wrong |= nested & (braced.data[ends - 2] != _CLOSE)
    if wrong.any():
        raise _no_array(values, int(wrong.argmax()))
    shifted &= braced.lengths > len("{}")
    nulls = _refuse(nested, shifted, policy, values.show)
    inside = ValueArray(values.data, braced.starts + 1, np.where(nested | shifted, 0, braced.lengths - 2))
    bounds, content = value_array.flat(inside.gather())
    try:
        elements = _split(bounds, content, ord(type_.delimiter))
    except _NoElementsError as error:
        raise _no_array(values, _owner(bounds, error.place)) from None
    return _lists(elements, nulls, type_, policy, read_element)


def _no_array(values: ValueArray, index: int) -> MalformedValue:
    return MalformedValue(index, f"{values.show(index)} is not an array")


def _without_bounds(values: ValueArray) -> tuple[ValueArray, Bools]:
    """Strip the bounds before the braces; return the rest, and whether the first dimension's lower bound is not 1."""
    shifted = np.zeros(len(values), np.bool_)
    bounded = np.flatnonzero((values.data[values.starts] == ord("[")) & (values.lengths > 0))
    if not len(bounded):
        return values, shifted
    starts, lengths = values.starts.copy(), values.lengths.copy()
    for index in bounded.tolist():
        bounds = _BOUNDS.match(values.raw(index))
        if bounds is None:
            raise _no_array(values, index)
        starts[index] += bounds.end()
        lengths[index] -= bounds.end()
        shifted[index] = int(bounds[1]) != 1
    return ValueArray(values.data, starts, lengths), shifted


class _NoElementsError(Exception):
    """The text cannot be divided into elements; `place` is the position of the fault."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def _refuse_any(wrong: Bools, places: Ints | None = None) -> None:
    if wrong.any():
        first = int(wrong.argmax())
        raise _NoElementsError(first if places is None else int(places[first]))


def _split(bounds: Ints, content: Bytes, delimiter: int) -> _Elements:
    """Find the elements of all arrays at once, in the text between their braces.

    `array_out` quotes an element that is empty, spells NULL, or has a brace, a quote, a backslash, the
    delimiter or white space in it; within quotes, a backslash stands before each quote and backslash.
    """
    escapes = _escapes(content)
    quote = content == _QUOTE
    quote[escapes[escapes < len(content) - 1] + 1] = False
    quotes = _counted(quote)
    _refuse_any((quotes[bounds[1:]] - quotes[bounds[:-1]]) % 2 != 0, bounds[:-1])
    unquoted = quotes[:-1] % 2 == 0
    _refuse_any(unquoted[escapes], escapes)
    _refuse_any(((content == _OPEN) | (content == _CLOSE)) & unquoted)

    delimiters = np.flatnonzero((content == delimiter) & unquoted)
    filled = bounds[1:] > bounds[:-1]
    starts = np.sort(np.concatenate([bounds[:-1][filled], delimiters + 1]))
    ends = np.sort(np.concatenate([bounds[1:][filled], delimiters]))
    of_delimiter = np.searchsorted(bounds, delimiters, side="right") - 1
    offsets = _counted(np.bincount(of_delimiter, minlength=len(filled)) + filled)

    _refuse_any(ends == starts, np.where(np.isin(starts, delimiters), starts, starts - 1))
    own_quotes = quotes[ends] - quotes[starts]
    quoted = (own_quotes == 2) & quote[starts] & quote[ends - 1]
    _refuse_any(~quoted & (own_quotes != 0), starts)

    kept = ~quote
    kept[escapes] = False
    before = _counted(kept)
    unescaped = np.zeros(int(before[-1]) + value_array.PADDING, np.uint8)
    unescaped[: before[-1]] = content[kept]
    values = ValueArray(unescaped, before[starts], before[ends] - before[starts])
    null = ~quoted & (values.lengths == 4) & (values.numbers("u4") == _NULL)
    return _Elements(offsets, values, null)


def _escapes(content: Bytes) -> Ints:
    """Indices of the backslashes that escape the next character: of consecutive backslashes every other one."""
    places = np.flatnonzero(content == _BACKSLASH)
    firsts = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    first = np.repeat(firsts, np.diff(firsts, append=len(places)))
    escaping: Ints = places[(np.arange(len(places)) - first) % 2 == 0]
    return escaping


# Binary form: array_send


def read_binary(
    values: ValueArray, type_: types.ColumnType, element_oid: int, policy: Unrepresentable, read_element: Reader
) -> pa.Array:
    """Read a header, which must name the type element_oid, then each element with its length, -1 for NULL."""
    header = values.blocks(_ONE_DIMENSION_BYTES).view(">i4").astype(np.int64)
    dimensions, found_oid = header[:, 0], header[:, 2] & 0xFFFFFFFF
    room = (values.lengths - _ONE_DIMENSION_BYTES) // _LENGTH_BYTES
    has_one = dimensions == 1
    wrong = (
        (values.lengths < _HEADER_BYTES)
        | (dimensions < 0)
        | (dimensions > _MAX_DIMENSIONS)
        | ((dimensions == 0) & (values.lengths != _HEADER_BYTES))
        | (has_one & ((header[:, 3] < 0) | (header[:, 3] > room)))
        | (found_oid != element_oid)
    )
    if wrong.any():
        index = int(wrong.argmax())
        raise MalformedValue(
            index,
            f"array of {values.lengths[index]} bytes with {dimensions[index]} dimensions,"
            f" {header[index, 3]} elements of type {found_oid[index]}, expected type {element_oid}",
        )
    shifted = has_one & (header[:, 3] > 0) & (header[:, 4] != 1)
    nulls = _refuse(dimensions > 1, shifted, policy, lambda i: _shown(values, i, type_, read_element))
    held = has_one & ~shifted
    offsets = _counted(np.where(held, header[:, 3], 0))
    with value_array.indices_of(np.flatnonzero(held)):
        starts, lengths = _find_elements(values.select(held), header[held, 3])
    elements = _Elements(offsets, ValueArray(values.data, starts, lengths), lengths < 0)
    return _lists(elements, nulls, type_, policy, read_element)


def _shown(values: ValueArray, index: int, type_: types.ColumnType, read_element: Reader) -> str:
    """An array's text for a message: bounds if they are not 1, the first elements, in braces but without quotes."""
    element = type_.element
    assert element is not None  # noqa: S101 - resolve gives every array its element
    raw = values.raw(index)
    try:
        (dimensions,) = _LENGTH.unpack_from(raw)
        header = struct.unpack_from(f">{2 * dimensions}i", raw, _HEADER_BYTES)
        sizes, lower_bounds = header[::2], header[1::2]
        place = _HEADER_BYTES + 2 * _LENGTH_BYTES * dimensions
        shown: list[str] = []
        while len(shown) < min(math.prod(sizes), _SHOWN_ELEMENTS):
            (length,) = _LENGTH.unpack_from(raw, place)
            place += _LENGTH_BYTES
            element_values = ValueArray(values.data, values.starts[[index]] + place, np.array([max(length, 0)]))
            shown.append("NULL" if length < 0 else str(read_element(element_values, element, "null")[0].as_py()))
            place += max(length, 0)
            if place > len(raw):
                raise _overrun(index, len(shown))
    except (struct.error, value_array.BadValueError):
        return f"\\x{raw[:_SHOWN_BYTES].hex()}"
    rows = [math.prod(sizes[i:]) for i in range(dimensions)]  # number of elements in a row of each dimension
    for i, text in enumerate(shown):
        opened, closed = (sum(place % row == 0 for row in rows) for place in (i, i + 1))
        shown[i] = "{" * opened + text + "}" * closed
    bounds = "".join(f"[{low}:{low + size - 1}]" for low, size in zip(lower_bounds, sizes, strict=True))
    prefix = f"{bounds}=" if set(lower_bounds) != {1} else ""
    return prefix + ",".join(shown) + (",..." if len(shown) < math.prod(sizes) else "")


def _find_elements(arrays: ValueArray, sizes: Ints) -> tuple[Ints, Ints]:
    """Starts and lengths of the elements of one-dimensional arrays of these sizes."""
    data = arrays.data
    first = arrays.starts + _ONE_DIMENSION_BYTES
    ends = arrays.starts + arrays.lengths
    offsets = _counted(sizes)
    # Without NULLs, arrays of a type of fixed width need no walk: the position of each length is known.
    width = np.maximum(value_array.numbers_at(data, first, "i4"), 0).astype(np.int64)
    stride = _LENGTH_BYTES + width
    if (first + sizes * stride == ends).all():
        strides = np.repeat(stride, sizes)
        nth = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
        starts = np.repeat(first, sizes) + nth * strides + _LENGTH_BYTES
        lengths = value_array.numbers_at(data, starts - _LENGTH_BYTES, "i4").astype(np.int64)
        if (lengths == strides - _LENGTH_BYTES).all():
            return starts, lengths
    return _walk(data, first, ends, sizes, offsets)


def _walk(data: Bytes, places: Ints, ends: Ints, sizes: Ints, offsets: Ints) -> tuple[Ints, Ints]:
    """Step through all arrays at once, an element of each at a time, the longest arrays first."""
    starts = np.empty(offsets[-1], np.int64)
    lengths = np.empty(offsets[-1], np.int64)
    order = np.argsort(-sizes, kind="stable")
    places, ends, sizes, slots = places[order], ends[order], sizes[order], offsets[:-1][order]
    nth = 0
    while (left := int(np.count_nonzero(sizes > nth))) >= _FEW_ARRAYS:
        read_sizes = value_array.numbers_at(data, places[:left], "i4").astype(np.int64)
        places[:left] += _LENGTH_BYTES
        starts[slots[:left] + nth] = places[:left]
        lengths[slots[:left] + nth] = read_sizes
        places[:left] += np.maximum(read_sizes, 0)
        wrong = (read_sizes < -1) | (places[:left] > ends[:left])
        if wrong.any():
            raise _overrun(int(order[wrong.argmax()]), nth)
        nth += 1
    buffer = data.data
    for row in range(left):
        place, end, slot = int(places[row]), int(ends[row]), int(slots[row])
        for i in range(nth, int(sizes[row])):
            (length,) = _LENGTH.unpack_from(buffer, place)
            place += _LENGTH_BYTES
            starts[slot + i], lengths[slot + i] = place, length
            place += max(length, 0)
            if length < -1 or place > end:
                raise _overrun(int(order[row]), i)
        places[row] = place
    if (places != ends).any():
        raise MalformedValue(int(order[(places != ends).argmax()]), "bytes after the array's last element")
    return starts, lengths


def _overrun(index: int, nth: int) -> MalformedValue:
    return MalformedValue(index, f"element {nth + 1} has a length that exceeds its array")
