"""The reader for each kind of type and each form of value: where `columns` and `copy` meet the types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from protocol.values import arrays, binary_values, text_values
from protocol.values.types import ColumnType, Kind

if TYPE_CHECKING:
    from protocol.values.value_array import Unrepresentable, ValueArray


def read_text(values: ValueArray, type_: ColumnType, policy: Unrepresentable) -> pa.Array:
    """An array of type_.arrow of values in text form, none of them NULL.

    Raises:
        MalformedValue: A value is not in the form of its type's output.
        UnheldValue: The policy is "error", and the Arrow type cannot hold a value.
    """
    if not len(values):
        return pa.nulls(0, type_.arrow)
    if type_.kind is Kind.ARRAY:
        return arrays.read_text(values, type_, policy, read_text)
    return text_values.READERS.get(type_.kind, text_values.read_string)(values, type_, policy)


def read_binary(values: ValueArray, type_: ColumnType, policy: Unrepresentable) -> pa.Array:
    """An array of type_.arrow of values in binary form, none of them NULL.

    Of a type that is not read in binary form the values are taken to be its text (`copy.copy_expression`).

    Raises:
        MalformedValue: A value is not in the form of its type's send function.
        UnheldValue: The policy is "error", and the Arrow type cannot hold a value.
        TooLargeError: The values together have more text than one array should hold.
    """
    if not len(values):
        return pa.nulls(0, type_.arrow)
    if not type_.binary:
        return read_text(values, type_, policy)
    if type_.kind is Kind.ARRAY and type_.element is not None:
        return arrays.read_binary(values, type_, type_.element.oid, policy, read_binary)
    return binary_values.READERS[type_.kind](values, type_, policy)
