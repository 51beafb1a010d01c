"""The tuples of many messages at once (TupleData), read column by column without Python per row or value.

A position in each message is stepped through the columns, in all messages together: a step reads the kind and the
length of one column's value in each message, checks that the value ends within its message, and hands the values to
their type's reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from protocol.codec.messages import VALUE_KINDS, VALUES_WITHOUT_DATA, Tuple, Value
from protocol.errors import UnsupportedBinary
from protocol.values.value_array import Bools, Bytes, Ints, ValueArray, merge, numbers_at

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from protocol.bulk.decode_chunk import Column, DecodeChunk

_UNCHANGED, _TEXT, _BINARY = b"utb"
_KNOWN_KINDS: Final = np.isin(np.arange(256), list(VALUE_KINDS))
_KINDS_WITH_LENGTH: Final = np.isin(np.arange(256), [_TEXT, _BINARY])

_HEADER_BYTES: Final = 3  # the mark (K, O or N), the number of columns
_VALUE_HEADER_BYTES: Final = 5  # the kind, the length


class Tuples:
    """Tuples, at most one in each message of a chunk; each column is read by one call, in order.

    Args:
        chunk: The messages.
        owners: Indices of the messages that have a tuple.
        positions: The position of each tuple's mark.
        columns: Number of columns.

    Attributes:
        positions: Where reading goes on, in each message that has a tuple.
        unheld: The texts of the values that the column read last cannot hold, by message; None if it can hold all, or
            if the column does not ask for them (`Column.shown`).

    Raises:
        MalformedMessage: A tuple has another number of columns. Each method raises it as well, for a value that does
            not end within its message or is of an unknown kind.
    """

    def __init__(self, chunk: DecodeChunk, owners: Ints, positions: Ints, columns: int) -> None:
        self._chunk = chunk
        self._owners = owners
        self._ends = chunk.ends[owners]
        self.unheld: pa.Array | None = None
        self.positions = self._following = positions + _HEADER_BYTES
        chunk.check(self.positions <= self._ends, owners, positions, "the message ends in its tuple's header")
        counts = numbers_at(chunk.data, positions, "u2", 1)
        chunk.check(counts == columns, owners, positions, f"expected a tuple of {columns} columns")

    def read(self, column: Column, unchanged: Bools | None) -> pa.Array:
        """Read the next column: an array with a value for each message, NULL where it has no tuple or no value.

        Args:
            unchanged: Set for the messages whose value is unchanged TOAST. None if no value may be.
        """
        count = len(self._chunk)
        self.unheld = None
        if not len(self._owners):
            return pa.nulls(count, column.type.arrow)
        kinds, values, alike = self._step(column.name)
        if not column.wanted:
            self._check_kinds(kinds, column.name)
            parts = []
        elif alike:
            parts = [(self._owners, self._read_values(column, self._owners, values, int(kinds[0])))]
        else:
            parts = self._read_mixed(column, kinds, values, unchanged)
        self.positions = self._following
        return merge(parts, count, column.type.arrow)

    def raw(self, names: Sequence[str], columns: Collection[int]) -> list[Tuple | None]:
        """Read all columns, and return the undecoded values of some of them.

        Args:
            names: The names of all columns.
            columns: The positions of those to return.

        Returns:
            A tuple for each message; None for a message that has none.
        """
        by_message: list[Tuple | None] = [None] * len(self._chunk)
        if not len(self._owners):
            return by_message
        by_column: dict[int, list[Value]] = {}
        content = self._chunk.data.tobytes()  # slicing bytes costs less than slicing an array
        for i, name in enumerate(names):
            kinds, values, _ = self._step(name)
            self._check_kinds(kinds, name)
            if i in columns:
                ends = (values.starts + values.lengths).tolist()
                by_column[i] = [
                    VALUES_WITHOUT_DATA.get(kind) or Value(VALUE_KINDS[kind], content[start:end])
                    for kind, start, end in zip(kinds.tolist(), values.starts.tolist(), ends, strict=True)
                ]
            self.positions = self._following
        tuples = zip(*(by_column[i] for i in columns), strict=True) if columns else ((),) * len(self._owners)
        for owner, tuple_ in zip(self._owners.tolist(), tuples, strict=True):
            by_message[owner] = tuple_
        return by_message

    def _step(self, name: str) -> tuple[Bytes, ValueArray, bool]:
        """Find the next column's values, and set `_following` to the positions behind them.

        Returns:
            The values' kinds, the values, and whether all are text or all are binary.
        """
        chunk = self._chunk
        # One read gets the kind and the length; the length is ignored where the kind has none.
        words = numbers_at(chunk.data, self.positions, "u8")
        kinds = (words >> np.uint64(56)).astype(np.uint8)
        lengths = ((words >> np.uint64(24)) & np.uint64(0xFFFFFFFF)).astype(np.int64)
        kind = int(kinds[0])
        alike = kind in {_TEXT, _BINARY} and (kinds == kind).all()
        if alike:
            starts = self.positions + _VALUE_HEADER_BYTES
        else:
            has_length = _KINDS_WITH_LENGTH[kinds]
            lengths[~has_length] = 0
            starts = self.positions + np.where(has_length, _VALUE_HEADER_BYTES, 1)
        following = starts + lengths
        # A negative length reads as 2 GiB or more; a value that ends within its message was read within it.
        fits = following <= self._ends
        chunk.check(fits, self._owners, self.positions, f'the value of column "{name}" exceeds the message')
        self._following = following
        return kinds, ValueArray(chunk.data, starts, lengths), alike

    def _check_kinds(self, kinds: Bytes, name: str) -> None:
        reason = f'unknown kind of value in column "{name}"'
        self._chunk.check(_KNOWN_KINDS[kinds], self._owners, self.positions, reason)

    def _read_mixed(
        self, column: Column, kinds: Bytes, values: ValueArray, unchanged: Bools | None
    ) -> list[tuple[Ints, pa.Array]]:
        chunk, owners = self._chunk, self._owners
        self._check_kinds(kinds, column.name)
        if unchanged is not None:
            unchanged[owners] = kinds == _UNCHANGED
        else:
            reason = f'unchanged TOAST in an old tuple, column "{column.name}"'
            chunk.check(kinds != _UNCHANGED, owners, self.positions, reason)
        parts = []
        for kind in (_TEXT, _BINARY):
            which = np.flatnonzero(kinds == kind)
            if len(which):
                part = owners[which]
                parts.append((part, self._read_values(column, part, values.select(which), kind)))
        return parts

    def _read_values(self, column: Column, owners: Ints, values: ValueArray, kind: int) -> pa.Array:
        if kind == _BINARY and not column.type.binary:
            reason = f"a value of type {column.type.oid} in binary form, which is read from text only"
            raise UnsupportedBinary(f'column "{column.name}": {reason}')
        if not column.shown:
            return self._chunk.read(column, owners, values, binary=kind == _BINARY)
        array, texts = self._chunk.read_showing(column, owners, values, binary=kind == _BINARY)
        if texts is not None:
            as_text = merge([(owners, pa.array(texts, pa.string()))], len(self._chunk), pa.string())
            self.unheld = as_text if self.unheld is None else pc.coalesce(self.unheld, as_text)
        return array
