"""Numerics in binary form -> decimals, or their text as PostgreSQL writes it.

The form of `numeric_send`: four 16-bit numbers (number of digits, weight, sign, display scale), then digits to base
10000. The first digit counts 10000 ** weight, each further one 1/10000 of the one before. Zeros at both ends are left
out, so a value may have fewer digits than its weight and its display scale (decimal digits after the point) span.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.protocol.values import types, value_array
from pgbridge.protocol.values.output import NUMERIC_NEG, NUMERIC_SPECIAL
from pgbridge.protocol.values.text_values import NOT_A_DECIMAL, to_decimal
from pgbridge.protocol.values.value_array import (
    Bools,
    Bytes,
    Ints,
    MalformedValue,
    TooLargeError,
    Unrepresentable,
    ValueArray,
)

_HEADER_BYTES: Final = 8
_MAX_DSCALE: Final = 0x3FFF
_MAX_DIGIT: Final = 9999
_INT64_PRECISION: Final = 18
_MOST_DIGITS: Final = 6  # to base 10000; 18 decimal digits around a point need at most so many
_MAX_PLACE: Final = 5
_SHOWN_BYTES: Final = 40
_MAX_TEXT_BYTES: Final = 1 << 30  # of all values together; the server makes no longer text (MaxAllocSize)
_TEXT_BYTES_AT_ONCE: Final = 1 << 24  # intermediate results take a dozen times as much

_KNOWN_SIGNS: Final = np.isin(np.arange(1 << 16), [0, NUMERIC_NEG, *NUMERIC_SPECIAL])
_FOUR_CHARACTERS: Final = np.frombuffer(b"".join(b"%04d" % n for n in range(10_000)), np.uint32)
_LEADING_ZEROS: Final = np.array([3 if n < 10 else 2 if n < 100 else 1 if n < 1000 else 0 for n in range(10_000)])


class _Header(NamedTuple):
    ndigits: Ints
    weight: Ints
    sign: Ints
    dscale: Ints

    def of(self, which: Bools | Ints) -> _Header:
        return _Header(*(field[which] for field in self))


def _read_header(values: ValueArray) -> _Header:
    fields = values.blocks(_HEADER_BYTES).view(">i2").astype(np.int64)
    # 131072 digits before the point are 32768 to base 10000: the number of digits is unsigned
    header = _Header(fields[:, 0] & 0xFFFF, fields[:, 1], fields[:, 2] & 0xFFFF, fields[:, 3])
    wrong = (
        (values.lengths != _HEADER_BYTES + 2 * header.ndigits)
        | (header.dscale < 0)
        | (header.dscale > _MAX_DSCALE)
        | ~_KNOWN_SIGNS[header.sign]
    )
    if wrong.any():
        index = int(wrong.argmax())
        raise _no_numeric(values, index, "numeric")
    return header


def _no_numeric(values: ValueArray, index: int, label: str) -> MalformedValue:
    return MalformedValue(index, f"\\x{values.raw(index)[:_SHOWN_BYTES].hex()} is not a valid {label}")


def read_decimal(values: ValueArray, type_: types.ColumnType, policy: Unrepresentable) -> pa.Array:
    """Read numerics whose precision and scale decimal128 can have."""
    header = _read_header(values)
    special = header.sign > NUMERIC_NEG
    value_array.refuse(special, policy, lambda i: NUMERIC_SPECIAL[int(header.sign[i])], NOT_A_DECIMAL)

    def read(usual: ValueArray) -> pa.Array:
        of_some = header if len(usual) == len(values) else header.of(~special)
        if type_.arrow.precision <= _INT64_PRECISION:
            return _decimals(usual, of_some, type_.arrow)
        texts = _texts(usual, of_some)
        return value_array.attempt(
            lambda t: to_decimal(t, type_.arrow), texts, lambda i: f"{texts[i]} is not a valid {type_.arrow}"
        )

    return value_array.read_selected(values, ~special, type_.arrow, read)


class _Places(NamedTuple):
    """The worth of digits to base 10000 in a column of one precision and scale of up to 18 digits.

    Places count from 0, the last that the scale reaches into. Only a part of the digit in place 0 is within the scale.

    Attributes:
        groups_after_point: Number of places after the point.
        below: How many units of place 0 make up one unit of the scale.
        worth: By place: the units of the scale that a digit's unit counts.
        greatest: By place: the greatest digit that the precision allows.
    """

    groups_after_point: int
    below: int
    worth: Ints
    greatest: Ints


@functools.cache
def _places(precision: int, scale: int) -> _Places:
    groups = -(-scale // 4)
    below = 10 ** (4 * groups - scale)
    most = 10**precision - 1
    worth = [1] + [10 ** (4 * place) // below for place in range(1, _MAX_PLACE + 1)]
    greatest = [_MAX_DIGIT] + [min(most // value, _MAX_DIGIT) for value in worth[1:]]
    within = [value if value <= most else 0 for value in worth]
    return _Places(groups, below, np.array(within, np.int64), np.array(greatest, np.int64))


def _decimals(values: ValueArray, header: _Header, arrow: pa.DataType) -> pa.Array:
    """Sum up digits times their worth; each term is below 10 ** 18, so 64 bits hold the sum."""
    places = _places(arrow.precision, arrow.scale)
    digits = values.blocks(_HEADER_BYTES + 2 * _MOST_DIGITS).view(">i2")[:, _HEADER_BYTES // 2 :]
    total = np.zeros(len(values), np.int64)
    wrong = header.ndigits > _MOST_DIGITS
    for i in range(min(int(header.ndigits.max()), _MOST_DIGITS)):
        digit = digits[:, i].astype(np.int64)
        digit[header.ndigits <= i] = 0
        place = header.weight - i + places.groups_after_point
        within = np.minimum(np.maximum(place, 0), _MAX_PLACE)
        wrong |= (digit < 0) | (digit > places.greatest[within]) | ((place != within) & (digit != 0))
        if places.below > 1:
            last = within == 0
            whole = digit // places.below
            wrong |= last & (whole * places.below != digit)
            digit = np.where(last, whole, digit)
        total += digit * places.worth[within]
    wrong |= total >= 10**arrow.precision
    if wrong.any():
        raise _no_numeric(values, int(wrong.argmax()), f"numeric({arrow.precision},{arrow.scale})")
    np.negative(total, out=total, where=header.sign == NUMERIC_NEG)
    halves = np.empty((len(values), 2), np.int64)  # the halves of 128 bits, the lower first
    halves[:, 0] = total
    halves[:, 1] = total >> 63
    return value_array.primitive(arrow, halves)


def read_numeric(values: ValueArray, _type: types.ColumnType, _policy: Unrepresentable) -> pa.Array:
    """Read any numerics as the text of `numeric_out`."""
    header = _read_header(values)
    special = header.sign > NUMERIC_NEG
    if not special.any():
        return _texts(values, header)
    finite = value_array.read_selected(values, ~special, pa.string(), lambda usual: _texts(usual, header.of(~special)))
    names = [NUMERIC_SPECIAL.get(sign) for sign in header.sign.tolist()]
    return pc.coalesce(finite, pa.array(names, pa.string()))


def _texts(values: ValueArray, header: _Header) -> pa.Array:
    """Write each value into a block of its own: a sign, groups of four digits, a point, more groups.

    At least one group stands before the point. The text is a part of the block: it starts with the first group's first
    digit that is not zero, or with its last digit; a minus sign is put in front of that.
    """
    before = np.maximum(header.weight, 0) + 1
    groups = before + (header.dscale + 3) // 4
    sizes = 2 + 4 * groups
    size = int(sizes.sum())
    if size > _MAX_TEXT_BYTES:
        raise TooLargeError
    if size > _TEXT_BYTES_AT_ONCE and len(values) > 1:
        return _texts_of_halves(values, header)
    blocks = np.cumsum(sizes) - sizes
    points = blocks + 1 + 4 * before
    text = np.zeros(size, np.uint8)
    first_digits = _write_groups(values, header, text, blocks + 1, before, groups)
    text[points] = ord(".")
    negative = header.sign == NUMERIC_NEG
    starts = blocks + 1 + _LEADING_ZEROS[first_digits] - negative
    text[starts[negative]] = ord("-")
    ends = points + np.where(header.dscale > 0, 1 + header.dscale, 0)
    return ValueArray(text, starts, ends - starts).gather(pa.string())


def _texts_of_halves(values: ValueArray, header: _Header) -> pa.Array:
    halves = []
    for half in np.array_split(np.arange(len(values)), 2):
        with value_array.indices_of(half):
            halves.append(_texts(values.select(half), header.of(half)))
    return pa.concat_arrays(halves)


def _write_groups(values: ValueArray, header: _Header, text: Bytes, blocks: Ints, before: Ints, groups: Ints) -> Ints:
    """Write the groups of all values, leaving room for the points, and return each value's first group."""
    owner = np.repeat(np.arange(len(values)), groups)
    first = np.cumsum(groups) - groups
    nth = np.arange(len(owner)) - first[owner]
    # A group without a digit is zero, left out in front (weight below 0) or at the end.
    which = nth + (header.weight + 1 - before)[owner]
    stored = np.flatnonzero((which >= 0) & (which < header.ndigits[owner]))
    digit = np.zeros(len(owner), np.int64)
    places = values.starts[owner[stored]] + 2 * which[stored]
    digit[stored] = value_array.numbers_at(values.data, places, "i2", _HEADER_BYTES)
    wrong = (digit < 0) | (digit > _MAX_DIGIT)
    if wrong.any():
        raise _no_numeric(values, int(owner[wrong.argmax()]), "numeric")
    sliding = np.ndarray((len(text) - 3,), np.uint32, text, strides=(1,))
    sliding[blocks[owner] + 4 * nth + (nth >= before[owner])] = _FOUR_CHARACTERS[digit]
    first_digits: Ints = digit[first]
    return first_digits
