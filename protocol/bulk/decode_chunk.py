"""Decode messages in chunks of bounded size, and their tuples column by column; errors name the message and the offset.

The tuples of a chunk (TupleData) are read without Python per row or value: a position in each message is stepped
through the columns, in all messages together. A step reads the kind and the length of one column's value in each
message, checks that the value ends within its message, and hands the values to their type's reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.protocol.codec.messages import VALUE_KINDS, VALUES_WITHOUT_DATA, Tuple, Value
from pgbridge.protocol.errors import MalformedMessage, UnrepresentableValue, UnsupportedBinary
from pgbridge.protocol.values import readers, types, value_array
from pgbridge.protocol.values.value_array import (
    Bools,
    Bytes,
    Ints,
    UnheldValue,
    Unrepresentable,
    ValueArray,
    merge,
    numbers_at,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pgbridge.protocol.bulk.message_array import MessageArray

DECODE_CHUNK_ROWS: Final = 1 << 14
DECODE_CHUNK_BYTES: Final = 1 << 22
"""Limits of a chunk. Within them intermediate results stay in the CPU's caches (measured: chunks of twice the size
take longer per row, chunks of half the size take no less), and a chunk's fixed cost is below 10 % of its time."""

DecodedT = TypeVar("DecodedT")


class Column(NamedTuple):
    """A column to be read.

    Attributes:
        name: For errors.
        type: How its values are read.
        unrepresentable: What to do with a value that the type cannot hold.
        shown: Make such a value NULL and return its text (`DecodeChunk.read_showing`).
        wanted: False to skip its values.
    """

    name: str
    type: types.ColumnType
    unrepresentable: Unrepresentable
    shown: bool = False
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class DecodeChunk:
    """Consecutive messages in a buffer, perhaps with others between them.

    Attributes:
        data: The buffer, with PADDING bytes behind the last message.
        starts: Index in `data` of each message's first byte.
        ends: Index in `data` of the end of each message.
        first_row: Number of messages in the chunks before this one.
        name: Gives the name of a message for errors, by its index.
    """

    data: Bytes
    starts: Ints
    ends: Ints
    first_row: int
    name: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.starts)

    def malformed(self, index: int, position: int, reason: str) -> MalformedMessage:
        """Make the error that a message is malformed at a position in the buffer."""
        return MalformedMessage(self.name(index), int(position - self.starts[index]), reason)

    def check(self, fine: Bools, owners: Ints, positions: Ints, reason: str) -> None:
        """Raise for the first item that is not `fine`; `owners` and `positions` tell where each item is."""
        if not fine.all():
            first = int(fine.argmin())
            raise self.malformed(int(owners[first]), int(positions[first]), reason)

    def check_end(self, owners: Ints, positions: Ints) -> None:
        """Raise if a message goes on behind the position up to which it was read."""
        self.check(positions == self.ends[owners], owners, positions, "bytes after the end of the message")

    def read(self, column: Column, owners: Ints, values: ValueArray, *, binary: bool) -> pa.Array:
        """Read values of a column, none NULL; `owners` are the messages they are in.

        Raises:
            MalformedMessage: A value does not have its type's form.
            UnrepresentableValue: The column's type cannot hold a value.
            TooLargeError: The values are too large together; fewer messages may do.
        """
        read = readers.read_binary if binary else readers.read_text
        try:
            return read(values, column.type, column.unrepresentable)
        except UnheldValue as fault:
            row = self.first_row + int(owners[fault.index])
            raise UnrepresentableValue(column.name, value_array.show(fault.text.encode()), fault.reason, row) from None
        except value_array.BadValueError as fault:
            reason = f'column "{column.name}": {fault.reason}'
            position = int(values.starts[fault.index])
            raise self.malformed(int(owners[fault.index]), position, reason) from None
        except value_array.TooLargeError:
            if len(self) > 1:
                raise
            reason = "its text is longer than the server's longest"
            raise UnrepresentableValue(column.name, values.show(0), reason, self.first_row) from None

    def read_showing(
        self, column: Column, owners: Ints, values: ValueArray, *, binary: bool
    ) -> tuple[pa.Array, list[str | None] | None]:
        """Like `read`, but a value that the column's type cannot hold is NULL, whatever the policy.

        Returns:
            The array; and for each value that cannot be held the text that PostgreSQL has for it, or for an element of
            it, None for the others; or None if all values can be held.
        """
        if column.type.kind is not types.Kind.ARRAY:
            array = self.read(column._replace(unrepresentable="null"), owners, values, binary=binary)
            suspects = np.flatnonzero(array.is_null()) if array.null_count else np.zeros(0, np.int64)
        else:
            try:  # an array that is NULL, or has a NULL element, does not tell why
                return self.read(column._replace(unrepresentable="error"), owners, values, binary=binary), None
            except UnrepresentableValue:
                array = self.read(column._replace(unrepresentable="null"), owners, values, binary=binary)
                suspects = np.arange(len(values))
        if not len(suspects):
            return array, None
        read = readers.read_binary if binary else readers.read_text
        texts: list[str | None] = [None] * len(values)
        known: dict[bytes, str | None] = {}
        for index in suspects.tolist():
            raw = values.raw(index)
            if raw not in known:
                known[raw] = None
                try:
                    read(values.select(np.array([index])), column.type, "error")
                except UnheldValue as fault:
                    known[raw] = fault.text
            texts[index] = known[raw]
        held = pa.array([text is None for text in texts])
        return pc.if_else(held, array, pa.scalar(None, array.type)), texts


def decode_in_chunks(
    messages: MessageArray, rows: Ints, name: Callable[[int], str], decode: Callable[[DecodeChunk, Ints], DecodedT]
) -> list[DecodedT]:
    """Decode some messages chunk by chunk.

    Args:
        rows: Indices of those to decode, ascending.
        name: Gives the name of a message for errors, by its index in `messages`.
        decode: Decodes a chunk, given its messages' indices as well. When it raises TooLargeError, the chunk is halved.

    Returns:
        The results of `decode`.
    """
    decoded = []
    waiting = _ranges(messages, rows)[::-1]
    while waiting:
        first, last = waiting.pop()
        part = rows[first:last]
        try:
            decoded.append(decode(_chunk(messages, part, first, name), part))
        except value_array.TooLargeError:
            middle = (first + last) // 2
            waiting += [(middle, last), (first, middle)]
    return decoded


def _ranges(messages: MessageArray, rows: Ints) -> list[tuple[int, int]]:
    """Divide `rows` into ranges within the limits of a chunk."""
    starts, ends = messages.starts[rows], messages.ends[rows]
    ranges = []
    first = 0
    while first < len(rows):
        fitting = int(np.searchsorted(ends, starts[first] + DECODE_CHUNK_BYTES, side="right"))
        last = max(first + 1, min(fitting, first + DECODE_CHUNK_ROWS))
        ranges.append((first, last))
        first = last
    return ranges


def _chunk(messages: MessageArray, rows: Ints, first_row: int, name: Callable[[int], str]) -> DecodeChunk:
    begin = int(messages.starts[rows[0]])
    data = messages.data[begin : int(messages.ends[rows[-1]]) + value_array.PADDING]
    starts, ends = messages.starts[rows] - begin, messages.ends[rows] - begin
    return DecodeChunk(data, starts, ends, first_row, lambda index: name(int(rows[index])))


ValuePlaces = list[tuple[int, Bytes, Ints, Ints]]
"""For a column, by its position: the kinds of its values, where their kinds stand, and where they end."""

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
        self._following = positions + _HEADER_BYTES
        self.positions: Ints = self._following
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

    def places(self, names: Sequence[str], columns: Collection[int]) -> ValuePlaces:
        """Read all columns, and return where the values of some of them stand, column by column."""
        placed: list[tuple[Bytes, Ints, Ints]] = []
        for i, name in enumerate(names if len(self._owners) else ()):
            begins = self.positions
            kinds, _, _ = self._step(name)
            self._check_kinds(kinds, name)
            self.positions = self._following
            if i in columns:
                placed.append((kinds, begins, self.positions))
        return [(i, *place) for i, place in zip(sorted(columns), placed, strict=False)]

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
