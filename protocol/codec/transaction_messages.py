"""Decode and encode the pgoutput messages that begin, end and attribute transactions.

`pgoutput` reads and writes the tag, and checks that a message ends where it should. The line above each pair is the
layout behind the tag. The rules are those of `src/backend/replication/logical/proto.c`, in both directions.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from pgbridge.protocol.codec import messages
from pgbridge.protocol.codec.buffer import Codec, Reader, Writer
from pgbridge.protocol.errors import MalformedMessage
from pgbridge.protocol.lsn import Lsn, unchecked_lsn

if TYPE_CHECKING:
    from collections.abc import Callable

# Consecutive fields of fixed length: LSNs are Q, times q, xids I, flags B.
_BEGIN = struct.Struct(">cQqI")
_FINAL_LSN_TIME_XID = struct.Struct(">QqI")
_COMMIT = struct.Struct(">cBQQq")
_FLAGS_COMMIT_END_TIME = struct.Struct(">BQQq")
_XID_SEGMENT = struct.Struct(">IB")
_XID_FLAGS_COMMIT_END_TIME = struct.Struct(">IBQQq")
_XID_SUBXID = struct.Struct(">II")
_LSN_TIME = struct.Struct(">Qq")
_LSN_END_TIME_XID = struct.Struct(">QQqI")
_FLAGS_LSN_END_TIME_XID = struct.Struct(">BQQqI")
_FLAGS_LSN_END_TIME_TIME_XID = struct.Struct(">BQQqqI")


def known_bits(cursor: Reader | Writer, flags: int, known: int = 0) -> int:
    """Refuse a flag byte with other bits than `known`; by default no bit has a meaning yet."""
    if flags & ~known:
        cursor.fail(f"unrecognized flags {flags}")
    return flags


def valid_xid(cursor: Reader | Writer, xid: int) -> int:
    """Refuse InvalidTransactionId, as `worker.c` does inside streams and `proto.c` in prepared transactions."""
    if xid == 0:
        cursor.fail("invalid transaction ID 0")
    return xid


def _set_lsn(cursor: Reader | Writer, lsn: int, field: str) -> Lsn:
    if lsn == 0:
        cursor.fail(f"{field} not set")
    return unchecked_lsn(lsn)


# Begin and Commit come once per transaction, so they are decoded whole, without a cursor.
# Begin: LSN of the commit record, commit time, xid


def _decode_begin(data: bytes | memoryview) -> messages.Begin:
    _, final_lsn, commit_time_us, xid = _unpack_whole("BEGIN", _BEGIN, data)
    if final_lsn == 0:
        raise MalformedMessage("BEGIN", 1, "final_lsn not set")
    return messages.Begin(unchecked_lsn(final_lsn), commit_time_us, xid)


def _encode_begin(w: Writer, m: messages.Begin) -> None:
    w.pack(_FINAL_LSN_TIME_XID, _set_lsn(w, m.final_lsn, "final_lsn"), m.commit_time_us, m.xid)


# Commit: flags (0), LSN of the commit record, end LSN, commit time


def _decode_commit(data: bytes | memoryview) -> messages.Commit:
    _, flags, commit_lsn, end_lsn, commit_time_us = _unpack_whole("COMMIT", _COMMIT, data)
    if flags != 0:
        raise MalformedMessage("COMMIT", 1, f"unrecognized flags {flags}")
    return messages.Commit(flags, unchecked_lsn(commit_lsn), unchecked_lsn(end_lsn), commit_time_us)


def _encode_commit(w: Writer, m: messages.Commit) -> None:
    w.pack(_FLAGS_COMMIT_END_TIME, known_bits(w, m.flags), m.commit_lsn, m.end_lsn, m.commit_time_us)


def _unpack_whole(name: str, layout: struct.Struct, data: bytes | memoryview) -> tuple[Any, ...]:
    if len(data) != layout.size:
        reason = f"expected {layout.size} bytes, the message has {len(data)}"
        raise MalformedMessage(name, min(len(data), layout.size), reason)
    return layout.unpack(data)


# Origin: LSN of the commit on the origin server, its name


def _decode_origin(r: Reader) -> messages.Origin:
    return messages.Origin(unchecked_lsn(r.uint64()), r.cstring())


def _encode_origin(w: Writer, m: messages.Origin) -> None:
    w.uint64(m.commit_lsn)
    w.cstring(m.name)


# Stream Start: xid, 1 for the transaction's first segment and 0 for the others


def _decode_stream_start(r: Reader) -> messages.StreamStart:
    xid, first_segment = r.unpack(_XID_SEGMENT)
    return messages.StreamStart(valid_xid(r, xid), known_bits(r, first_segment, 1) == 1)


def _encode_stream_start(w: Writer, m: messages.StreamStart) -> None:
    w.pack(_XID_SEGMENT, valid_xid(w, m.xid), 1 if m.first_segment else 0)


# Stream Stop: nothing


def _decode_stream_stop(_: Reader) -> messages.StreamStop:
    return messages.StreamStop()


def _encode_stream_stop(w: Writer, m: messages.StreamStop) -> None:
    pass


# Stream Commit: xid, flags (0), LSN of the commit record, end LSN, commit time


def _decode_stream_commit(r: Reader) -> messages.StreamCommit:
    xid, flags, commit_lsn, end_lsn, commit_time_us = r.unpack(_XID_FLAGS_COMMIT_END_TIME)
    return messages.StreamCommit(
        xid, known_bits(r, flags), unchecked_lsn(commit_lsn), unchecked_lsn(end_lsn), commit_time_us
    )


def _encode_stream_commit(w: Writer, m: messages.StreamCommit) -> None:
    flags = known_bits(w, m.flags)
    w.pack(_XID_FLAGS_COMMIT_END_TIME, m.xid, flags, m.commit_lsn, m.end_lsn, m.commit_time_us)


# Stream Abort: xid, xid of the subtransaction (or the same), with streaming = parallel also LSN and time


def _decode_stream_abort(r: Reader) -> messages.StreamAbort:
    xid, subxid = r.unpack(_XID_SUBXID)
    if not r.remaining:
        return messages.StreamAbort(xid, subxid)
    abort_lsn, abort_time_us = r.unpack(_LSN_TIME)
    return messages.StreamAbort(xid, subxid, unchecked_lsn(abort_lsn), abort_time_us)


def _encode_stream_abort(w: Writer, m: messages.StreamAbort) -> None:
    w.pack(_XID_SUBXID, m.xid, m.subxid)
    if m.abort_lsn is not None or m.abort_time_us is not None:
        w.pack(_LSN_TIME, m.abort_lsn, m.abort_time_us)


# Begin Prepare: LSN of the prepare record, end LSN, prepare time, xid, gid


def _decode_begin_prepare(r: Reader) -> messages.BeginPrepare:
    prepare_lsn, end_lsn, prepare_time_us, xid = r.unpack(_LSN_END_TIME_XID)
    prepare_lsn, end_lsn = _set_lsn(r, prepare_lsn, "prepare_lsn"), _set_lsn(r, end_lsn, "end_lsn")
    return messages.BeginPrepare(prepare_lsn, end_lsn, prepare_time_us, xid, r.cstring())


def _encode_begin_prepare(w: Writer, m: messages.BeginPrepare) -> None:
    prepare_lsn, end_lsn = _set_lsn(w, m.prepare_lsn, "prepare_lsn"), _set_lsn(w, m.end_lsn, "end_lsn")
    w.pack(_LSN_END_TIME_XID, prepare_lsn, end_lsn, m.prepare_time_us, m.xid)
    w.cstring(m.gid)


# Prepare and Stream Prepare: flags (0), LSN of the prepare record, end LSN, prepare time, xid, gid


def _decode_prepare(r: Reader) -> messages.Prepare:
    return messages.Prepare(*_decode_prepare_fields(r))


def _decode_stream_prepare(r: Reader) -> messages.StreamPrepare:
    return messages.StreamPrepare(*_decode_prepare_fields(r))


def _decode_prepare_fields(r: Reader) -> tuple[int, Lsn, Lsn, int, int, str]:
    flags, prepare_lsn, end_lsn, prepare_time_us, xid = r.unpack(_FLAGS_LSN_END_TIME_XID)
    known_bits(r, flags)
    prepare_lsn, end_lsn = _set_lsn(r, prepare_lsn, "prepare_lsn"), _set_lsn(r, end_lsn, "end_lsn")
    return flags, prepare_lsn, end_lsn, prepare_time_us, valid_xid(r, xid), r.cstring()


def _encode_prepare(w: Writer, m: messages.Prepare | messages.StreamPrepare) -> None:
    prepare_lsn, end_lsn = _set_lsn(w, m.prepare_lsn, "prepare_lsn"), _set_lsn(w, m.end_lsn, "end_lsn")
    flags, xid = known_bits(w, m.flags), valid_xid(w, m.xid)
    w.pack(_FLAGS_LSN_END_TIME_XID, flags, prepare_lsn, end_lsn, m.prepare_time_us, xid)
    w.cstring(m.gid)


# Commit Prepared: flags (0), LSN of the commit record, end LSN, commit time, xid, gid


def _decode_commit_prepared(r: Reader) -> messages.CommitPrepared:
    flags, commit_lsn, end_lsn, commit_time_us, xid = r.unpack(_FLAGS_LSN_END_TIME_XID)
    known_bits(r, flags)
    commit_lsn, end_lsn = _set_lsn(r, commit_lsn, "commit_lsn"), _set_lsn(r, end_lsn, "end_lsn")
    return messages.CommitPrepared(flags, commit_lsn, end_lsn, commit_time_us, xid, r.cstring())


def _encode_commit_prepared(w: Writer, m: messages.CommitPrepared) -> None:
    commit_lsn, end_lsn = _set_lsn(w, m.commit_lsn, "commit_lsn"), _set_lsn(w, m.end_lsn, "end_lsn")
    w.pack(_FLAGS_LSN_END_TIME_XID, known_bits(w, m.flags), commit_lsn, end_lsn, m.commit_time_us, m.xid)
    w.cstring(m.gid)


# Rollback Prepared: flags (0), end LSN of the prepared transaction, end LSN of the rollback, prepare time,
# rollback time, xid, gid


def _decode_rollback_prepared(r: Reader) -> messages.RollbackPrepared:
    flags, prepare_end, rollback_end, prepare_time_us, rollback_time_us, xid = r.unpack(_FLAGS_LSN_END_TIME_TIME_XID)
    known_bits(r, flags)
    prepare_end = _set_lsn(r, prepare_end, "prepare_end_lsn")
    rollback_end = _set_lsn(r, rollback_end, "rollback_end_lsn")
    return messages.RollbackPrepared(
        flags, prepare_end, rollback_end, prepare_time_us, rollback_time_us, xid, r.cstring()
    )


def _encode_rollback_prepared(w: Writer, m: messages.RollbackPrepared) -> None:
    prepare_end = _set_lsn(w, m.prepare_end_lsn, "prepare_end_lsn")
    rollback_end = _set_lsn(w, m.rollback_end_lsn, "rollback_end_lsn")
    flags = known_bits(w, m.flags)
    w.pack(
        _FLAGS_LSN_END_TIME_TIME_XID,
        flags,
        prepare_end,
        rollback_end,
        m.prepare_time_us,
        m.rollback_time_us,
        m.xid,
    )
    w.cstring(m.gid)


WHOLE_CODECS: tuple[Codec[Callable[[bytes | memoryview], messages.Message]], ...] = (
    Codec(b"B", "BEGIN", messages.Begin, _decode_begin, _encode_begin),
    Codec(b"C", "COMMIT", messages.Commit, _decode_commit, _encode_commit),
)
CODECS: tuple[Codec[Callable[[Reader], messages.Message]], ...] = (
    Codec(b"O", "ORIGIN", messages.Origin, _decode_origin, _encode_origin),
    Codec(b"S", "STREAM START", messages.StreamStart, _decode_stream_start, _encode_stream_start),
    Codec(b"E", "STREAM STOP", messages.StreamStop, _decode_stream_stop, _encode_stream_stop),
    Codec(b"c", "STREAM COMMIT", messages.StreamCommit, _decode_stream_commit, _encode_stream_commit),
    Codec(b"A", "STREAM ABORT", messages.StreamAbort, _decode_stream_abort, _encode_stream_abort),
    Codec(b"b", "BEGIN PREPARE", messages.BeginPrepare, _decode_begin_prepare, _encode_begin_prepare),
    Codec(b"P", "PREPARE", messages.Prepare, _decode_prepare, _encode_prepare),
    Codec(b"K", "COMMIT PREPARED", messages.CommitPrepared, _decode_commit_prepared, _encode_commit_prepared),
    Codec(b"r", "ROLLBACK PREPARED", messages.RollbackPrepared, _decode_rollback_prepared, _encode_rollback_prepared),
    Codec(b"p", "STREAM PREPARE", messages.StreamPrepare, _decode_stream_prepare, _encode_prepare),
)
