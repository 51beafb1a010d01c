"""The messages of pgoutput, protocol versions 1 to 4, as values.

Names follow `src/include/replication/logicalproto.h` and the documentation's "Logical Replication Message
Formats". LSNs are `Lsn`; times are microseconds since 2000-01-01 00:00 UTC, as on the wire (`_us`).
`xid` on a message inside a streamed transaction is the (sub)transaction that made the change; None elsewhere.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pgbridge.protocol.lsn import Lsn


class ValueKind(enum.Enum):
    """The form of a column's value in a tuple; the member's value is the byte on the wire."""

    NULL = b"n"
    UNCHANGED_TOAST = b"u"
    TEXT = b"t"
    BINARY = b"b"


@dataclass(frozen=True, slots=True)
class Value:
    """One column of a tuple. `data` is empty unless the kind is TEXT or BINARY."""

    kind: ValueKind
    data: bytes = b""


VALUE_KINDS: Final = {kind.value[0]: kind for kind in ValueKind}
"""Kinds by their byte on the wire."""

VALUES_WITHOUT_DATA: Final = {kind.value[0]: Value(kind) for kind in (ValueKind.NULL, ValueKind.UNCHANGED_TOAST)}
"""The values of the kinds that have neither length nor data, by the byte on the wire."""

Tuple = tuple[Value, ...]
"""A row on the wire: as many values as its relation has columns."""


@dataclass(frozen=True, slots=True)
class Begin:
    """`final_lsn` is the LSN of the commit record (equal to Commit's `commit_lsn`)."""

    final_lsn: Lsn
    commit_time_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`end_lsn` lies just after the commit record: the LSN to resume from and to confirm."""

    flags: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time_us: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction was replicated to the server from `name`, where it has `commit_lsn`."""

    commit_lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column in a Relation message; `is_key` marks the columns of the replica identity."""

    name: str
    type_oid: int
    typmod: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's definition, sent before its first change and after each change of the definition.

    `replica_identity` is `pg_class.relreplident`: d, n, f or i. `namespace` is empty for pg_catalog.
    """

    relation_id: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Type:
    """The name of a type that is not built in; sent before the Relation that uses it."""

    type_oid: int
    namespace: str
    name: str
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation_id: int
    new_tuple: Tuple
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row.

    It has at most one of `key_tuple` (the old key, sent when the key changed or was toasted; columns outside the
    replica identity are NULL in it) and `old_tuple` (the whole old row, REPLICA IDENTITY FULL).
    """

    relation_id: int
    new_tuple: Tuple
    key_tuple: Tuple | None = None
    old_tuple: Tuple | None = None
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """A removed row, by exactly one of `key_tuple` and `old_tuple` (REPLICA IDENTITY FULL)."""

    relation_id: int
    key_tuple: Tuple | None = None
    old_tuple: Tuple | None = None
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """One TRUNCATE command's published tables."""

    relation_ids: tuple[int, ...]
    cascade: bool = False
    restart_identity: bool = False
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message of `pg_logical_emit_message`: part of its transaction if `transactional`, else on its own."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class StreamStart:
    """A segment of an in-progress transaction follows: changes up to Stream Stop. Protocol 2."""

    xid: int
    first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """End of a segment of an in-progress transaction. Protocol 2."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """Commit of a streamed transaction. Protocol 2."""

    xid: int
    flags: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time_us: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """Abort of a streamed transaction (`subxid == xid`) or one of its subtransactions. Protocol 2.

    The LSN and the time are sent only with streaming = parallel (protocol 4).
    """

    xid: int
    subxid: int
    abort_lsn: Lsn | None = None
    abort_time_us: int | None = None


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """Start of a two-phase transaction's changes, sent at PREPARE TRANSACTION. Protocol 3."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """End of a two-phase transaction's changes. Protocol 3."""

    flags: int
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """COMMIT PREPARED. Protocol 3."""

    flags: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """ROLLBACK PREPARED. Protocol 3."""

    flags: int
    prepare_end_lsn: Lsn
    rollback_end_lsn: Lsn
    prepare_time_us: int
    rollback_time_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    """PREPARE TRANSACTION of a streamed transaction. Protocol 3."""

    flags: int
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time_us: int
    xid: int
    gid: str


Message = (
    Begin
    | Commit
    | Origin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
)
