"""The strict codec of pgoutput messages, protocol versions 1 to 4: `decode` and `encode`.

This is the reference: one message at a time, every field checked, and `encode` returns every byte that `decode`
accepts. `columns` reads rows in bulk; `assembler` checks whether a message may come at its point of the stream. Names
are UTF-8, as the connection's client_encoding must be; column values stay bytes. Source: the documentation's "Logical
Replication Message Formats".

The messages inside a transaction are here (relations, rows, truncates, logical messages), those that begin, end and
attribute transactions in `transaction_messages`. Inside a streamed transaction each of the former carries, after its
tag, the xid of the (sub)transaction that made it. The line above each pair is the layout behind tag and xid. The rules
are those of `src/backend/replication/logical/proto.c`, in both directions; flag bits without a meaning are refused.

To add a message:

1. `messages`: a dataclass, and its place in the union `Message`.
2. `transaction_messages`, or here if it comes inside a transaction: a pair of functions, entered in the table below
   them with its tag and its name.
3. `assembler`: the states in which it may come (TRANSITIONS), and the method that takes it.
4. `tests/strategies.py`: random ones; `tests/protocol/made_stream.py`: an example; its bytes in the tests of 2.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pgbridge.protocol.codec import messages, transaction_messages
from pgbridge.protocol.codec.buffer import Codec, Reader, Writer
from pgbridge.protocol.errors import MalformedMessage, UnsupportedMessage
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable


Change = (
    messages.Relation
    | messages.Type
    | messages.Insert
    | messages.Update
    | messages.Delete
    | messages.Truncate
    | messages.LogicalMessage
)
"""The messages inside a transaction; each has an `xid` if the transaction is streamed."""

# Bits of the flag bytes, from proto.c
_TRANSACTIONAL = 1
_REPLICA_IDENTITY = 1
_CASCADE = 1
_RESTART_IDENTITY = 2

_FLAGS_LSN = struct.Struct(">BQ")
_OID_TYPMOD = struct.Struct(">Ii")

_COLUMN_LEAST_BYTES = 10  # flags, an empty name's NUL, type OID, typmod
_REPLICA_IDENTITIES = "dnfi"


# Message: flags (1 = transactional), LSN, prefix, length, content


def _decode_message(r: Reader, xid: int | None) -> messages.LogicalMessage:
    flags, lsn = r.unpack(_FLAGS_LSN)
    transactional = transaction_messages.known_bits(r, flags, _TRANSACTIONAL) == _TRANSACTIONAL
    prefix = r.cstring()
    return messages.LogicalMessage(transactional, Lsn(lsn), prefix, r.take(r.uint32()), xid)


def _encode_message(w: Writer, m: messages.LogicalMessage) -> None:
    w.pack(_FLAGS_LSN, _TRANSACTIONAL if m.transactional else 0, m.lsn)
    w.cstring(m.prefix)
    w.uint32(len(m.content))
    w.raw(m.content)


# Relation: OID, namespace (empty for pg_catalog), name, replica identity, number of columns, and for each
# column its flags (1 = part of the replica identity), name, type's OID, type modifier


def _decode_relation(r: Reader, xid: int | None) -> messages.Relation:
    relation_id, namespace, name = r.uint32(), r.cstring(), r.cstring()
    identity = _replica_identity(r, chr(r.uint8()))
    count = r.uint16()
    r.check_count(count, _COLUMN_LEAST_BYTES)
    columns = tuple(_decode_column(r) for _ in range(count))
    return messages.Relation(relation_id, namespace, name, identity, columns, xid)


def _encode_relation(w: Writer, m: messages.Relation) -> None:
    w.uint32(m.relation_id)
    w.cstring(m.namespace)
    w.cstring(m.name)
    w.uint8(ord(_replica_identity(w, m.replica_identity)))
    w.uint16(len(m.columns))
    for column in m.columns:
        _encode_column(w, column)


def _decode_column(r: Reader) -> messages.Column:
    is_key = transaction_messages.known_bits(r, r.uint8(), _REPLICA_IDENTITY) == _REPLICA_IDENTITY
    name = r.cstring()
    type_oid, typmod = r.unpack(_OID_TYPMOD)
    return messages.Column(name, type_oid, typmod, is_key)


def _encode_column(w: Writer, column: messages.Column) -> None:
    w.uint8(_REPLICA_IDENTITY if column.is_key else 0)
    w.cstring(column.name)
    w.pack(_OID_TYPMOD, column.type_oid, column.typmod)


def _replica_identity(cursor: Reader | Writer, identity: str) -> str:
    if len(identity) != 1 or identity not in _REPLICA_IDENTITIES:
        cursor.fail(f"replica identity {identity!r} is none of d, n, f, i")
    return identity


# Type: OID, namespace (empty for pg_catalog), name


def _decode_type(r: Reader, xid: int | None) -> messages.Type:
    return messages.Type(r.uint32(), r.cstring(), r.cstring(), xid)


def _encode_type(w: Writer, m: messages.Type) -> None:
    w.uint32(m.type_oid)
    w.cstring(m.namespace)
    w.cstring(m.name)


# Insert: relation's OID, 'N' tuple


def _decode_insert(r: Reader, xid: int | None) -> messages.Insert:
    relation_id = r.uint32()
    _part(r, b"N")
    return messages.Insert(relation_id, _decode_tuple(r), xid)


def _encode_insert(w: Writer, m: messages.Insert) -> None:
    w.uint32(m.relation_id)
    w.raw(b"N")
    _encode_tuple(w, m.new_tuple)


# Update: relation's OID, optionally 'K' tuple or 'O' tuple, 'N' tuple


def _decode_update(r: Reader, xid: int | None) -> messages.Update:
    relation_id = r.uint32()
    key_tuple = old_tuple = None
    part = _part(r, b"KON")
    if part == b"K":
        key_tuple = _decode_tuple(r)
    elif part == b"O":
        old_tuple = _decode_tuple(r)
    if part != b"N":
        _part(r, b"N")
    return messages.Update(relation_id, _decode_tuple(r), key_tuple, old_tuple, xid)


def _encode_update(w: Writer, m: messages.Update) -> None:
    w.uint32(m.relation_id)
    if m.key_tuple is not None or m.old_tuple is not None:
        _encode_key_or_old(w, m)
    w.raw(b"N")
    _encode_tuple(w, m.new_tuple)


# Delete: relation's OID, 'K' tuple or 'O' tuple


def _decode_delete(r: Reader, xid: int | None) -> messages.Delete:
    relation_id = r.uint32()
    if _part(r, b"KO") == b"K":
        return messages.Delete(relation_id, key_tuple=_decode_tuple(r), xid=xid)
    return messages.Delete(relation_id, old_tuple=_decode_tuple(r), xid=xid)


def _encode_delete(w: Writer, m: messages.Delete) -> None:
    w.uint32(m.relation_id)
    _encode_key_or_old(w, m)


def _part(r: Reader, allowed: bytes) -> bytes:
    part = r.take(1)
    if part not in allowed:
        r.fail(f"expected a tuple marked {' or '.join(map(chr, allowed))}, got {part!r}")
    return part


def _encode_key_or_old(w: Writer, m: messages.Update | messages.Delete) -> None:
    if m.key_tuple is not None and m.old_tuple is None:
        w.raw(b"K")
        _encode_tuple(w, m.key_tuple)
    elif m.old_tuple is not None and m.key_tuple is None:
        w.raw(b"O")
        _encode_tuple(w, m.old_tuple)
    else:
        w.fail("exactly one of key_tuple and old_tuple must be set")


# Truncate: number of relations, flags (1 = CASCADE, 2 = RESTART IDENTITY), the relations' OIDs


def _decode_truncate(r: Reader, xid: int | None) -> messages.Truncate:
    count, flags = r.uint32(), r.uint8()
    transaction_messages.known_bits(r, flags, _CASCADE | _RESTART_IDENTITY)
    r.check_count(count, 4)
    relation_ids = tuple(r.uint32() for _ in range(count))
    return messages.Truncate(relation_ids, bool(flags & _CASCADE), bool(flags & _RESTART_IDENTITY), xid)


def _encode_truncate(w: Writer, m: messages.Truncate) -> None:
    w.uint32(len(m.relation_ids))
    w.uint8((_CASCADE if m.cascade else 0) | (_RESTART_IDENTITY if m.restart_identity else 0))
    for relation_id in m.relation_ids:
        w.uint32(relation_id)


# TupleData: number of columns, and for each its kind and, for text and binary, length and bytes


def _decode_tuple(r: Reader) -> messages.Tuple:
    count = r.uint16()
    r.check_count(count, 1)
    return tuple(_decode_value(r) for _ in range(count))


def _decode_value(r: Reader) -> messages.Value:
    byte = r.uint8()
    if (value := messages.VALUES_WITHOUT_DATA.get(byte)) is not None:
        return value
    kind = messages.VALUE_KINDS.get(byte)
    if kind is None:
        r.fail(f"unrecognized data representation type {chr(byte)!r}")
    return messages.Value(kind, r.take(r.int32()))


def _encode_tuple(w: Writer, values: messages.Tuple) -> None:
    w.uint16(len(values))
    for value in values:
        w.raw(value.kind.value)
        if value.kind.value[0] not in messages.VALUES_WITHOUT_DATA:
            w.int32(len(value.data))
            w.raw(value.data)
        elif value.data:
            w.fail(f"a value of kind {value.kind.name} has no data")


_CHANGES: tuple[Codec[Callable[[Reader, int | None], messages.Message]], ...] = (
    Codec(b"M", "MESSAGE", messages.LogicalMessage, _decode_message, _encode_message),
    Codec(b"R", "RELATION", messages.Relation, _decode_relation, _encode_relation),
    Codec(b"Y", "TYPE", messages.Type, _decode_type, _encode_type),
    Codec(b"I", "INSERT", messages.Insert, _decode_insert, _encode_insert),
    Codec(b"U", "UPDATE", messages.Update, _decode_update, _encode_update),
    Codec(b"D", "DELETE", messages.Delete, _decode_delete, _encode_delete),
    Codec(b"T", "TRUNCATE", messages.Truncate, _decode_truncate, _encode_truncate),
)


_WHOLE = {codec.tag[0]: codec.decode for codec in transaction_messages.WHOLE_CODECS}
_TRANSACTION_MESSAGES = {codec.tag[0]: codec for codec in transaction_messages.CODECS}
_CHANGE_MESSAGES = {codec.tag[0]: codec for codec in _CHANGES}
_CODECS: tuple[Codec[Callable[..., messages.Message]], ...] = (
    *transaction_messages.WHOLE_CODECS,
    *transaction_messages.CODECS,
    *_CHANGES,
)
_ENCODERS = {codec.message: codec for codec in _CODECS}

MESSAGE_TYPES = {codec.tag[0]: codec.name for codec in _CODECS}
"""First byte of a message -> its name in PostgreSQL's errors (`logicalrep_message_type`), as INSERT."""


def decode(data: bytes | memoryview, *, in_stream: bool = False) -> messages.Message:
    """Decode one message.

    Args:
        data: The whole message: XLogData's payload, or a row of pg_logical_slot_get_binary_changes.
        in_stream: It comes between Stream Start and Stream Stop, where R, Y, I, U, D, T and M carry an xid.

    Raises:
        MalformedMessage: The bytes are not exactly one message of the tag's form.
        UnsupportedMessage: No protocol version up to 4 has the tag.
    """
    if not data:
        raise MalformedMessage("pgoutput", 0, "an empty message has no tag")
    tag = data[0]
    if (decode_whole := _WHOLE.get(tag)) is not None:
        return decode_whole(data)
    message: messages.Message
    if (codec := _TRANSACTION_MESSAGES.get(tag)) is not None:
        reader = Reader(data, codec.name, 1)
        message = codec.decode(reader)
    elif (change_codec := _CHANGE_MESSAGES.get(tag)) is not None:
        reader = Reader(data, change_codec.name, 1)
        xid = transaction_messages.valid_xid(reader, reader.uint32()) if in_stream else None
        message = change_codec.decode(reader, xid)
    else:
        raise UnsupportedMessage(f"no pgoutput message of protocol versions 1 to 4 has the tag {chr(tag)!r}")
    reader.finish()
    return message


def encode(message: messages.Message) -> bytes:
    """Encode one message: as inside a streamed transaction if its `xid` is not None.

    Raises:
        MalformedMessage: A field does not fit its layout, or `decode` would refuse the result.
    """
    codec = _ENCODERS[type(message)]
    writer = Writer(codec.name, codec.tag)
    if isinstance(message, Change) and message.xid is not None:
        writer.uint32(transaction_messages.valid_xid(writer, message.xid))
    codec.encode(writer, message)
    return writer.getvalue()
