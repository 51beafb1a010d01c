"""Messages that lie in one buffer, worked on a stretch at a time, and the errors that name a place in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from protocol.errors import MalformedMessage, UnrepresentableValue
from protocol.values import readers
from protocol.values.types import Kind
from protocol.values.value_array import (
    PADDING,
    BadValueError,
    Bools,
    Bytes,
    Ints,
    TooLargeError,
    UnheldValue,
    Unrepresentable,
    ValueArray,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.message_array import MessageArray
    from protocol.values.types import ColumnType

# Of rows and bytes of buffer: what is made of them on the way stays in the caches (measured: twice as many
# take longer for each row, half as many no less), and the fixed cost of a stretch is below 10 % of its time.
STRETCH_ROWS = 1 << 14
STRETCH_BYTES: Final = 1 << 22

Part = TypeVar("Part")


class Column(NamedTuple):
    """A column to be read.

    Attributes:
        name: For errors.
        type: How its values are read.
        unrepresentable: What to do with what the type cannot hold.
        shown: Such a value's text is wanted (`DecodeChunk.read_showing`); then it is NULL.
        wanted: Its values are wanted at all.
    """

    name: str
    type: ColumnType
    unrepresentable: Unrepresentable
    shown: bool = False
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class DecodeChunk:
    """Some messages one after another in a buffer, perhaps with others between them.

    Attributes:
        data: The buffer, with PADDING bytes behind the last message.
        starts: Of each message its first byte's index in `data`.
        ends: Of each message the index of what follows its last byte.
        first_row: How many messages came before those of this stretch.
        name: Of a message, for errors.
    """

    data: Bytes
    starts: Ints
    ends: Ints
    first_row: int
    name: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.starts)

    def malformed(self, index: int, position: int, reason: str) -> MalformedMessage:
        """The error that a message is malformed at a position in the buffer."""
        return MalformedMessage(self.name(index), int(position - self.starts[index]), reason)

    def check(self, fine: Bools, owners: Ints, positions: Ints, reason: str) -> None:
        """Raise for the first thing that is not fine; each belongs to a message and has a position."""
        if not fine.all():
            first = int(fine.argmin())
            raise self.malformed(int(owners[first]), int(positions[first]), reason)

    def check_end(self, owners: Ints, positions: Ints) -> None:
        """Raise if a message goes on behind the position up to which it was read."""
        self.check(positions == self.ends[owners], owners, positions, "bytes after the end of the message")

    def read(self, column: Column, owners: Ints, values: ValueArray, *, binary: bool) -> pa.Array:
        """Read values of a column, one from each of the messages, none NULL.

        Raises:
            MalformedMessage: A value does not have its type's form.
            UnrepresentableValue: A value cannot be held.
            TooLargeError: They are too large together; fewer messages may do.
        """
        read = readers.read_binary if binary else readers.read_text
        try:
            return read(values, column.type, column.unrepresentable)
        except UnheldValue as fault:
            row = self.first_row + int(owners[fault.index])
            raise UnrepresentableValue(column.name, fault.text, fault.reason, row) from None
        except BadValueError as fault:
            reason = f'column "{column.name}": {fault.reason}'
            position = int(values.starts[fault.index])
            raise self.malformed(int(owners[fault.index]), position, reason) from None
        except TooLargeError:
            if len(self) > 1:
                raise
            reason = "its text is longer than the server's longest"
            raise UnrepresentableValue(column.name, values.show(0), reason, self.first_row) from None

    def read_showing(
        self, column: Column, owners: Ints, values: ValueArray, *, binary: bool
    ) -> tuple[pa.Array, list[str | None] | None]:
        """As `read`, but what the column's type cannot hold is NULL, whatever the policy.

        Returns:
            The array; and for each value the text that PostgreSQL has for it, or for an element of it, if it cannot
            be held, else None; or None where all can.
        """
        if column.type.kind is not Kind.ARRAY:
            array = self.read(column._replace(unrepresentable="null"), owners, values, binary=binary)
            suspects = np.flatnonzero(array.is_null()) if array.null_count else np.zeros(0, np.int64)
        else:
            try:  # of an array that is NULL, or has one in it, it does not show why
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
    joined: MessageArray, rows: Ints, name: Callable[[int], str], decode: Callable[[DecodeChunk, Ints], Part]
) -> list[Part]:
    """Decode messages, given by ascending indices, in stretches of a size that suits the caches.

    `name` gives a message's, by its index in `joined`, for errors. `decode` is called with a stretch and its
    messages' indices; where it raises TooLargeError, the stretch is halved.
    """
    parts = []
    waiting = _stretches(joined, rows)[::-1]
    while waiting:
        first, last = waiting.pop()
        some = rows[first:last]
        try:
            parts.append(decode(_stretch(joined, some, first, name), some))
        except TooLargeError:
            middle = (first + last) // 2
            waiting += [(middle, last), (first, middle)]
    return parts


def _stretches(joined: MessageArray, rows: Ints) -> list[tuple[int, int]]:
    starts, ends = joined.starts[rows], joined.ends[rows]
    found = []
    first = 0
    while first < len(rows):
        fitting = int(np.searchsorted(ends, starts[first] + STRETCH_BYTES, side="right"))
        last = max(first + 1, min(fitting, first + STRETCH_ROWS))
        found.append((first, last))
        first = last
    return found


def _stretch(joined: MessageArray, rows: Ints, first_row: int, name: Callable[[int], str]) -> DecodeChunk:
    begin = int(joined.starts[rows[0]])
    data = joined.data[begin : int(joined.ends[rows[-1]]) + PADDING]
    starts, ends = joined.starts[rows] - begin, joined.ends[rows] - begin
    return DecodeChunk(data, starts, ends, first_row, lambda index: name(int(rows[index])))
