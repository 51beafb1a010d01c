"""The streaming replication protocol around pgoutput: CopyData contents, and the command that starts the stream.

Source: PostgreSQL documentation, "Streaming Replication Protocol"; `src/backend/replication/walsender.c`.
LSNs are `Lsn`; times are microseconds since 2000-01-01 00:00 UTC. Nothing here decides what may be confirmed: the
caller chooses the LSNs of a status update.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Required, TypedDict

from pgbridge.protocol.codec.buffer import Reader, Writer
from pgbridge.protocol.errors import MalformedMessage, UnsupportedMessage
from pgbridge.protocol.lsn import Lsn, unchecked_lsn

if TYPE_CHECKING:
    from collections.abc import Sequence

_TAG_START_END_TIME = struct.Struct(">cQQq")
_START_END_TIME = struct.Struct(">QQq")
_END_TIME_REPLY = struct.Struct(">QqB")
_WRITE_FLUSH_APPLY_TIME_REPLY = struct.Struct(">QQQqB")

_XLOG_DATA = ord("w")

HEADER_BYTES = 25
"""Length of XLogData before its payload: `w`, wal_start, wal_end, send_time."""


@dataclass(frozen=True, slots=True)
class XLogData:
    """One message of the output plugin.

    In logical replication `wal_start` and `wal_end` are the same LSN, or both 0 if another message of the same change
    follows (Relation and Type before a row, Begin before Origin).
    """

    wal_start: Lsn
    wal_end: Lsn
    send_time_us: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class PrimaryKeepalive:
    """The walsender's position in the WAL; `reply_requested` asks for a status update at once."""

    wal_end: Lsn
    send_time_us: int
    reply_requested: bool


@dataclass(frozen=True, slots=True)
class StandbyStatusUpdate:
    """The LSNs that the subscriber has written, flushed and applied: each is the position after the last such byte.

    The slot's confirmed_flush_lsn moves to `flush_lsn`: the server may remove all WAL before it.
    """

    write_lsn: Lsn
    flush_lsn: Lsn
    apply_lsn: Lsn
    send_time_us: int
    reply_requested: bool = False


def decode_copy_data(data: bytes | memoryview) -> XLogData | PrimaryKeepalive:
    """Decode the content of a walsender's CopyData.

    Raises:
        MalformedMessage: The content is not exactly one message of its tag's form.
        UnsupportedMessage: The tag is neither `w` nor `k`.
    """
    tag = bytes(data[:1])
    if tag == b"w":
        return decode_xlog_data(data)
    if tag == b"k":
        return decode_primary_keepalive(data)
    if not tag:
        raise MalformedMessage("CopyData", 0, "an empty message has no tag")
    raise UnsupportedMessage(f"no message of a logical walsender has the tag {tag!r}")


def decode_xlog_data(data: bytes | memoryview) -> XLogData:
    """Read `w`, wal_start, wal_end, send_time, and the rest as payload."""
    # At least two of these come per transaction, so it is read whole, without a cursor.
    if len(data) < HEADER_BYTES or data[0] != _XLOG_DATA:
        r = _reader(data, b"w", "XLogData")
        r.fail(f"expected {HEADER_BYTES} bytes, the message has {len(data)}")
    _, wal_start, wal_end, send_time_us = _TAG_START_END_TIME.unpack_from(data)
    return XLogData(unchecked_lsn(wal_start), unchecked_lsn(wal_end), send_time_us, bytes(data[HEADER_BYTES:]))


def encode_xlog_data(m: XLogData) -> bytes:
    """Write the inverse of `decode_xlog_data`."""
    w = Writer("XLogData", b"w")
    w.pack(_START_END_TIME, m.wal_start, m.wal_end, m.send_time_us)
    w.raw(m.payload)
    return w.getvalue()


def decode_primary_keepalive(data: bytes | memoryview) -> PrimaryKeepalive:
    """Read `k`, wal_end, send_time, and 1 if a reply is requested at once, else 0."""
    r = _reader(data, b"k", "PrimaryKeepalive")
    wal_end, send_time_us, reply = r.unpack(_END_TIME_REPLY)
    reply_requested = _flag(r, reply)
    r.finish()
    return PrimaryKeepalive(Lsn(wal_end), send_time_us, reply_requested)


def encode_primary_keepalive(m: PrimaryKeepalive) -> bytes:
    """Write the inverse of `decode_primary_keepalive`."""
    w = Writer("PrimaryKeepalive", b"k")
    w.pack(_END_TIME_REPLY, m.wal_end, m.send_time_us, 1 if m.reply_requested else 0)
    return w.getvalue()


def decode_standby_status_update(data: bytes | memoryview) -> StandbyStatusUpdate:
    """Read `r`, write, flush and apply LSN, send_time, and 1 if the server shall reply at once, else 0."""
    r = _reader(data, b"r", "StandbyStatusUpdate")
    write_lsn, flush_lsn, apply_lsn, send_time_us, reply = r.unpack(_WRITE_FLUSH_APPLY_TIME_REPLY)
    reply_requested = _flag(r, reply)
    r.finish()
    return StandbyStatusUpdate(Lsn(write_lsn), Lsn(flush_lsn), Lsn(apply_lsn), send_time_us, reply_requested)


def encode_standby_status_update(m: StandbyStatusUpdate) -> bytes:
    """Write the inverse of `decode_standby_status_update`."""
    w = Writer("StandbyStatusUpdate", b"r")
    reply = 1 if m.reply_requested else 0
    w.pack(_WRITE_FLUSH_APPLY_TIME_REPLY, m.write_lsn, m.flush_lsn, m.apply_lsn, m.send_time_us, reply)
    return w.getvalue()


def _reader(data: bytes | memoryview, tag: bytes, name: str) -> Reader:
    if bytes(data[:1]) != tag:
        raise MalformedMessage(name, 0, f"expected the tag {tag!r}, got {bytes(data[:1])!r}")
    return Reader(data, name, 1)


def _flag(r: Reader, byte: int) -> bool:
    if byte > 1:
        r.fail(f"reply requested is {byte}, neither 0 nor 1")
    return byte == 1


class PgoutputOptions(TypedDict, total=False):
    """The options of pgoutput; an option that is left out is not sent, which older servers need.

    Attributes:
        proto_version: 1; 2 for streaming (PostgreSQL 14); 3 for two_phase (15); 4 for parallel (16).
        publication_names: At least one.
        binary: Send values in binary form if their type has a send function (14).
        streaming: In-progress transactions: not sent, sent, or sent with the LSNs that parallel apply needs (14, 16).
        two_phase: Send prepared transactions at PREPARE TRANSACTION; the slot must be created for it (15).
        origin: `none` leaves out changes that have a replication origin (16).
        messages: Send pg_logical_emit_message's messages (14).
    """

    proto_version: Required[int]
    publication_names: Required[Sequence[str]]
    binary: bool
    streaming: Literal["off", "on", "parallel"]
    two_phase: bool
    origin: Literal["any", "none"]
    messages: bool


def start_replication(slot_name: str, start_lsn: Lsn, options: PgoutputOptions) -> str:
    """Write the START_REPLICATION command for a logical slot of pgoutput.

    Args:
        slot_name: The slot; it is quoted, so that its case is kept.
        start_lsn: Where to start. The server starts at the slot's confirmed_flush_lsn if that is further; 0/0 leaves
            the choice to the server.
        options: Options of pgoutput.

    Raises:
        ValueError: No publication is given, or a name is empty or contains a NUL.
    """
    settings = ", ".join(f"{option} {_literal(text)}" for option, text in option_texts(options).items())
    return f"START_REPLICATION SLOT {quote_identifier(slot_name)} LOGICAL {start_lsn} ({settings})"


def option_texts(options: PgoutputOptions) -> dict[str, str]:
    """Return pgoutput's options as the server reads them.

    Raises:
        ValueError: As `start_replication`.
    """
    publication_names = options["publication_names"]
    if not publication_names:
        raise ValueError("no publication names: a subscription needs at least one")
    texts = {
        "proto_version": str(options["proto_version"]),
        "publication_names": ",".join(quote_identifier(name) for name in publication_names),
    }
    for option, value in options.items():
        texts.setdefault(option, str(value).lower() if isinstance(value, bool) else str(value))
    return texts


def quote_identifier(name: str) -> str:
    """Quote a name for the replication grammar (`repl_scanner.l`).

    Raises:
        ValueError: The name is empty or contains a NUL.
    """
    if not name or "\0" in name:
        raise ValueError(f"invalid name {name!r}: it is empty or contains a NUL")
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    # The replication grammar has no escape but the doubled quote: a backslash is itself, E'' is an error.
    return "'" + text.replace("'", "''") + "'"
