"""Many messages in the buffers in which they arrived, without a Python object for each."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pgbridge.protocol.values.value_array import PADDING, Bools, Bytes, Ints

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


ROW_OVERHEAD_BYTES = 60
"""Memory for a message beside its bytes: its position, and the bytes around it in the buffer."""

_CHUNK_OVERHEAD_BYTES = 600  # the arrays of a MessageArray


@dataclass(frozen=True, slots=True, eq=False)
class MessageArray:
    """Messages in one buffer, in order, perhaps with other bytes between them.

    Attributes:
        data: The buffer, with PADDING bytes behind the last message.
        starts: Index in `data` of each message's first byte.
        ends: Index in `data` of the end of each message.
    """

    data: Bytes
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, messages: Iterable[bytes | bytearray | memoryview] = ()) -> MessageArray:
        """Copy messages into one buffer."""
        parts = list(messages)
        return cls.packed(b"".join([*parts, bytes(PADDING)]), np.fromiter(map(len, parts), np.int64, len(parts)))

    @classmethod
    def packed(cls, data: bytes, lengths: Ints) -> MessageArray:
        """Wrap a buffer that holds messages of these lengths, nothing between them, and PADDING bytes behind."""
        ends = np.cumsum(lengths)
        return cls(np.frombuffer(data, np.uint8), ends - lengths, ends)

    @classmethod
    def concatenated(cls, parts: Sequence[MessageArray]) -> MessageArray:
        """Copy the messages of all arrays into one buffer."""
        filled = [part for part in parts if len(part)]
        if len(filled) < 2:
            return filled[0] if filled else cls.of()
        begins = [int(part.starts[0]) for part in filled]
        contents = [part.data[begin : part.ends[-1]] for part, begin in zip(filled, begins, strict=True)]
        places = np.cumsum([0, *map(len, contents)])
        data = np.empty(places[-1] + PADDING, np.uint8)
        for place, content in zip(places.tolist(), contents, strict=False):
            # One by one: np.concatenate holds the GIL for all of them, and the receiver waits for it.
            data[place : place + len(content)] = content
        moves = (places[:-1] - begins).tolist()
        return cls(
            data,
            np.concatenate([part.starts + move for part, move in zip(filled, moves, strict=True)]),
            np.concatenate([part.ends + move for part, move in zip(filled, moves, strict=True)]),
        )

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]].tobytes()

    def head(self, index: int, size: int) -> bytes:
        """The first bytes of a message, so many at most: a message may have hundreds of megabytes."""
        start = int(self.starts[index])
        return self.data[start : min(start + size, int(self.ends[index]))].tobytes()

    @property
    def lengths(self) -> Ints:
        """Length of each message."""
        return self.ends - self.starts

    @property
    def size_bytes(self) -> int:
        """Length of all messages together."""
        return int(self.lengths.sum())

    def longest(self) -> MessageArray:
        """The longest message; none if there are none."""
        at = int(self.lengths.argmax()) if len(self) else 0
        return self.part(at, at + 1)

    def messages(self) -> list[bytes]:
        """Each message as bytes."""
        if not len(self):
            return []
        begin = int(self.starts[0])
        data = self.data[begin : self.ends[-1]].tobytes()
        places = zip((self.starts - begin).tolist(), (self.ends - begin).tolist(), strict=True)
        return [data[start:end] for start, end in places]

    def part(self, begin: int = 0, end: int | None = None) -> MessageArray:
        """Messages `begin` to `end`, in the same buffer."""
        return MessageArray(self.data, self.starts[begin:end], self.ends[begin:end])

    def where(self, which: Bools) -> MessageArray:
        """The messages that a mask selects, in the same buffer."""
        return MessageArray(self.data, self.starts[which], self.ends[which])

    def without_prefix(self, width: int) -> MessageArray:
        """The messages without their first bytes; a shorter message then has a negative length."""
        return MessageArray(self.data, self.starts + width, self.ends) if width else self

    def replaced(self, begins: Ints, ends: Ints, contents: Sequence[bytes]) -> MessageArray:
        """Copy the messages into one buffer, with other bytes in some places, each within one message.

        Args:
            begins: Where the places begin in `data`, ascending.
            ends: Where they end.
            contents: What stands there.
        """
        if not len(begins):
            return self
        first, last = int(self.starts[0]), int(self.ends[-1])
        whole = self.data[first:last].data
        parts: list[bytes | memoryview] = []
        at = 0
        for begin, end, content in zip((begins - first).tolist(), (ends - first).tolist(), contents, strict=True):
            parts += (whole[at:begin], content)
            at = end
        parts += (whole[at:], bytes(PADDING))
        lengths = np.fromiter(map(len, contents), np.int64, len(contents))
        moves = np.concatenate([[0], np.cumsum(lengths - (ends - begins))])  # behind so many places
        return MessageArray(
            np.frombuffer(b"".join(parts), np.uint8),
            self.starts - first + moves[np.searchsorted(ends, self.starts, side="right")],
            self.ends - first + moves[np.searchsorted(ends, self.ends, side="right")],
        )

    def trimmed(self) -> MessageArray:
        """The same messages, copied if they are less than half of their buffer, so that it can be freed."""
        if not len(self):
            return MessageArray.of()
        begin, end = int(self.starts[0]), int(self.ends[-1])
        if 2 * (end - begin) >= len(self.data):
            return self
        return MessageArray(self.data[begin : end + PADDING].copy(), self.starts - begin, self.ends - begin)


class ChunkedMessages:
    """A transaction's row messages in order; it grows as they arrive.

    Args:
        messages: The first messages.

    Attributes:
        size_bytes: Length of all messages together.
    """

    __slots__ = ("_chunks", "_ends", "size_bytes")

    def __init__(self, messages: Sequence[bytes] = ()) -> None:
        self._chunks: list[MessageArray] = []
        self._ends: list[int] = []  # number of messages up to the end of each chunk
        self.size_bytes: int = 0
        if messages:
            self.extend(MessageArray.of(messages))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChunkedMessages) and self.messages() == other.messages()

    __hash__: ClassVar[None]  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"ChunkedMessages({self.messages()})"

    @property
    def memory_bytes(self) -> int:
        """Memory they take."""
        return self.size_bytes + ROW_OVERHEAD_BYTES * len(self) + _CHUNK_OVERHEAD_BYTES * len(self._chunks)

    def longest(self) -> MessageArray:
        """The longest message; none if there are none."""
        return max(
            (chunk.longest() for chunk in self._chunks),
            key=lambda messages: messages.size_bytes,
            default=MessageArray.of(),
        )

    def extend(self, messages: MessageArray) -> None:
        """Append messages."""
        if len(messages):
            self._ends.append(len(self) + len(messages))
            self._chunks.append(messages.trimmed())
            self.size_bytes += messages.size_bytes

    def part(self, begin: int = 0, end: int | None = None) -> MessageArray:
        """Messages `begin` to `end`, in one buffer."""
        end = len(self) if end is None else end
        parts = []
        for number in range(bisect_right(self._ends, begin), len(self._chunks)):
            first = self._ends[number - 1] if number else 0
            if first >= end:
                break
            parts.append(self._chunks[number].part(max(0, begin - first), end - first))
        return MessageArray.concatenated(parts)

    def messages(self) -> list[bytes]:
        """Each message as bytes."""
        return self.part().messages()

    def clear(self) -> None:
        """Remove all messages."""
        self._chunks.clear()
        self._ends.clear()
        self.size_bytes = 0
