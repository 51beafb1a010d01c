"""Decode messages in chunks of bounded size; errors name the message and the offset in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from protocol.errors import MalformedMessage, UnrepresentableValue
from protocol.values import readers, value_array
from protocol.values.types import ColumnType, Kind
from protocol.values.value_array import Bools, Bytes, Ints, UnheldValue, Unrepresentable, ValueArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.bulk.message_array import MessageArray

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
    type: ColumnType
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
        if column.type.kind is not Kind.ARRAY:
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
