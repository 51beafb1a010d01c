"""Row messages -> Arrow columns, without Python per row or value: the bulk twin of `pgoutput`.

All messages lie in one buffer, and their tuples are read column by column (`decode_chunk`). A message that
`pgoutput.decode` refuses is refused here; a property test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgbridge.protocol.bulk.decode_chunk import Column, DecodeChunk, Tuples, ValuePlaces, decode_in_chunks
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec.pgoutput import MESSAGE_TYPES
from pgbridge.protocol.errors import MalformedMessage
from pgbridge.protocol.values.value_array import Bools, Bytes, Ints, Unrepresentable, numbers_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pgbridge.protocol.codec.messages import Relation, Tuple
    from pgbridge.protocol.values.types import ColumnType

INSERT, UPDATE, DELETE = b"IUD"
_KEY, _OLD, _NEW = b"KON"

ReadT = TypeVar("ReadT")

_XID_BYTES: Final = 4
_RELATION_BYTES: Final = 4


class RowMessages:
    """Insert, Update and Delete messages as received.

    Args:
        messages: One message each.
        skip_bytes: Length of the prefix before each pgoutput message: 25 if XLogData is left around it.
        in_stream: The messages stand between Stream Start and Stream Stop, so an xid follows each tag.

    Attributes:
        tags: The messages' first bytes.
        relation_ids: The OIDs of their relations.
        xids: The (sub)transactions that made the changes; None outside a stream.

    Raises:
        MalformedMessage: A message is not a row message, or ends before its relation's OID.
    """

    def __init__(
        self,
        messages: Sequence[bytes | bytearray | memoryview] | MessageArray,
        *,
        skip_bytes: int = 0,
        in_stream: bool = False,
    ) -> None:
        whole = messages if isinstance(messages, MessageArray) else MessageArray.of(messages)
        self._messages = whole.without_prefix(skip_bytes)
        data, starts = self._messages.data, self._messages.starts
        self._body = 1 + (_XID_BYTES if in_stream else 0) + _RELATION_BYTES
        lengths = self._messages.lengths
        if (lengths < self._body).any():
            index = int((lengths < self._body).argmax())
            reason = f"row message {index} ends before its relation's OID"
            raise MalformedMessage("row", max(int(lengths[index]), 0), reason)
        self.tags: Bytes = data[starts]
        unknown = (self.tags != INSERT) & (self.tags != UPDATE) & (self.tags != DELETE)
        if unknown.any():
            tag = chr(self.tags[unknown.argmax()])
            raise MalformedMessage("row", 0, f"{tag!r} is none of the tags I, U and D")
        self.relation_ids: npt.NDArray[np.uint32] = numbers_at(data, starts, "u4", self._body - _RELATION_BYTES)
        self.xids: npt.NDArray[np.uint32] | None = numbers_at(data, starts, "u4", 1) if in_stream else None
        if self.xids is not None and not self.xids.all():
            raise MalformedMessage(self._name(int((self.xids == 0).argmax())), 1, "invalid transaction ID 0")

    def __len__(self) -> int:
        return len(self.tags)

    def _name(self, index: int) -> str:
        """A message's name in errors."""
        return MESSAGE_TYPES[int(self.tags[index])]

    def decode(
        self,
        relation: Relation,
        types: Sequence[ColumnType],
        rows: npt.NDArray[np.int64] | None = None,
        *,
        unrepresentable: Unrepresentable | Literal["show"] = "error",
        key: Collection[int] = (),
        wanted: Collection[int] | None = None,
    ) -> pa.Table:
        """Decode messages of one relation, in their order.

        Args:
            relation: As it was when these messages were sent.
            types: The types of its columns.
            rows: Indices of the messages, ascending; None for all.
            unrepresentable: What to do with a value that its column's type cannot hold: raise, make it NULL, or, with
                "show", make it NULL (also in a key) and add its text in a column of its own.
            key: Positions of the columns by which rows are found. A value in them that cannot be held is an error
                even with "null": as NULL it would find no row, or another one.
            wanted: Positions of the columns whose values are read, the others are NULL; None for all.

        Returns:
            A table with the columns
            `op` (uint8): the message's tag;
            `old` (uint8): the old tuple's mark: 75 (K) for the key, 79 (O) for the whole row, 0 for no old tuple;
            `new_<i>` for each column i: the new row's value, NULL in deletes and where it is unchanged TOAST;
            `old_<i>` for each column i, if any message has an old tuple: its value, else NULL;
            `unchanged_<i>` (bool) if any new tuple marks column i as unchanged TOAST: whether this one does;
            `unheld_<i>`, `oldunheld_<i>` (string) with "show", if any new, or old, value of column i cannot be held:
            the text that PostgreSQL has for it, or for an array's element; NULL for a value that can be held.

        Raises:
            MalformedMessage: A message does not have the form of its tag or the relation's number of
                columns, or a value does not have the form of its type.
            UnrepresentableValue: A value cannot be held, and the policy is "error" or the column is in the key;
                `row` is its row in the table that would have been returned.
            UnsupportedBinary: A value is in binary form, and its type is read from text only.
            ValueError: A message is of another relation; a mistake of the caller's.
        """
        chosen = np.arange(len(self)) if rows is None else rows
        if (self.relation_ids[chosen] != relation.relation_id).any():
            raise ValueError(f"rows of other relations than {relation.relation_id}")
        columns = [
            Column(
                column.name,
                type_,
                "error" if i in key or unrepresentable == "show" else unrepresentable,
                shown=unrepresentable == "show",
                wanted=wanted is None or i in wanted,
            )
            for i, (column, type_) in enumerate(zip(relation.columns, types, strict=True))
        ]
        decoded = decode_in_chunks(
            self._messages,
            chosen,
            self._name,
            lambda chunk, part: _decode(chunk, self.tags[part], self._body, columns),
        )
        return _table(decoded, columns)

    def raw(
        self, relation: Relation, columns: Collection[int], rows: npt.NDArray[np.int64]
    ) -> tuple[list[Tuple | None], list[Tuple | None]]:
        """Return values of some columns as they were sent, undecoded.

        Args:
            relation: As it was when these messages were sent.
            columns: Positions of the columns.
            rows: Indices of the messages, ascending.

        Returns:
            The old tuples and the new ones, of each message; None where it has none. A tuple has the values in the
            order of `columns`.

        Raises:
            MalformedMessage: A message does not have the form of its tag or the relation's number of columns.
        """
        decoded = decode_in_chunks(
            self._messages,
            rows,
            self._name,
            lambda chunk, part: _raw(chunk, self.tags[part], self._body, relation, columns),
        )
        return [values for olds, _ in decoded for values in olds], [values for _, news in decoded for values in news]

    def places(self, relation: Relation, columns: Collection[int], rows: npt.NDArray[np.int64]) -> ValuePlaces:
        """Return where values of some columns stand in the messages' buffer: the old tuples' and the new ones'.

        The arguments and errors are those of `raw`.
        """
        decoded = decode_in_chunks(
            self._messages,
            rows,
            self._name,
            lambda chunk, part: _places(
                chunk, self.tags[part], self._body, relation, columns, int(self._messages.starts[part[0]])
            ),
        )
        return [place for places in decoded for place in places]


class _Decoded(NamedTuple):
    """A chunk's columns, a row for each message.

    Attributes:
        unheld: Columns `unheld_<i>` and `oldunheld_<i>` of the table, by name.
    """

    op: Bytes
    old_mark: Bytes
    new: list[pa.Array]
    old: list[pa.Array] | None
    unchanged: dict[int, Bools]
    unheld: dict[str, pa.Array]


def _marks(chunk: DecodeChunk, tags: Bytes, positions: Ints) -> tuple[Bytes, Bools]:
    """Read the marks of the messages' first tuples, which stand at `positions`.

    Returns:
        The marks, and which of the tuples are old ones.
    """
    every = np.arange(len(chunk))
    chunk.check(positions < chunk.ends, every, positions, "expected a tuple, nothing remains")
    marks = chunk.data[positions]
    has_old = (marks == _KEY) | (marks == _OLD)
    fine = np.where(tags == INSERT, marks == _NEW, has_old | ((tags == UPDATE) & (marks == _NEW)))
    chunk.check(fine, every, positions, "unexpected mark of a tuple")
    return marks, has_old


def _check_behind_old(chunk: DecodeChunk, tags: Bytes, positions: Ints, has_old: Bools) -> None:
    """Check that a delete ends at the end of its old tuple, and that an update's new tuple follows there."""
    deleted = np.flatnonzero(tags == DELETE)
    chunk.check_end(deleted, positions[deleted])
    updated = np.flatnonzero(has_old & (tags == UPDATE))
    marked = chunk.data[positions[updated]] == _NEW
    chunk.check(marked, updated, positions[updated], "expected a tuple marked N")


def _raw(
    chunk: DecodeChunk, tags: Bytes, body: int, relation: Relation, columns: Collection[int]
) -> tuple[list[Tuple | None], list[Tuple | None]]:
    names = [column.name for column in relation.columns]
    olds, news = _both(chunk, tags, body, len(names), lambda tuples: tuples.raw(names, columns))
    return olds, news


def _places(
    chunk: DecodeChunk, tags: Bytes, body: int, relation: Relation, columns: Collection[int], begin: int
) -> ValuePlaces:
    """The places in the buffer whose part from `begin` on the chunk has."""
    names = [column.name for column in relation.columns]
    both = _both(chunk, tags, body, len(names), lambda tuples: tuples.places(names, columns))
    moved = begin - int(chunk.starts[0])
    return [(i, kinds, begins + moved, ends + moved) for places in both for i, kinds, begins, ends in places]


def _both(
    chunk: DecodeChunk, tags: Bytes, body: int, columns: int, read: Callable[[Tuples], ReadT]
) -> tuple[ReadT, ReadT]:
    """Read the old tuples, then the new ones, of messages with so many columns."""
    positions = chunk.starts + body
    _, has_old = _marks(chunk, tags, positions)
    owners = np.flatnonzero(has_old)
    tuples = Tuples(chunk, owners, positions[owners], columns)
    olds = read(tuples)
    positions[owners] = tuples.positions
    _check_behind_old(chunk, tags, positions, has_old)
    owners = np.flatnonzero(tags != DELETE)
    tuples = Tuples(chunk, owners, positions[owners], columns)
    news = read(tuples)
    chunk.check_end(owners, tuples.positions)
    return olds, news


def _decode(chunk: DecodeChunk, tags: Bytes, body: int, columns: Sequence[Column]) -> _Decoded:
    positions = chunk.starts + body
    marks, has_old = _marks(chunk, tags, positions)
    old = None
    unheld: dict[str, pa.Array] = {}
    if has_old.any():
        owners = np.flatnonzero(has_old)
        tuples = Tuples(chunk, owners, positions[owners], len(columns))
        old = []
        for i, column in enumerate(columns):
            old.append(tuples.read(column, unchanged=None))
            if tuples.unheld is not None:
                unheld[f"oldunheld_{i}"] = tuples.unheld
        positions[owners] = tuples.positions
        _check_behind_old(chunk, tags, positions, has_old)
    unchanged: dict[int, Bools] = {}
    owners = np.flatnonzero(tags != DELETE)
    tuples = Tuples(chunk, owners, positions[owners], len(columns))
    new = []
    for i, column in enumerate(columns):
        new.append(tuples.read(column, is_unchanged := np.zeros(len(chunk), np.bool_)))
        if is_unchanged.any():
            unchanged[i] = is_unchanged
        if tuples.unheld is not None:
            unheld[f"unheld_{i}"] = tuples.unheld
    chunk.check_end(owners, tuples.positions)
    return _Decoded(tags, np.where(has_old, marks, np.uint8(0)), new, old, unchanged, unheld)


def _table(decoded: Sequence[_Decoded], columns: Sequence[Column]) -> pa.Table:
    """Join the chunks' columns; a column that only some chunks have is filled up in the others."""
    sizes = [len(chunk.op) for chunk in decoded]
    fields = [pa.field("op", pa.uint8(), nullable=False), pa.field("old", pa.uint8(), nullable=False)]
    arrays: list[list[pa.Array]] = [
        [pa.array(chunk.op) for chunk in decoded],
        [pa.array(chunk.old_mark) for chunk in decoded],
    ]
    for i, column in enumerate(columns):
        fields.append(pa.field(f"new_{i}", column.type.arrow))
        arrays.append([chunk.new[i] for chunk in decoded])
    if any(chunk.old is not None for chunk in decoded):
        for i, column in enumerate(columns):
            arrow = column.type.arrow
            fields.append(pa.field(f"old_{i}", arrow))
            arrays.append(
                [
                    chunk.old[i] if chunk.old else pa.nulls(size, arrow)
                    for chunk, size in zip(decoded, sizes, strict=True)
                ]
            )
    for i in sorted({i for chunk in decoded for i in chunk.unchanged}):
        fields.append(pa.field(f"unchanged_{i}", pa.bool_(), nullable=False))
        arrays.append(
            [
                pa.array(chunk.unchanged.get(i, np.zeros(size, np.bool_)))
                for chunk, size in zip(decoded, sizes, strict=True)
            ]
        )
    for name in sorted({name for chunk in decoded for name in chunk.unheld}):
        fields.append(pa.field(name, pa.string()))
        arrays.append(
            [chunk.unheld.get(name, pa.nulls(size, pa.string())) for chunk, size in zip(decoded, sizes, strict=True)]
        )
    chunked = [pa.chunked_array(chunks, field.type) for chunks, field in zip(arrays, fields, strict=True)]
    return pa.Table.from_arrays(chunked, schema=pa.schema(fields))
