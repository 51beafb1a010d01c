"""Hypothesis strategies for protocol values, valid by construction: whatever they give can be encoded.

Every strategy is a function, so that a test may narrow it: `inserts(xid=st.none())`.
"""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st

from pgbridge.protocol.codec.messages import (
    Begin,
    BeginPrepare,
    Column,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Tuple,
    Type,
    Update,
    Value,
    ValueKind,
)
from pgbridge.protocol.codec.pgoutput import Change
from pgbridge.protocol.codec.walsender import PrimaryKeepalive, StandbyStatusUpdate, XLogData
from pgbridge.protocol.lsn import Lsn

T = TypeVar("T")

NONE: st.SearchStrategy[None] = st.none()


def lsns(least: int = 0) -> st.SearchStrategy[Lsn]:
    """Any LSN; with least = 1 any valid one."""
    return st.integers(least, 2**64 - 1).map(Lsn)


def times_us() -> st.SearchStrategy[int]:
    """Microseconds since 2000, all of int64."""
    return st.integers(-(2**63), 2**63 - 1)


def oids() -> st.SearchStrategy[int]:
    """Unsigned 32-bit integers."""
    return st.integers(0, 2**32 - 1)


def xids() -> st.SearchStrategy[int]:
    """Valid transaction IDs: not 0."""
    return st.integers(1, 2**32 - 1)


def texts(least: int = 0) -> st.SearchStrategy[str]:
    """What a NUL-terminated UTF-8 string can hold."""
    characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    return st.text(characters, min_size=least, max_size=20)


def values() -> st.SearchStrategy[Value]:
    """One column's value of any kind; text need not be UTF-8."""
    dataless = st.sampled_from([Value(ValueKind.NULL), Value(ValueKind.UNCHANGED_TOAST)])
    kinds = st.sampled_from([ValueKind.TEXT, ValueKind.BINARY])
    return dataless | st.builds(Value, kinds, st.binary(max_size=20))


def tuples(least: int = 0, most: int = 6) -> st.SearchStrategy[Tuple]:
    """A row of so many columns."""
    return st.lists(values(), min_size=least, max_size=most).map(tuple)


def columns() -> st.SearchStrategy[Column]:
    """A column of a relation."""
    return st.builds(Column, texts(), oids(), st.integers(-(2**31), 2**31 - 1), st.booleans())


def begins() -> st.SearchStrategy[Begin]:
    """Begin; its xid may be 0, since proto.c does not look."""
    return st.builds(Begin, lsns(1), times_us(), oids())


def commits() -> st.SearchStrategy[Commit]:
    """Commit; its LSNs may be 0, since proto.c does not look."""
    return st.builds(Commit, st.just(0), lsns(), lsns(), times_us())


def origins() -> st.SearchStrategy[Origin]:
    """Origin; its LSN is 0 in streamed transactions."""
    return st.builds(Origin, lsns(), texts())


def relations(xid: st.SearchStrategy[int | None] = NONE) -> st.SearchStrategy[Relation]:
    parts = st.lists(columns(), max_size=6).map(tuple)
    return st.builds(Relation, oids(), texts(), texts(), st.sampled_from("dnfi"), parts, xid)


def types(xid: st.SearchStrategy[int | None] = NONE) -> st.SearchStrategy[Type]:
    return st.builds(Type, oids(), texts(), texts(), xid)


def inserts(xid: st.SearchStrategy[int | None] = NONE) -> st.SearchStrategy[Insert]:
    return st.builds(Insert, oids(), tuples(), xid)


def updates(xid: st.SearchStrategy[int | None] = NONE) -> st.SearchStrategy[Update]:
    """Update with a key, with the old row, with neither."""
    alone = st.builds(Update, oids(), tuples(), xid=xid)
    keyed = st.builds(Update, oids(), tuples(), key_tuple=tuples(), xid=xid)
    whole = st.builds(Update, oids(), tuples(), old_tuple=tuples(), xid=xid)
    return alone | keyed | whole


def deletes(xid: st.SearchStrategy[int | None] = NONE) -> st.SearchStrategy[Delete]:
    """Delete by key and by the old row."""
    keyed = st.builds(Delete, oids(), key_tuple=tuples(), xid=xid)
    whole = st.builds(Delete, oids(), old_tuple=tuples(), xid=xid)
    return keyed | whole


def truncates(xid: st.SearchStrategy[int | None] = NONE) -> st.SearchStrategy[Truncate]:
    """Truncate of any number of relations."""
    relation_ids = st.lists(oids(), max_size=6).map(tuple)
    return st.builds(Truncate, relation_ids, st.booleans(), st.booleans(), xid)


def logical_messages(xid: st.SearchStrategy[int | None] = NONE) -> st.SearchStrategy[LogicalMessage]:
    """Message, as pg_logical_emit_message makes."""
    return st.builds(LogicalMessage, st.booleans(), lsns(), texts(), st.binary(max_size=20), xid)


def stream_starts() -> st.SearchStrategy[StreamStart]:
    return st.builds(StreamStart, xids(), st.booleans())


def stream_commits() -> st.SearchStrategy[StreamCommit]:
    return st.builds(StreamCommit, oids(), st.just(0), lsns(), lsns(), times_us())


def stream_aborts() -> st.SearchStrategy[StreamAbort]:
    """Stream Abort, with and without what streaming = parallel adds."""
    return st.builds(StreamAbort, oids(), oids()) | st.builds(StreamAbort, oids(), oids(), lsns(), times_us())


def begin_prepares() -> st.SearchStrategy[BeginPrepare]:
    return st.builds(BeginPrepare, lsns(1), lsns(1), times_us(), oids(), texts())


def _prepares(message: type[T], xid: st.SearchStrategy[int]) -> st.SearchStrategy[T]:
    return st.builds(message, st.just(0), lsns(1), lsns(1), times_us(), xid, texts())


def rollbacks_prepared() -> st.SearchStrategy[RollbackPrepared]:
    return st.builds(RollbackPrepared, st.just(0), lsns(1), lsns(1), times_us(), times_us(), oids(), texts())


def boundaries() -> st.SearchStrategy[Message]:
    """Messages that never carry the xid of a streamed change."""
    return st.one_of(
        begins(),
        commits(),
        origins(),
        stream_starts(),
        st.just(StreamStop()),
        stream_commits(),
        stream_aborts(),
        begin_prepares(),
        _prepares(Prepare, xids()),
        _prepares(CommitPrepared, oids()),
        rollbacks_prepared(),
        _prepares(StreamPrepare, xids()),
    )


def changes(xid: st.SearchStrategy[int | None] = NONE) -> st.SearchStrategy[Message]:
    """Messages inside a transaction; with `xids()` inside a streamed one."""
    kinds = (logical_messages, relations, types, inserts, updates, deletes, truncates)
    return st.one_of([kind(xid) for kind in kinds])


def messages() -> st.SearchStrategy[Message]:
    """Any message, inside streams and outside."""
    return boundaries() | changes() | changes(xids())


def in_stream(message: Message) -> bool:
    """How `decode` must be told to read what `encode` writes for this message."""
    return isinstance(message, Change) and message.xid is not None


def walsender_messages() -> st.SearchStrategy[XLogData | PrimaryKeepalive | StandbyStatusUpdate]:
    """What is in CopyData, in either direction."""
    return st.one_of(
        st.builds(XLogData, lsns(), lsns(), times_us(), st.binary(max_size=50)),
        st.builds(PrimaryKeepalive, lsns(), times_us(), st.booleans()),
        st.builds(StandbyStatusUpdate, lsns(), lsns(), lsns(), times_us(), st.booleans()),
    )
