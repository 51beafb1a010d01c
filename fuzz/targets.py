"""The invariant: any bytes either decode to a value that encodes to the same bytes, or raise ProtocolError.

That is, whatever the bytes: no other exception, no hang, no Arrow table that fails validation, and no row that the bulk
decoder accepts and the strict codec refuses. Each target is a function of the bytes that raises if this is broken.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import numpy as np

from pgbridge.protocol.bulk.columns import RowMessages
from pgbridge.protocol.bulk.copy import CopyDecoder
from pgbridge.protocol.codec.messages import Column, Delete, Insert, Relation, Update
from pgbridge.protocol.codec.pgoutput import decode, encode
from pgbridge.protocol.codec.walsender import (
    XLogData,
    decode_copy_data,
    decode_standby_status_update,
    encode_primary_keepalive,
    encode_standby_status_update,
    encode_xlog_data,
)
from pgbridge.protocol.errors import ProtocolError
from pgbridge.protocol.values.pg_type import BUILTIN
from pgbridge.protocol.values.types import Kind, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pgbridge.protocol.values.types import ColumnType
    from pgbridge.protocol.values.value_array import Unrepresentable

_MOST_COLUMNS: Final = 9
_RELATION_ID: Final = 7
_SKIPPED: Final = bytes(25)
_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_IN_STREAM, _NULL_FOR_UNHELD, _WITH_HEADER = 1, 2, 4  # bits of the first byte


class Broken(AssertionError):
    """A decoder accepted bytes and returned something wrong."""


def _column_types() -> list[ColumnType]:
    """One type of each kind, decimals of some sizes, all ranges, and an array of each of these types that has one."""
    numeric = next(info.oid for info in BUILTIN.values() if info.name == "numeric")
    typmods = [(precision << 16 | scale) + 4 for precision, scale in ((12, 2), (38, 0), (38, 38), (1, 0), (18, 9))]
    scalars: dict[Kind, int] = {}
    for oid in BUILTIN:
        scalars.setdefault(resolve(oid, -1).kind, oid)
    scalars.pop(Kind.ARRAY)
    arrays = [info.oid for info in BUILTIN.values() if info.element in scalars.values()]
    ranges = [info.oid for info in BUILTIN.values() if info.subtype]
    without_typmod = [resolve(oid, -1) for oid in (*scalars.values(), *ranges, *arrays)]
    return [*without_typmod, *(resolve(numeric, typmod) for typmod in typmods)]


TYPES: Final = _column_types()
"""The types of columns in `columns` and `copy`: a byte of their input is an index into it, modulo its length."""


def pgoutput(data: bytes) -> None:
    """The strict codec: a byte that tells whether the message is in a stream, then the message."""
    if not data:
        return
    with contextlib.suppress(ProtocolError):
        message = decode(data[1:], in_stream=bool(data[0] & _IN_STREAM))
        _same(encode(message), data[1:])


def walsender(data: bytes) -> None:
    """CopyData, in both directions."""
    with contextlib.suppress(ProtocolError):
        message = decode_copy_data(data)
        _same(encode_xlog_data(message) if isinstance(message, XLogData) else encode_primary_keepalive(message), data)
    with contextlib.suppress(ProtocolError):
        _same(encode_standby_status_update(decode_standby_status_update(data)), data)


def columns(data: bytes) -> None:
    """The bulk decoder of rows, compared with the strict codec: rows of relation 7, as `framed` describes."""
    flags, types, messages = _unframed(data)
    in_stream = bool(flags & _IN_STREAM)
    names = [f"c{i}" for i in range(len(types))]
    relation_columns = tuple(Column(name, t.oid, t.typmod, False) for name, t in zip(names, types, strict=True))
    relation = Relation(_RELATION_ID, "public", "t", "d", relation_columns)
    with contextlib.suppress(ProtocolError):
        rows = RowMessages([_SKIPPED + message for message in messages], skip_bytes=25, in_stream=in_stream)
        ours = np.flatnonzero(rows.relation_ids == _RELATION_ID)
        table = rows.decode(relation, types, ours, unrepresentable=_policy(flags))
        table.validate(full=True)
        if len(table) != len(ours):
            raise Broken(f"{len(table)} rows of {len(ours)} messages")
        for index in ours:
            _strictly(messages[index], len(types), in_stream=in_stream)


def copy(data: bytes) -> None:
    """A COPY's messages, as `framed` describes, each a CopyData; a flag puts the header before them."""
    flags, types, messages = _unframed(data)
    if flags & _WITH_HEADER and messages:
        messages[0] = _SIGNATURE + messages[0]
    decoder = CopyDecoder(types, [f"c{i}" for i in range(len(types))], unrepresentable=_policy(flags))
    with contextlib.suppress(ProtocolError):
        half = len(messages) // 2
        decoder.decode(messages[:half]).validate(full=True)
        decoder.decode(messages[half:]).validate(full=True)
        decoder.finish()


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    target.__name__: target for target in (pgoutput, walsender, columns, copy)
}
"""By name."""


def framed(flags: int, types: Sequence[int], messages: Sequence[bytes]) -> bytes:
    """The input of `columns` and `copy`.

    Args:
        flags: One byte.
        types: An index into TYPES for each column; a byte each, behind a byte for their number.
        messages: Each behind its length in two bytes; the last may be cut short.
    """
    frames = [len(message).to_bytes(2, "big") + message for message in messages]
    return bytes([flags, len(types), *types]) + b"".join(frames)


def _unframed(data: bytes) -> tuple[int, list[ColumnType], list[bytes]]:
    flags, count = data[0] if data else 0, data[1] % _MOST_COLUMNS if len(data) > 1 else 0
    types = [TYPES[index % len(TYPES)] for index in data[2 : 2 + count]]
    return flags, types, list(_messages(data[2 + count :]))


def _messages(data: bytes) -> Iterator[bytes]:
    while data:
        length = int.from_bytes(data[:2], "big")
        yield data[2 : 2 + length]
        data = data[2 + length :]


def _policy(flags: int) -> Unrepresentable:
    return "null" if flags & _NULL_FOR_UNHELD else "error"


def _same(encoded: bytes, data: bytes) -> None:
    if encoded != data:
        raise Broken(f"{data.hex()} decodes to a value that encodes to {encoded.hex()}")


def _strictly(data: bytes, count: int, *, in_stream: bool) -> None:
    """Check that the strict codec accepts what the bulk decoder accepted."""
    try:
        message = decode(data, in_stream=in_stream)
    except ProtocolError as error:
        raise Broken(f"only the strict codec refuses {data.hex()}: {error}") from error
    if not isinstance(message, Insert | Update | Delete):
        raise Broken(f"{data.hex()} is not a row message")
    tuples = [getattr(message, name, None) for name in ("new_tuple", "key_tuple", "old_tuple")]
    if any(values is not None and len(values) != count for values in tuples):
        raise Broken(f"{data.hex()} has a tuple of another number of columns than {count}")
