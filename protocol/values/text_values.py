"""Values in text form -> Arrow arrays, by kind.

The text must be in the form of PostgreSQL's output functions with DateStyle ISO, IntervalStyle postgres,
extra_float_digits 1, bytea_output hex and TimeZone UTC; other forms that its input functions accept are malformed here.
The value of a string column is the text itself. Types of extensions have texts that nobody answers for here: what is
not in their form is a value that the column cannot hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.protocol.values import value_array
from pgbridge.protocol.values.types import ColumnType, Kind

OUTSIDE_YEARS: Final = "the column holds the years 0001 to 9999 only"
NOT_A_DECIMAL: Final = "the column holds finite numbers only"
NOT_A_VECTOR: Final = "the column holds arrays of finite numbers only, as pgvector writes them"
NOT_EWKB: Final = "the column holds EWKB only, which PostGIS writes in hexadecimal digits"

# First and last date in days since 1970-01-01, and the same in microseconds.
MIN_DAYS, MAX_DAYS = -719_162, 2_932_896
MIN_USECS, MAX_USECS = MIN_DAYS * 86_400_000_000, (MAX_DAYS + 1) * 86_400_000_000 - 1

Cast = Callable[[pa.Array, pa.DataType], pa.Array]
_MOST_DECIMAL_DIGITS: Final = 38

_DATE: Final = rb"-?infinity|\d{4,7}-\d\d-\d\d( BC)?"
_TIMESTAMP: Final = rb"-?infinity|\d{4,6}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?%s( BC)?"
_FORM: Final[Mapping[Kind, re.Pattern[bytes]]] = {
    Kind.DATE: re.compile(_DATE),
    Kind.TIMESTAMP: re.compile(_TIMESTAMP % b""),
    Kind.TIMESTAMPTZ: re.compile(_TIMESTAMP % rb"[+-]\d\d(:\d\d)?"),
}

_NUMBER: Final = r"-?\d+(\.\d+)?(e[+-]\d+)?"
_VECTOR: Final = rf"^\[{_NUMBER}(,{_NUMBER})*\]$"
_HEXADECIMAL: Final = "^([0-9A-Fa-f]{2})+$"

_NO_BYTE: Final = 0x100
_BYTE_OF_PAIR: Final = np.full(1 << 16, _NO_BYTE, np.uint16)  # by two hexadecimal digits, read as a 16-bit number
_BYTE_OF_PAIR[np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)] = np.arange(256)


def read_string(values: value_array.ValueArray, _type: ColumnType, policy: value_array.Unrepresentable) -> pa.Array:
    """Read any type whose column is a string."""
    return values.text(policy)


def read_bool(values: value_array.ValueArray, _type: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    """Read `t` or `f`."""
    first = values.data[values.starts]
    wrong = (values.lengths != 1) | ((first != ord("t")) & (first != ord("f")))
    if wrong.any():
        index = int(wrong.argmax())
        raise value_array.MalformedValue(index, f"{values.show(index)} is not a valid boolean")
    return pa.array(first == ord("t"))


def read_integer(values: value_array.ValueArray, type_: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    """Read decimal digits with an optional minus sign."""
    numbers = _cast_digits(values, type_)
    if type_.kind is Kind.OID:
        outside = pc.or_(pc.less(numbers, 0), pc.greater(numbers, 0xFFFFFFFF)).to_numpy(zero_copy_only=False)
        if outside.any():
            index = int(outside.argmax())
            raise value_array.MalformedValue(index, f"{values.show(index)} is not a valid oid")
    return numbers


def read_float(values: value_array.ValueArray, type_: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    """Read the shortest digits that denote the number, `NaN`, `Infinity` or `-Infinity`."""
    return _cast(values.gather(pa.string()), values, type_)


def read_decimal(values: value_array.ValueArray, type_: ColumnType, policy: value_array.Unrepresentable) -> pa.Array:
    """Read digits, with as many after the point as the type has, or `NaN`; no known server sends infinities."""
    first = values.data[values.starts]
    special = (values.lengths == 3) & (first == ord("N")) | (values.lengths >= 8) & (
        (first == ord("I")) | (values.data[values.starts + 1] == ord("I"))
    )
    for index in np.flatnonzero(special).tolist():
        if values.raw(index) not in {b"NaN", b"Infinity", b"-Infinity"}:
            raise value_array.MalformedValue(index, f"{values.show(index)} is not a valid numeric")
    value_array.refuse(special, policy, values.show, NOT_A_DECIMAL)
    return value_array.read_selected(
        values, ~special, type_.arrow, lambda usual: _cast_digits(usual, type_, to_decimal)
    )


def to_decimal(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Cast digits to decimals; raise ArrowInvalid where Arrow does, and where it would wrap around."""
    if pc.max(pc.binary_length(texts)).as_py() > _MOST_DECIMAL_DIGITS:
        significant = pc.utf8_ltrim(texts, "-0.")
        digits = pc.subtract(pc.binary_length(significant), pc.count_substring(significant, "."))
        if pc.max(digits).as_py() > _MOST_DECIMAL_DIGITS:
            raise pa.ArrowInvalid("more digits than 128 bits hold")
    return texts.cast(arrow)


def read_bytea(values: value_array.ValueArray, _type: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    r"""Read `\x` and two lower-case hexadecimal digits for each byte."""
    wrong = (values.lengths < 2) | (values.lengths % 2 != 0) | (values.numbers("u2") != 0x5C78)
    if wrong.any():
        index = int(wrong.argmax())
        raise value_array.MalformedValue(index, f"{values.show(index)} is not a bytea in hexadecimal form")
    offsets, digits = value_array.flat(values.without_prefix(2).gather())
    content = _BYTE_OF_PAIR[digits.view(np.uint16)]
    if content.max(initial=0) == _NO_BYTE:
        place = 2 * (content == _NO_BYTE).argmax()
        index = int(np.searchsorted(offsets, place, side="right")) - 1
        raise value_array.MalformedValue(index, f"{values.show(index)} has a character that is not a hexadecimal digit")
    return value_array.strings_of(offsets // 2, content.astype(np.uint8), pa.binary())


def read_vector(values: value_array.ValueArray, type_: ColumnType, policy: value_array.Unrepresentable) -> pa.Array:
    """Read `[1,2.5,-3e-05]`, as text or as an array of reals."""
    texts = values.text(policy)
    if pa.types.is_string(type_.arrow):
        return texts
    lists = pc.split_pattern(pc.utf8_trim(_in_form(texts, _VECTOR, values, policy, NOT_A_VECTOR), "[]"), ",")
    return pa.ListArray.from_arrays(lists.offsets, lists.values.cast(pa.float32()), mask=lists.is_null())


def read_geometry(values: value_array.ValueArray, type_: ColumnType, policy: value_array.Unrepresentable) -> pa.Array:
    """Read EWKB in hexadecimal digits of either case, as text or as its bytes."""
    texts = values.text(policy)
    if pa.types.is_string(type_.arrow):
        return texts
    held = _in_form(texts, _HEXADECIMAL, values, policy, NOT_EWKB)
    offsets, digits = value_array.flat(pc.fill_null(pc.ascii_lower(held), ""))
    content = value_array.strings_of(offsets // 2, _BYTE_OF_PAIR[digits.view(np.uint16)].astype(np.uint8), pa.binary())
    return pc.if_else(held.is_valid(), content, pa.scalar(None, pa.binary()))


def _in_form(
    texts: pa.Array,
    form: str,
    values: value_array.ValueArray,
    policy: value_array.Unrepresentable,
    reason: str,
) -> pa.Array:
    """The texts that match a regular expression; the others are NULL, or an error."""
    fine = pc.fill_null(pc.match_substring_regex(texts, form), fill_value=False)
    nulls = value_array.refuse(~fine.to_numpy(zero_copy_only=False), policy, values.show, reason)
    return texts if nulls is None else pc.if_else(fine, texts, pa.scalar(None, pa.string()))


def read_date(values: value_array.ValueArray, type_: ColumnType, policy: value_array.Unrepresentable) -> pa.Array:
    """Read `YYYY-MM-DD`; only infinities and dates outside of years 1 to 9999 have another length."""
    return _read_temporal(values, values.lengths == 10, type_, policy)


def read_timestamp(values: value_array.ValueArray, type_: ColumnType, policy: value_array.Unrepresentable) -> pa.Array:
    """Read `YYYY-MM-DD HH:MM:SS[.ffffff]`, and `+00` or another zone behind it if it is a timestamptz."""
    four_digits = values.data[values.starts + 4] == ord("-")
    before_christ = values.data[values.starts + values.lengths - 1] == ord("C")
    return _read_temporal(values, four_digits & ~before_christ & (values.lengths >= 19), type_, policy)


def _read_temporal(
    values: value_array.ValueArray, usual: value_array.Bools, type_: ColumnType, policy: value_array.Unrepresentable
) -> pa.Array:
    """Let Arrow read the values in the usual form; the others must be valid, and the column cannot hold them."""
    for index in np.flatnonzero(~usual).tolist():
        if not _FORM[type_.kind].fullmatch(values.raw(index)):
            raise value_array.MalformedValue(index, f"{values.show(index)} is not a valid {type_.label}")
    value_array.refuse(~usual, policy, values.show, OUTSIDE_YEARS)
    return value_array.read_selected(
        values, usual, type_.arrow, lambda usual_values: _read_usual(usual_values, type_, policy)
    )


def _read_usual(values: value_array.ValueArray, type_: ColumnType, policy: value_array.Unrepresentable) -> pa.Array:
    moments = _cast(values.gather(pa.string()), values, type_)
    days = type_.kind is Kind.DATE
    numbers = np.frombuffer(moments.buffers()[1], "i4" if days else "i8", len(moments))
    # Arrow accepts the year 0, and a zone may move a timestamp out of the years 1 to 9999.
    outside = (numbers < (MIN_DAYS if days else MIN_USECS)) | (numbers > (MAX_DAYS if days else MAX_USECS))
    nulls = value_array.refuse(outside, policy, values.show, OUTSIDE_YEARS)
    return moments if nulls is None else value_array.primitive(type_.arrow, numbers, nulls)


def _cast_digits(values: value_array.ValueArray, type_: ColumnType, cast: Cast = pa.Array.cast) -> pa.Array:
    strings = values.gather(pa.string())
    offsets, characters = value_array.flat(strings)
    # Arrow also accepts plus signs, exponents and 0x. The codes of '-', '.' and the digits are consecutive but for '/',
    # which Arrow refuses.
    if len(characters) and (characters.min() < ord("-") or characters.max() > ord("9")):
        first = int(((characters < ord("-")) | (characters > ord("9"))).argmax())
        index = int(np.searchsorted(offsets, first, side="right")) - 1
        raise value_array.MalformedValue(index, f"{values.show(index)} is not a valid {type_.label}")
    return _cast(strings, values, type_, cast)


def _cast(strings: pa.Array, values: value_array.ValueArray, type_: ColumnType, cast: Cast = pa.Array.cast) -> pa.Array:
    return value_array.attempt(
        lambda texts: cast(texts, type_.arrow), strings, lambda i: f"{values.show(i)} is not a valid {type_.label}"
    )


READERS: Final[Mapping[Kind, value_array.Reader]] = {
    Kind.BOOL: read_bool,
    Kind.INT2: read_integer,
    Kind.INT4: read_integer,
    Kind.INT8: read_integer,
    Kind.OID: read_integer,
    Kind.FLOAT4: read_float,
    Kind.FLOAT8: read_float,
    Kind.DECIMAL: read_decimal,
    Kind.BYTEA: read_bytea,
    Kind.DATE: read_date,
    Kind.TIMESTAMP: read_timestamp,
    Kind.TIMESTAMPTZ: read_timestamp,
    Kind.VECTOR: read_vector,
    Kind.GEOMETRY: read_geometry,
}
"""The readers of the kinds that do not become strings, or need not, except arrays."""
