"""Messages in the buffers they came in: many without an object for each."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from protocol.values.value_array import PADDING, Bools, Bytes, Ints

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


ROW_OVERHEAD_BYTES = 60
"""What a message weighs in memory beside its bytes: where it lies, and what is left around it in the buffer."""

_PART_OVERHEAD_BYTES = 600  # of messages that came together: the arrays' own


@dataclass(frozen=True, slots=True, eq=False)
class MessageArray:
    """Messages in one buffer, one after another, perhaps with something between them.

    Attributes:
        data: The buffer, with PADDING bytes behind the last message.
        starts: Of each message its first byte's index in `data`.
        ends: Of each message the index of what follows its last byte.
    """

    data: Bytes
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, messages: Iterable[bytes | bytearray | memoryview] = ()) -> MessageArray:
        """Copy messages into one buffer."""
        found = list(messages)
        return cls.packed(b"".join([*found, bytes(PADDING)]), np.fromiter(map(len, found), np.int64, len(found)))

    @classmethod
    def packed(cls, data: bytes, lengths: Ints) -> MessageArray:
        """Messages of these lengths that lie there already, nothing between them, with PADDING bytes behind."""
        ends = np.cumsum(lengths)
        return cls(np.frombuffer(data, np.uint8), ends - lengths, ends)

    @classmethod
    def concatenated(cls, parts: Sequence[MessageArray]) -> MessageArray:
        """All messages in one buffer."""
        some = [part for part in parts if len(part)]
        if len(some) < 2:
            return some[0] if some else cls.of()
        begins = [int(part.starts[0]) for part in some]
        pieces = [part.data[begin : part.ends[-1]] for part, begin in zip(some, begins, strict=True)]
        places = np.cumsum([0, *map(len, pieces)])
        data = np.empty(places[-1] + PADDING, np.uint8)
        for place, piece in zip(places.tolist(), pieces, strict=False):
            # Each by itself: np.concatenate keeps Python's lock for all of them, and the receiver waits for it.
            data[place : place + len(piece)] = piece
        moves = (places[:-1] - begins).tolist()
        return cls(
            data,
            np.concatenate([part.starts + move for part, move in zip(some, moves, strict=True)]),
            np.concatenate([part.ends + move for part, move in zip(some, moves, strict=True)]),
        )

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]].tobytes()

    @property
    def lengths(self) -> Ints:
        """Of each message."""
        return self.ends - self.starts

    @property
    def size_bytes(self) -> int:
        """Of all messages."""
        return int(self.lengths.sum())

    def messages(self) -> list[bytes]:
        """Each by itself."""
        if not len(self):
            return []
        begin = int(self.starts[0])
        data = self.data[begin : self.ends[-1]].tobytes()
        places = zip((self.starts - begin).tolist(), (self.ends - begin).tolist(), strict=True)
        return [data[start:end] for start, end in places]

    def part(self, begin: int, end: int | None = None) -> MessageArray:
        """Messages one after another, in the same buffer."""
        return MessageArray(self.data, self.starts[begin:end], self.ends[begin:end])

    def where(self, which: Bools) -> MessageArray:
        """Those of a mask, in the same buffer."""
        return MessageArray(self.data, self.starts[which], self.ends[which])

    def without_prefix(self, width: int) -> MessageArray:
        """The messages without their first bytes; a shorter one ends before it starts."""
        return MessageArray(self.data, self.starts + width, self.ends) if width else self

    def trimmed(self) -> MessageArray:
        """The same messages; they do not keep a buffer alive of which they are less than half."""
        if not len(self):
            return MessageArray.of()
        begin, end = int(self.starts[0]), int(self.ends[-1])
        if 2 * (end - begin) >= len(self.data):
            return self
        return MessageArray(self.data[begin : end + PADDING].copy(), self.starts - begin, self.ends - begin)


class ChunkedMessages:
    """A transaction's row messages in order, as they come.

    Args:
        messages: The first ones.

    Attributes:
        size_bytes: Of all messages.
    """

    __slots__ = ("_ends", "_parts", "size_bytes")

    def __init__(self, messages: Sequence[bytes] = ()) -> None:
        self._parts: list[MessageArray] = []
        self._ends: list[int] = []  # of each part, how many messages there are up to its end
        self.size_bytes = 0
        if messages:
            self.extend(MessageArray.of(messages))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChunkedMessages) and self.messages() == other.messages()

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"ChunkedMessages({self.messages()})"

    @property
    def memory_bytes(self) -> int:
        """What they hold in memory."""
        return self.size_bytes + ROW_OVERHEAD_BYTES * len(self) + _PART_OVERHEAD_BYTES * len(self._parts)

    def extend(self, messages: MessageArray) -> None:
        """Those that come next."""
        if len(messages):
            self._ends.append(len(self) + len(messages))
            self._parts.append(messages.trimmed())
            self.size_bytes += messages.size_bytes

    def part(self, begin: int = 0, end: int | None = None) -> MessageArray:
        """Messages one after another."""
        end = len(self) if end is None else end
        found = []
        for number in range(bisect_right(self._ends, begin), len(self._parts)):
            first = self._ends[number - 1] if number else 0
            if first >= end:
                break
            found.append(self._parts[number].part(max(0, begin - first), end - first))
        return MessageArray.concatenated(found)

    def messages(self) -> list[bytes]:
        """Each by itself."""
        return self.part().messages()

    def clear(self) -> None:
        """Forget them."""
        self._parts.clear()
        self._ends.clear()
        self.size_bytes = 0
