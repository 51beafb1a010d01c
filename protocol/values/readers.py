"""Read values of any type in either form: by the reader of the type's kind, and as far as their place keeps them.

There are texts that do not stay what they are where they go: in a partition column of Delta's, or in a column of
VARIANT. Delta writes the values of partition columns as texts, and reads NULL where such a text is empty, or is the
name that Hive gives to the folder of NULLs. VARIANT holds a JSON number as a decimal of at most 38 digits, or else as a
double. Spark's reader of JSON has limits of its own (Jackson's `StreamReadConstraints`).
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.protocol.values import arrays, binary_values, text_values, types
from pgbridge.protocol.values.value_array import Bools, UnheldValue, Unrepresentable, ValueArray, refuse


def read_text(values: ValueArray, type_: types.ColumnType, policy: Unrepresentable) -> pa.Array:
    """Read values in text form, none of them NULL, into an array of type_.arrow.

    Raises:
        MalformedValue: A value does not have the form of its type's output function.
        UnheldValue: The policy is "error", and the Arrow type or the column's place cannot hold a value.
    """
    if not len(values):
        return pa.nulls(0, type_.arrow)
    if type_.kind is types.Kind.ARRAY:
        return arrays.read_text(values, type_, policy, read_text)
    read = text_values.READERS.get(type_.kind, text_values.read_string)(values, type_, policy)
    return held(read, type_.place, policy)


def read_binary(values: ValueArray, type_: types.ColumnType, policy: Unrepresentable) -> pa.Array:
    """Read values in binary form, none of them NULL, into an array of type_.arrow.

    If the type is not read in binary form, the values must be its text (`copy.copy_expression`).

    Raises:
        MalformedValue: A value does not have the form of its type's send function.
        UnheldValue: The policy is "error", and the Arrow type or the column's place cannot hold a value.
        TooLargeError: The values together have more text than one array can hold.
    """
    if not len(values):
        return pa.nulls(0, type_.arrow)
    if not type_.binary:
        return read_text(values, type_, policy)
    if type_.kind is types.Kind.ARRAY and type_.element is not None:
        return arrays.read_binary(values, type_, type_.element.oid, policy, read_binary)
    return held(binary_values.READERS[type_.kind](values, type_, policy), type_.place, policy)


AS_NULLS: Final = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that Delta reads as NULL in a partition column."""

_NULLS: Final = pa.array(AS_NULLS)

AS_NULL: Final = "Delta keeps it as NULL in a partition column"
TOO_MANY_DIGITS: Final = "it has a number of more than 38 digits, which VARIANT does not hold exactly"
TOO_DEEP: Final = "its arrays and objects are nested deeper than 1000 levels"
TOO_LONG: Final = "it has a name of more than 50,000 characters, or a string of more than 20,000,000"

_DIGITS: Final = 38
_LEVELS: Final = 1000
_NUMBER_LENGTH: Final = 1000
_NAME_LENGTH: Final = 50_000
_STRING_LENGTH: Final = 20_000_000

_MANY_DIGITS: Final = rf"[0-9.]{{{_DIGITS + 1}}}"
_BRACKETS: Final = r"[\[{]"
_TOKEN: Final = re.compile(r'("(?:[^"\\]|\\.)*+")(?P<name>:)?|(?P<number>-?\d[\d.]*)|(?P<open>[\[{])|(?P<close>[\]}])')


def held(values: pa.Array, place: types.Place, policy: Unrepresentable) -> pa.Array:
    """Values that stay what they are at their place; the others are NULL.

    Raises:
        UnheldValue: The policy is "error", and there is another one.
    """
    if place is types.Place.COLUMN or not pa.types.is_string(values.type):
        return values
    if place is types.Place.VARIANT:
        return _held_json(values, policy)
    refused: Bools = pc.is_in(values, _NULLS).to_numpy(zero_copy_only=False)
    nulls = refuse(refused, policy, lambda index: values[index].as_py(), AS_NULL)
    return values if nulls is None else pc.if_else(pa.array(nulls), pa.scalar(None, values.type), values)


def _held_json(values: pa.Array, policy: Unrepresentable) -> pa.Array:
    """Most values are told by a look of Arrow's; the others are read here."""
    suspects = pc.match_substring_regex(values, _MANY_DIGITS)
    long = pc.greater(pc.binary_length(values), 2 * _LEVELS)
    if pc.any(long).as_py():
        deep = pc.greater_equal(pc.count_substring_regex(values, _BRACKETS), _LEVELS)
        names = pc.greater(pc.binary_length(values), _NAME_LENGTH)
        suspects = pc.or_(suspects, pc.or_(deep, names))
    refused: list[int] = []
    for index in np.flatnonzero(pc.fill_null(suspects, fill_value=False).to_numpy(zero_copy_only=False)).tolist():
        text = values[index].as_py()
        reason = json_fault(text)
        if reason is not None and policy == "error":
            raise UnheldValue(index, text, reason)
        if reason is not None:
            refused.append(index)
    if not refused:
        return values
    nulls = np.zeros(len(values), np.bool_)
    nulls[refused] = True
    return pc.if_else(pa.array(nulls), pa.scalar(None, values.type), values)


def json_fault(text: str) -> str | None:
    """Why VARIANT does not hold a JSON text; None if it does."""
    level = 0
    for token in _TOKEN.finditer(text):
        if (number := token["number"]) is not None:
            if _is_rounded(number):
                return TOO_MANY_DIGITS
        elif token["open"]:
            level += 1
            if level > _LEVELS:
                return TOO_DEEP
        elif token["close"]:
            level -= 1
        elif len(token[1]) > _NAME_LENGTH // 2:  # a character is one or two of UTF-16's units, which are counted
            limit = _NAME_LENGTH if token["name"] else _STRING_LENGTH
            if len(json.loads(token[1]).encode("utf-16-le")) // 2 > limit:
                return TOO_LONG
    return None


def _is_rounded(number: str) -> bool:
    whole, _, fraction = number.lstrip("-").partition(".")
    if len(fraction) <= _DIGITS and len((whole + fraction).lstrip("0")) <= _DIGITS:
        return False
    if len(whole) + len(fraction) > _NUMBER_LENGTH:
        return True
    nearest = float(number)
    return nearest in {float("inf"), float("-inf")} or Decimal(nearest) != Decimal(number)
