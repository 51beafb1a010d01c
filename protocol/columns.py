"""Runs of row messages -> Arrow columns, without Python per row or value: the bulk twin of `pgoutput`.

All messages of a run lie in one buffer. A position in each message is stepped through the columns, in all
messages at once: a step reads the kind and length of each message's value, checks that the value ends within
its message, and hands the column's values to their type's reader. What `pgoutput.decode` refuses is refused
here; a property test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from protocol.decode_chunk import Column, DecodeChunk, decode_in_chunks
from protocol.errors import MalformedMessage, UnsupportedMessage
from protocol.message_array import MessageArray
from protocol.messages import Value, ValueKind
from protocol.values.value_array import Bools, Bytes, Ints, Unrepresentable, ValueArray, merge, numbers_at

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from protocol.messages import Relation, Tuple
    from protocol.values.types import ColumnType

INSERT, UPDATE, DELETE = b"IUD"
TAG_NAMES: Final = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}  # as logicalrep_message_type
_KEY, _OLD, _NEW = b"KON"
_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"
_KNOWN_KINDS: Final = np.isin(np.arange(256), [_NULL, _UNCHANGED, _TEXT, _BINARY])
_COUNTED_KINDS: Final = np.isin(np.arange(256), [_TEXT, _BINARY])

_XID_BYTES: Final = 4
_RELATION_BYTES: Final = 4
_TUPLE_HEADER_BYTES: Final = 3  # the mark, the number of columns
_VALUE_HEADER_BYTES: Final = 5  # the kind, the length


_KINDS: Final = {kind.value[0]: kind for kind in ValueKind}
_EMPTY: Final = {kind.value[0]: Value(kind) for kind in (ValueKind.NULL, ValueKind.UNCHANGED_TOAST)}


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
        messages: Sequence[bytes | bytearray | memoryview] | MessageArray,
        *,
        skip_bytes: int = 0,
        in_stream: bool = False,
    ) -> None:
        joined = messages if isinstance(messages, MessageArray) else MessageArray.of(messages)
        self._joined = joined.without_prefix(skip_bytes)
        data, starts = self._joined.data, self._joined.starts
        self._body = 1 + (_XID_BYTES if in_stream else 0) + _RELATION_BYTES
        lengths = self._joined.lengths
        if (lengths < self._body).any():
            index = int((lengths < self._body).argmax())
            raise MalformedMessage("row", max(int(lengths[index]), 0), f"message {index} of the run ends here")
        self.tags: Bytes = data[starts]
        unknown = (self.tags != INSERT) & (self.tags != UPDATE) & (self.tags != DELETE)
        if unknown.any():
            tag = chr(self.tags[unknown.argmax()])
            raise MalformedMessage("row", 0, f"{tag!r} is none of the tags I, U and D")
        self.relation_ids: npt.NDArray[np.uint32] = numbers_at(data, starts, "u4", self._body - _RELATION_BYTES)
        self.xids: npt.NDArray[np.uint32] | None = numbers_at(data, starts, "u4", 1) if in_stream else None
        if self.xids is not None and not self.xids.all():
            tag = TAG_NAMES[int(self.tags[(self.xids == 0).argmax()])]
            raise MalformedMessage(tag, 1, "invalid transaction ID 0")

    def __len__(self) -> int:
        return len(self.tags)

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
            types: Of each of its columns.
            rows: Indices of the messages, ascending; None for all.
            unrepresentable: What becomes of a value that its column's type cannot hold; with "show" it is NULL, also
                a key's, and stands as text in a column of its own.
            key: Positions of columns by which rows are found. A value of theirs that cannot be held is an error
                even with "null": as NULL it would find none, or another row's.
            wanted: Positions of the columns whose values are read, the others are NULL; None for all.

        Returns:
            A table with the columns
            `op` (uint8): the message's tag;
            `old` (uint8): which tuple there is of the old row, 75 (K) its key, 79 (O) all of it, 0 none;
            `new_<i>` for each column i: the new row's value, NULL in deletes and where it is unchanged TOAST;
            `old_<i>` for each column i, if any message has an old tuple: its value, else NULL;
            `unchanged_<i>` (bool) if any new tuple marks column i as unchanged TOAST: whether this one does;
            `unheld_<i>`, `oldunheld_<i>` (string) with "show", if any new, or old, value of column i cannot be held:
            the text that PostgreSQL has for it, or for an array's element; NULL for one that can be held.

        Raises:
            MalformedMessage: A message does not have the form of its tag or the relation's number of
                columns, or a value not that of its type.
            UnrepresentableValue: A value cannot be held, and the policy is "error" or it is a key's; `row` is
                its row in the table that would have been returned.
            UnsupportedMessage: A value is in binary form, and its type is read from text only.
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
        parts = decode_in_chunks(
            self._joined,
            chosen,
            lambda index: TAG_NAMES[int(self.tags[index])],
            lambda stretch, some: _decode(stretch, self.tags[some], self._body, columns),
        )
        return _table(parts, columns)

    def raw(
        self, relation: Relation, columns: Collection[int], rows: npt.NDArray[np.int64]
    ) -> tuple[list[Tuple | None], list[Tuple | None]]:
        """Values of some columns as they were sent, undecoded.

        Args:
            relation: As it was when these messages were sent.
            columns: Their positions, at most all of the relation's.
            rows: Indices of the messages, ascending.

        Returns:
            The old tuples and the new ones, of each message; None where it has none. A tuple has the values in the
            order of `columns`.

        Raises:
            MalformedMessage: A message does not have the form of its tag or the relation's number of columns.
        """
        parts = decode_in_chunks(
            self._joined,
            rows,
            lambda index: TAG_NAMES[int(self.tags[index])],
            lambda stretch, some: _raw(stretch, self.tags[some], self._body, relation, columns),
        )
        return [one for olds, _ in parts for one in olds], [one for _, news in parts for one in news]


class _Part(NamedTuple):
    """What one stretch decodes to, a row for each message; `unheld` is by the name that the table has for it."""

    op: Bytes
    old_mark: Bytes
    new: list[pa.Array]
    old: list[pa.Array] | None
    unchanged: dict[int, Bools]
    unheld: dict[str, pa.Array]


def _marks(stretch: DecodeChunk, tags: Bytes, positions: Ints) -> tuple[Bytes, Bools]:
    """The marks of the first tuples, which stand at `positions`, and whether those are of the old rows."""
    every = np.arange(len(stretch))
    stretch.check(positions < stretch.ends, every, positions, "expected a tuple, nothing remains")
    marks = stretch.data[positions]
    has_old = (marks == _KEY) | (marks == _OLD)
    fine = np.where(tags == INSERT, marks == _NEW, has_old | ((tags == UPDATE) & (marks == _NEW)))
    stretch.check(fine, every, positions, "unexpected mark of a tuple")
    return marks, has_old


def _check_behind_old(stretch: DecodeChunk, tags: Bytes, positions: Ints, has_old: Bools) -> None:
    """Behind an old tuple, which ends at its message's place of `positions`, there is nothing, or the new one."""
    deleted = np.flatnonzero(tags == DELETE)
    stretch.check_end(deleted, positions[deleted])
    updated = np.flatnonzero(has_old & (tags == UPDATE))
    marked = stretch.data[positions[updated]] == _NEW
    stretch.check(marked, updated, positions[updated], "expected a tuple marked N")


def _raw(
    stretch: DecodeChunk, tags: Bytes, body: int, relation: Relation, columns: Collection[int]
) -> tuple[list[Tuple | None], list[Tuple | None]]:
    positions = stretch.starts + body
    _, has_old = _marks(stretch, tags, positions)
    names = [column.name for column in relation.columns]
    owners = np.flatnonzero(has_old)
    tuples = _Tuples(stretch, owners, positions[owners], len(names))
    olds = tuples.raw(names, columns)
    positions[owners] = tuples.positions
    _check_behind_old(stretch, tags, positions, has_old)
    owners = np.flatnonzero(tags != DELETE)
    tuples = _Tuples(stretch, owners, positions[owners], len(names))
    news = tuples.raw(names, columns)
    stretch.check_end(owners, tuples.positions)
    return olds, news


def _decode(stretch: DecodeChunk, tags: Bytes, body: int, columns: Sequence[Column]) -> _Part:
    positions = stretch.starts + body
    marks, has_old = _marks(stretch, tags, positions)
    old = None
    unheld: dict[str, pa.Array] = {}
    if has_old.any():
        owners = np.flatnonzero(has_old)
        tuples = _Tuples(stretch, owners, positions[owners], len(columns))
        old = []
        for i, column in enumerate(columns):
            old.append(tuples.read(column, unchanged=None))
            if tuples.unheld is not None:
                unheld[f"oldunheld_{i}"] = tuples.unheld
        positions[owners] = tuples.positions
        _check_behind_old(stretch, tags, positions, has_old)
    unchanged: dict[int, Bools] = {}
    owners = np.flatnonzero(tags != DELETE)
    tuples = _Tuples(stretch, owners, positions[owners], len(columns))
    new = []
    for i, column in enumerate(columns):
        new.append(tuples.read(column, found := np.zeros(len(stretch), np.bool_)))
        if found.any():
            unchanged[i] = found
        if tuples.unheld is not None:
            unheld[f"unheld_{i}"] = tuples.unheld
    stretch.check_end(owners, tuples.positions)
    return _Part(tags, np.where(has_old, marks, np.uint8(0)), new, old, unchanged, unheld)


class _Tuples:
    """Tuples, at most one in each message of a stretch, read column by column.

    Args:
        owners: Indices of the messages that have one.
        positions: Of the marks in front of the tuples.

    Attributes:
        positions: Where reading goes on, in each message.
        unheld: By message, texts of the last column's values that could not be held; None where none are to be shown.
    """

    def __init__(self, stretch: DecodeChunk, owners: Ints, positions: Ints, columns: int) -> None:
        self._stretch = stretch
        self._owners = owners
        self._ends = stretch.ends[owners]
        self.unheld: pa.Array | None = None
        self.positions = self._following = positions + _TUPLE_HEADER_BYTES
        stretch.check(self.positions <= self._ends, owners, positions, "the message ends in its tuple's header")
        counts = numbers_at(stretch.data, positions, "u2", 1)
        stretch.check(counts == columns, owners, positions, f"expected a tuple of {columns} columns")

    def read(self, column: Column, unchanged: Bools | None) -> pa.Array:
        """The next column's values by message, NULL in those that have no tuple or no value.

        `unchanged` is set for messages with an unchanged TOAST value; where it is None they may have none.
        """
        count = len(self._stretch)
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

    def _step(self, name: str) -> tuple[Bytes, ValueArray, bool]:
        """The next column's kinds and values, and whether all have one of one kind; what follows is `_following`."""
        stretch = self._stretch
        # One read has the kind and the length: where a value has none, what is read there is not used.
        words = numbers_at(stretch.data, self.positions, "u8")
        kinds = (words >> np.uint64(56)).astype(np.uint8)
        lengths = ((words >> np.uint64(24)) & np.uint64(0xFFFFFFFF)).astype(np.int64)
        kind = int(kinds[0])
        alike = kind in {_TEXT, _BINARY} and (kinds == kind).all()
        if alike:
            starts = self.positions + _VALUE_HEADER_BYTES
        else:
            counted = _COUNTED_KINDS[kinds]
            lengths[~counted] = 0
            starts = self.positions + np.where(counted, _VALUE_HEADER_BYTES, 1)
        following = starts + lengths
        # A negative length reads as one of 2 GiB and more; what lies within the message was read within it.
        fits = following <= self._ends
        stretch.check(fits, self._owners, self.positions, f'the value of column "{name}" does not end here')
        self._following = following
        return kinds, ValueArray(stretch.data, starts, lengths), alike

    def raw(self, names: Sequence[str], columns: Collection[int]) -> list[Tuple | None]:
        """The values of these columns, by message; None for those without a tuple. Reads all of the tuples."""
        found: list[Tuple | None] = [None] * len(self._stretch)
        if not len(self._owners):
            return found
        by_column: dict[int, list[Value]] = {}
        content = self._stretch.data.tobytes()  # a slice of it costs less than one of an array
        for i, name in enumerate(names):
            kinds, values, _ = self._step(name)
            self._check_kinds(kinds, name)
            if i in columns:
                ends = (values.starts + values.lengths).tolist()
                by_column[i] = [
                    _EMPTY.get(kind) or Value(_KINDS[kind], content[start:end])
                    for kind, start, end in zip(kinds.tolist(), values.starts.tolist(), ends, strict=True)
                ]
            self.positions = self._following
        tuples = zip(*(by_column[i] for i in columns), strict=True) if columns else ((),) * len(self._owners)
        for owner, one in zip(self._owners.tolist(), tuples, strict=True):
            found[owner] = one
        return found

    def _check_kinds(self, kinds: Bytes, name: str) -> None:
        reason = f'unknown kind of value in column "{name}"'
        self._stretch.check(_KNOWN_KINDS[kinds], self._owners, self.positions, reason)

    def _read_mixed(
        self, column: Column, kinds: Bytes, values: ValueArray, unchanged: Bools | None
    ) -> list[tuple[Ints, pa.Array]]:
        stretch, owners = self._stretch, self._owners
        self._check_kinds(kinds, column.name)
        if unchanged is not None:
            unchanged[owners] = kinds == _UNCHANGED
        else:
            reason = f'unchanged TOAST in an old tuple, column "{column.name}"'
            stretch.check(kinds != _UNCHANGED, owners, self.positions, reason)
        parts = []
        for kind in (_TEXT, _BINARY):
            which = np.flatnonzero(kinds == kind)
            if len(which):
                some = owners[which]
                parts.append((some, self._read_values(column, some, values.select(which), kind)))
        return parts

    def _read_values(self, column: Column, owners: Ints, values: ValueArray, kind: int) -> pa.Array:
        if kind == _BINARY and not column.type.binary:
            reason = f"a value of type {column.type.oid} in binary form, which is read from text only"
            raise UnsupportedMessage(f'column "{column.name}": {reason}')
        if not column.shown:
            return self._stretch.read(column, owners, values, binary=kind == _BINARY)
        array, texts = self._stretch.read_showing(column, owners, values, binary=kind == _BINARY)
        if texts is not None:
            found = merge([(owners, pa.array(texts, pa.string()))], len(self._stretch), pa.string())
            self.unheld = found if self.unheld is None else pc.coalesce(self.unheld, found)
        return array


def _table(parts: Sequence[_Part], columns: Sequence[Column]) -> pa.Table:
    """One table of all stretches, with the columns that any of them needs."""
    sizes = [len(part.op) for part in parts]
    fields = [pa.field("op", pa.uint8(), nullable=False), pa.field("old", pa.uint8(), nullable=False)]
    arrays: list[list[pa.Array]] = [[pa.array(p.op) for p in parts], [pa.array(p.old_mark) for p in parts]]
    for i, column in enumerate(columns):
        fields.append(pa.field(f"new_{i}", column.type.arrow))
        arrays.append([part.new[i] for part in parts])
    if any(part.old is not None for part in parts):
        for i, column in enumerate(columns):
            arrow = column.type.arrow
            fields.append(pa.field(f"old_{i}", arrow))
            arrays.append(
                [part.old[i] if part.old else pa.nulls(size, arrow) for part, size in zip(parts, sizes, strict=True)]
            )
    for i in sorted({i for part in parts for i in part.unchanged}):
        fields.append(pa.field(f"unchanged_{i}", pa.bool_(), nullable=False))
        arrays.append(
            [pa.array(part.unchanged.get(i, np.zeros(size, np.bool_))) for part, size in zip(parts, sizes, strict=True)]
        )
    for name in sorted({name for part in parts for name in part.unheld}):
        fields.append(pa.field(name, pa.string()))
        arrays.append([p.unheld.get(name, pa.nulls(size, pa.string())) for p, size in zip(parts, sizes, strict=True)])
    chunked = [pa.chunked_array(chunks, field.type) for chunks, field in zip(arrays, fields, strict=True)]
    return pa.Table.from_arrays(chunked, schema=pa.schema(fields))
