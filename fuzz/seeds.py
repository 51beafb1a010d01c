"""Seeds: what real servers sent, in the form of a target's input."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from fuzz.targets import TYPES, framed
from pgbridge.protocol.codec.messages import Delete, Insert, Relation, Update, Value, ValueKind
from pgbridge.protocol.codec.pgoutput import decode, encode
from pgbridge.protocol.values.types import resolve
from tests.vectors import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ROW = Insert | Update | Delete
_MOST_COLUMNS = 8
_MOST_MESSAGES = 6


_BOUNDED = (
    b"[0:2]={7,8,9}",
    bytes.fromhex("00000001 00000000 00000017 00000002 fffffffb 00000004 00000007 00000004 00000008"),
)
"""An int4[] whose lower bound is not 1, in both forms: no recorded row has one."""


def seeds(target: str) -> Iterator[bytes]:
    """Yield inputs for a target of `TARGETS`."""
    if target == "walsender":
        for path in load.COPY_DATA_FILES:
            yield from load.copy_data(path)
        return
    if target in {"columns", "copy"}:
        yield from _bounded(target)
    for path in load.FILES:
        if target == "pgoutput":
            yield from (bytes([vector.in_stream]) + vector.data for vector in load.vectors(path))
        elif target == "columns":
            yield from _rows(path)
        else:
            yield from _copied(path)


def _bounded(target: str) -> Iterator[bytes]:
    """Rows with an array of other bounds: as an error, and as NULL."""
    types = [next(i for i, type_ in enumerate(TYPES) if type_.label == "int4[]")]
    kinds = (ValueKind.TEXT, ValueKind.BINARY)
    for flags, (kind, data) in itertools.product((0, 2), zip(kinds, _BOUNDED, strict=True)):
        if target == "columns":
            yield framed(flags, types, [encode(Insert(7, (Value(kind, data),)))])
        elif kind is ValueKind.BINARY:
            row = (1).to_bytes(2, "big") + len(data).to_bytes(4, "big") + data
            yield framed(flags | 4, types, [row, b"\xff\xff"])


def _rows(path: Path) -> Iterator[bytes]:
    """Some of one relation's rows at a time, cut to the first columns, as rows of relation 7."""
    for in_stream, relation, rows in _row_blocks(path):
        messages = [
            encode(type(row)(7, **{name: values[:_MOST_COLUMNS] for name, values in _tuples(row)}, xid=row.xid))
            for row in rows
        ]
        yield framed(int(in_stream), _indices(relation), messages)


def _copied(path: Path) -> Iterator[bytes]:
    """The same rows in COPY's form: the number of values, and the length and the bytes of each."""
    for _, relation, rows in _row_blocks(path):
        types = _indices(relation)
        messages = []
        for row in rows:
            for _, values in _tuples(row):
                fields = [
                    len(value.data).to_bytes(4, "big") + value.data if value.data else b"\xff\xff\xff\xff"
                    for value in values[:_MOST_COLUMNS]
                ]
                messages.append(len(fields).to_bytes(2, "big") + b"".join(fields))
        yield framed(4, types, [*messages, b"\xff\xff"])


def _tuples(row: _ROW) -> Iterator[tuple[str, tuple[Value, ...]]]:
    for name in ("new_tuple", "key_tuple", "old_tuple"):
        values = getattr(row, name, None)
        if values is not None:
            yield name, values


def _row_blocks(path: Path) -> Iterator[tuple[bool, Relation, list[_ROW]]]:
    """Some consecutive rows of one relation at a time, with whether they are in a stream."""
    relations: dict[int, Relation] = {}
    rows: list[tuple[bool, _ROW]] = []
    for vector in load.vectors(path):
        message = decode(vector.data, in_stream=vector.in_stream)
        if isinstance(message, Relation):
            relations[message.relation_id] = message
        elif isinstance(message, _ROW):
            rows.append((vector.in_stream, message))
    for (in_stream, relation_id), block in itertools.groupby(rows, lambda row: (row[0], row[1].relation_id)):
        some = [row for _, row in block]
        for first in range(0, len(some), _MOST_MESSAGES):
            yield in_stream, relations[relation_id], some[first : first + _MOST_MESSAGES]


def _indices(relation: Relation) -> list[int]:
    """The index in TYPES of each column's type, or of a type of the same kind."""
    found = []
    for column in relation.columns[:_MOST_COLUMNS]:
        type_ = resolve(column.type_oid, column.typmod)
        alike = [i for i, other in enumerate(TYPES) if (other.oid, other.kind) == (type_.oid, type_.kind)]
        found.append(alike[0] if alike else next(i for i, other in enumerate(TYPES) if other.kind is type_.kind))
    return found
