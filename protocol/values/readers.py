"""Read values of any type in either form: chooses the reader by the type's kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from protocol.values import arrays, binary_values, places, text_values
from protocol.values.types import ColumnType, Kind

if TYPE_CHECKING:
    from protocol.values.value_array import Unrepresentable, ValueArray


def read_text(values: ValueArray, type_: ColumnType, policy: Unrepresentable) -> pa.Array:
    """Read values in text form, none of them NULL, into an array of type_.arrow.

    Raises:
        MalformedValue: A value does not have the form of its type's output function.
        UnheldValue: The policy is "error", and the Arrow type or the column's place cannot hold a value.
    """
    if not len(values):
        return pa.nulls(0, type_.arrow)
    if type_.kind is Kind.ARRAY:
        return arrays.read_text(values, type_, policy, read_text)
    read = text_values.READERS.get(type_.kind, text_values.read_string)(values, type_, policy)
    return places.held(read, type_.place, policy)


def read_binary(values: ValueArray, type_: ColumnType, policy: Unrepresentable) -> pa.Array:
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
    if type_.kind is Kind.ARRAY and type_.element is not None:
        return arrays.read_binary(values, type_, type_.element.oid, policy, read_binary)
    return places.held(binary_values.READERS[type_.kind](values, type_, policy), type_.place, policy)
