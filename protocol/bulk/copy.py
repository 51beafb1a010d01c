"""COPY ... TO STDOUT (FORMAT binary) -> Arrow: the initial copy's side of `columns`, with the same readers.

The server sends a header, a row in each CopyData message, and a trailer. Up to version 18 the header comes in the same
message as the first row (or the trailer, if there is no row); a header in a message of its own is read as well.

CopyData messages that follow each other in a buffer are found here, too, those of a walsender's stream as well: each is
tag, length, content. No Python runs for each of them: find candidate headers; keep those that start where the previous
message ends.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from pgbridge.protocol.bulk.decode_chunk import Column, DecodeChunk, decode_in_chunks
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.errors import MalformedMessage, UnexpectedMessage, UnsupportedMessage
from pgbridge.protocol.values.value_array import Bytes, Ints, Unrepresentable, ValueArray, merge, numbers_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pgbridge.protocol.values.types import ColumnType

COPY_DATA: Final = ord("d")
PREFIX_BYTES: Final = 5
"""The tag, and the length, which counts itself but not the tag."""

_KINDS: Final = np.isin(np.arange(256), list(b"wk"))  # first bytes of a walsender's messages: XLogData, keepalive
_NONE: Final = np.zeros(0, np.int64)


def copy_frames(
    data: Bytes, end: int, find: Callable[[Bytes, int, int], MessageArray], other: Callable[[int, bytes], None]
) -> tuple[MessageArray, int]:
    """Find all whole CopyData messages at the start of a buffer.

    Args:
        data: The buffer, with PADDING bytes behind `end`.
        end: Number of bytes in the buffer.
        find: `stream_frames` or `row_frames`: finds many messages at once; those it does not find are read one by one.
        other: Called with the tag and the content of each message that is not CopyData.

    Returns:
        The contents of the messages, and the position of the first message that is not whole.
    """
    starts, ends = [_NONE], [_NONE]
    at = 0
    while end - at >= PREFIX_BYTES:
        start, following = at + PREFIX_BYTES, at + 1 + int.from_bytes(data[at + 1 : at + PREFIX_BYTES].tobytes())
        if following > end:
            break
        frames = find(data, at, end)
        if len(frames):
            starts.append(frames.starts)
            ends.append(frames.ends)
            following = int(frames.ends[-1])
        elif data[at] == COPY_DATA:
            starts.append(np.array([start]))
            ends.append(np.array([following]))
        else:
            other(int(data[at]), data[start:following].tobytes())
        at = following
    if len(starts) == 2:
        return MessageArray(data, starts[1], ends[1]), at
    return MessageArray(data, np.concatenate(starts), np.concatenate(ends)), at


def row_frames(data: Bytes, begin: int, end: int, columns: int) -> MessageArray:
    """Find the whole rows that follow each other from a position on.

    Args:
        data: The buffer, with PADDING bytes behind `end`.
        begin: Where the first message may begin.
        end: Number of bytes in the buffer.
        columns: Number of columns of a row. Any other message, the header's or the trailer's, ends the sequence.
    """
    begins = _candidates(data, begin, end - _COUNT_BYTES)
    return _whole(data, begin, end, begins[numbers_at(data, begins, "u2", PREFIX_BYTES) == columns])


def stream_frames(data: Bytes, begin: int, end: int) -> MessageArray:
    """Find the whole messages of a walsender that follow each other from a position on.

    Args:
        data: The buffer, with PADDING bytes behind `end`.
        begin: Where the first message may begin.
        end: Number of bytes in the buffer. Any other message than XLogData and keepalive ends the sequence.
    """
    begins = _candidates(data, begin, end - 1)
    return _whole(data, begin, end, begins[_KINDS[data[begins + PREFIX_BYTES]]])


def _candidates(data: Bytes, begin: int, end: int) -> Ints:
    """Positions that have CopyData's tag and behind it, before `end`, room for a length below 16 MiB.

    Longer messages are left out, so that text, which has no zero bytes, never looks like the beginning of a message. If
    the first one is longer, there are none: a mask over hundreds of megabytes would take as much again.
    """
    if data[begin + 1]:
        return _NONE
    last = max(begin, end - PREFIX_BYTES + 1)
    candidates: Ints = ((data[begin:last] == COPY_DATA) & (data[begin + 1 : last + 1] == 0)).nonzero()[0]
    return begin + candidates


def _whole(data: Bytes, begin: int, end: int, begins: Ints) -> MessageArray:
    """The whole messages from a position on, given candidates for their beginnings."""
    if not len(begins) or begins[0] != begin:
        return MessageArray(data, _NONE, _NONE)
    ends = begins + 1 + numbers_at(data, begins, "u4", 1).astype(np.int64)
    if len(begins) > 1 and not (ends[:-1] == begins[1:]).all():
        chosen = _chain(begins, ends)
        begins, ends = begins[chosen], ends[chosen]
    whole = int(np.searchsorted(ends, end, side="right"))
    return MessageArray(data, begins[:whole] + PREFIX_BYTES, ends[:whole])


def _chain(begins: Ints, ends: Ints) -> Ints:
    """Indices of the candidates that start where the previous message ends, from the first on.

    The others lie within the content of a message.
    """
    following = np.searchsorted(begins, ends)
    direct = np.zeros(len(begins), np.bool_)
    direct[:-1] = ends[:-1] == begins[1:]
    breaks = np.flatnonzero(~direct).tolist()  # among them is the last candidate
    chosen = []
    at = 0
    while True:
        stop = breaks[bisect_left(breaks, at)]
        chosen.append(np.arange(at, stop + 1))
        at = int(following[stop])
        if at == len(begins) or begins[at] != ends[stop]:
            return np.concatenate(chosen)


NAME: Final = "COPY BINARY"
_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_FIXED_HEADER_BYTES: Final = len(_SIGNATURE) + 8  # and flags, and the length of an extension
_CRITICAL_FLAGS: Final = 0xFFFF0000
_TRAILER: Final = b"\xff\xff"  # as a row of -1 columns
_COUNT_BYTES: Final = 2
_LENGTH_BYTES: Final = 4


class CopyDecoder:
    """Decodes one COPY, given its CopyData messages in order, any number at a time.

    Args:
        types: The columns' types; the query must have selected `copy_expression` of each column.
        names: The columns' names in the tables and in errors.
        unrepresentable: What to do with a value that its column's type cannot hold.
        key: Key columns; `unrepresentable` does not apply to them: a value that cannot be held is an error.
    """

    def __init__(
        self,
        types: Sequence[ColumnType],
        names: Sequence[str],
        *,
        unrepresentable: Unrepresentable = "error",
        key: Collection[str] = (),
    ) -> None:
        self._columns = [
            Column(name, type_, "error" if name in key else unrepresentable)
            for name, type_ in zip(names, types, strict=True)
        ]
        self._schema = pa.schema([pa.field(column.name, column.type.arrow) for column in self._columns])
        self._started = False
        self._ended = False

    def decode(self, messages: Sequence[bytes | bytearray | memoryview] | MessageArray) -> pa.Table:
        """Decode the next messages.

        Returns:
            A table with the columns' names and a row for each row in these messages.

        Raises:
            MalformedMessage: A message is not a row of so many columns, or a value does not have its type's form.
            UnexpectedMessage: A message comes after the trailer.
            UnrepresentableValue: A value cannot be held, and the policy is "error" or the column is in the key; `row`
                counts from the first row of this call.
            UnsupportedMessage: The header has flags that change the format.
        """
        array = messages if isinstance(messages, MessageArray) else MessageArray.of(messages)
        if not len(array.starts):
            return self._schema.empty_table()
        if self._ended:
            raise UnexpectedMessage(NAME, "the copy has ended")
        rows = np.arange(len(array.starts))
        if not self._started:
            array.starts[0] += _header_bytes(array.head(0, _FIXED_HEADER_BYTES), int(array.lengths[0]))
            self._started = True
            if array.starts[0] == array.ends[0]:
                rows = rows[1:]
        if len(rows) and array.lengths[-1] == len(_TRAILER) and array[-1] == _TRAILER:
            self._ended = True
            rows = rows[:-1]
        batches = decode_in_chunks(array, rows, lambda _: NAME, lambda chunk, _: self._decode(chunk))
        return pa.Table.from_batches(batches, self._schema)

    def finish(self) -> None:
        """Check that the copy is whole.

        Raises:
            MalformedMessage: It has no trailer, so it was cut off.
        """
        if not self._ended:
            raise MalformedMessage(NAME, 0, "it ended without a trailer" if self._started else "it had no header")

    def _decode(self, chunk: DecodeChunk) -> pa.RecordBatch:
        owners = np.arange(len(chunk))
        positions = chunk.starts + _COUNT_BYTES
        chunk.check(positions <= chunk.ends, owners, chunk.starts, "the row has no number of columns")
        counts = numbers_at(chunk.data, chunk.starts, "i2")
        expected = f"expected a row of {len(self._columns)} columns"
        chunk.check(counts == len(self._columns), owners, chunk.starts, expected)
        arrays = []
        for column in self._columns:
            lengths = numbers_at(chunk.data, positions, "i4").astype(np.int64)
            starts = positions + _LENGTH_BYTES
            following = starts + np.maximum(lengths, 0)
            fits = (following <= chunk.ends) & (lengths >= -1)
            chunk.check(fits, owners, positions, f'the value of column "{column.name}" exceeds the message')
            present = owners if lengths.min() >= 0 else np.flatnonzero(lengths >= 0)
            values = ValueArray(chunk.data, starts, lengths)
            present_values = values if len(present) == len(owners) else values.select(present)
            read = chunk.read(column, present, present_values, binary=True)
            arrays.append(merge([(present, read)], len(owners), column.type.arrow))
            positions = following
        chunk.check_end(owners, positions)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _header_bytes(head: bytes, size_bytes: int) -> int:
    """Return the length of the header with which a message of this size begins: signature, flags, and an extension."""
    if len(head) < _FIXED_HEADER_BYTES or not head.startswith(_SIGNATURE):
        raise MalformedMessage(NAME, 0, "the first message does not start with the header")
    flags = int.from_bytes(head[len(_SIGNATURE) : len(_SIGNATURE) + 4], "big")
    if flags & _CRITICAL_FLAGS:
        raise UnsupportedMessage(f"COPY BINARY with flags {flags:#010x}")
    extension = int.from_bytes(head[len(_SIGNATURE) + 4 : _FIXED_HEADER_BYTES], "big", signed=True)
    if not 0 <= extension <= size_bytes - _FIXED_HEADER_BYTES:
        raise MalformedMessage(NAME, _FIXED_HEADER_BYTES, f"a header extension of {extension} bytes")
    return _FIXED_HEADER_BYTES + extension


def decode_copy_binary(
    messages: Sequence[bytes | bytearray | memoryview],
    types: Sequence[ColumnType],
    names: Sequence[str],
    *,
    unrepresentable: Unrepresentable = "error",
) -> pa.Table:
    """Decode a whole COPY at once: `CopyDecoder` with all its messages, whose errors it raises."""
    decoder = CopyDecoder(types, names, unrepresentable=unrepresentable)
    table = decoder.decode(messages)
    decoder.finish()
    return table


def copy_expression(column_name: str, type_: ColumnType, *, as_text: bool = False) -> str:
    """Return the expression to select for a column, so that COPY BINARY sends its values in a form that can be read.

    The expression is the quoted column, or its text if that is wanted or the type is not read in binary form: `concat`
    gives what the output function writes, as in the stream, while a cast to text may be defined by the type. A
    composite value IS DISTINCT FROM NULL if it exists, while IS NOT NULL looks at its fields.
    """
    quoted = '"' + column_name.replace('"', '""') + '"'
    if type_.binary and not as_text:
        return quoted
    return f"CASE WHEN {quoted} IS DISTINCT FROM NULL THEN pg_catalog.concat({quoted}) END"
