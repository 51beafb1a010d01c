"""Runs of row messages -> Arrow columns, without Python per row or value: the bulk twin of `pgoutput`.

All messages of a run lie in one buffer. A position in each message is stepped through the columns, in all
messages at once: a step reads the kind and length of each message's value, checks that the value ends within
its message, and hands the column's values to their type's reader. What `pgoutput.decode` refuses is refused
here; a property test compares the two.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol import readers
from protocol.errors import MalformedMessage, UnrepresentableValue, UnsupportedMessage
from protocol.slices import (
    BadValueError,
    Bools,
    Bytes,
    Ints,
    Joined,
    Slices,
    TooLargeError,
    UnheldValue,
    Unrepresentable,
    merge,
    numbers_at,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from protocol.messages import Relation
    from protocol.types import ColumnType

INSERT, UPDATE, DELETE = b"IUD"
_NAMES: Final = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}  # as logicalrep_message_type
_KEY, _OLD, _NEW = b"KON"
_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"
_KNOWN_KINDS: Final = np.isin(np.arange(256), [_NULL, _UNCHANGED, _TEXT, _BINARY])
_COUNTED_KINDS: Final = np.isin(np.arange(256), [_TEXT, _BINARY])

_XID_BYTES: Final = 4
_RELATION_BYTES: Final = 4


class RowMessages:
    """A run of Insert, Update and Delete messages as received.

    Args:
        messages: One message each.
        skip_bytes: What stands before the pgoutput message in each: 25 where XLogData is left around it.
        in_stream: They stand between Stream Start and Stream Stop, so an xid follows each tag.

    Attributes:
        tags: The messages' first bytes.
        relation_ids: The relations they name.
        xids: The (sub)transactions that made the changes; None outside a stream.

    Raises:
        MalformedMessage: One is no row message, or ends before its relation's OID.
    """

    def __init__(
        self,
        messages: Sequence[bytes | bytearray | memoryview],
        *,
        skip_bytes: int = 0,
        in_stream: bool = False,
    ) -> None:
        self._joined = Joined.of(messages)
        data, starts = self._joined.data, self._joined.starts + skip_bytes
        self._body = 1 + (_XID_BYTES if in_stream else 0) + _RELATION_BYTES
        short = starts + self._body > self._joined.ends
        if short.any():
            index = int(short.argmax())
            length = int(self._joined.ends[index] - starts[index])
            raise MalformedMessage("row", max(length, 0), f"message {index} of the run ends here")
        self._starts = starts
        self.tags: Bytes = data[starts]
        unknown = (self.tags != INSERT) & (self.tags != UPDATE) & (self.tags != DELETE)
        if unknown.any():
            tag = chr(self.tags[unknown.argmax()])
            raise MalformedMessage("row", 0, f"{tag!r} is none of the tags I, U and D")
        self.relation_ids: npt.NDArray[np.uint32] = numbers_at(
            data, starts, "u4", self._body - _RELATION_BYTES
        )
        self.xids: npt.NDArray[np.uint32] | None = numbers_at(data, starts, "u4", 1) if in_stream else None
        if self.xids is not None and not self.xids.all():
            tag = _NAMES[int(self.tags[(self.xids == 0).argmax()])]
            raise MalformedMessage(tag, 1, "invalid transaction ID 0")

    def __len__(self) -> int:
        return len(self.tags)

    def decode(
        self,
        relation: Relation,
        types: Sequence[ColumnType],
        rows: npt.NDArray[np.int64] | None = None,
        *,
        unrepresentable: Unrepresentable = "error",
    ) -> pa.Table:
        """Decode messages of one relation, in their order.

        Args:
            relation: As it was when these messages were sent.
            types: Of each of its columns.
            rows: Indices of the messages, ascending; None for all.
            unrepresentable: What becomes of a value that its column's type cannot hold.

        Returns:
            A table with the columns
            `op` (uint8): the message's tag;
            `old` (uint8): which tuple there is of the old row, 75 (K) its key, 79 (O) all of it, 0 none;
            `new_<i>` for each column i: the new row's value, NULL in deletes and where it is unchanged TOAST;
            `old_<i>` for each column i, if any message has an old tuple: its value, else NULL;
            `unchanged_<i>` (bool) if any new tuple marks column i as unchanged TOAST: whether this one does.

        Raises:
            MalformedMessage: A message does not have the form of its tag or the relation's number of
                columns, or a value not that of its type.
            UnrepresentableValue: A value cannot be held, and the policy is "error"; `row` is its row in the
                table that would have been returned.
            UnsupportedMessage: A value is in binary form, and its type is read from text only.
            ValueError: A message is of another relation; a mistake of the caller's.
        """
        chosen = np.arange(len(self)) if rows is None else rows
        if (self.relation_ids[chosen] != relation.relation_id).any():
            raise ValueError(f"rows of other relations than {relation.relation_id}")
        columns = _Columns([c.name for c in relation.columns], list(types), unrepresentable)
        parts: list[_Part] = []
        waiting = list(self._joined.stretches(chosen))[::-1]
        while waiting:
            stretch = waiting.pop()
            try:
                parts.append(_decode(self._messages(chosen[stretch], stretch.start), columns))
            except TooLargeError:
                middle = (stretch.start + stretch.stop) // 2
                if middle == stretch.start:
                    raise
                waiting += [slice(middle, stretch.stop), slice(stretch.start, middle)]
        return _table(parts, columns.types)

    def _messages(self, rows: Ints, first_row: int) -> _Messages:
        begin = int(self._joined.starts[rows[0]])
        starts, ends = self._starts[rows] - begin, self._joined.ends[rows] - begin
        return _Messages(self._joined.data[begin:], starts, ends, self.tags[rows], self._body, first_row)
