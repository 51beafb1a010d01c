"""What the catalog holds, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from protocol.lsn import Lsn


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """`pg_subscription`'s counterpart."""

    name: str
    enabled: bool
    incarnation: str | None
    epoch: int
    slot_name: str | None
    slot_state: str | None
    system_identifier: str | None
    skip_lsn: Lsn | None
    state: str
    received_lsn: Lsn
    apply_error_count: int
    sync_error_count: int

    @property
    def txn_app_id(self) -> str:
        """Delta's application id for what the subscription commits: it is never used again after a new start."""
        return f"pgbridge/{self.system_identifier}/{self.name}/{self.incarnation}"

    @property
    def batch_app_id(self) -> str:
        """Delta's application id for batches: it moves on when one is undone, or Delta would leave it out later."""
        return f"{self.txn_app_id}/{self.epoch}"


@dataclass(frozen=True, slots=True)
class RelRow:
    """`pg_subscription_rel`'s counterpart: a table's state and the LSN that goes with it.

    Attributes:
        relid: The published table's oid, as of the origin's LSN: by it a table that was renamed is told from one that
            is not subscribed. None before it is known.
    """

    namespace: str
    name: str
    state: str
    lsn: Lsn
    path: str
    relid: int | None = None

    @property
    def qualified_name(self) -> str:
        """`namespace.name`, unquoted, as in messages."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class CopyRow:
    """How far a table's copy is.

    Attributes:
        rows: Rows that were read.
        bytes: In COPY's binary format.
        total_bytes_estimate: What `bytes` will be at the end, by the planner's estimate of rows.
        rows_per_s: Of late; None before it is known, as the next.
        seconds_left: At that rate.
    """

    namespace: str
    name: str
    rows: int
    bytes: int
    total_bytes_estimate: int
    rows_per_s: float | None
    seconds_left: float | None

    @property
    def qualified_name(self) -> str:
        """`namespace.name`, unquoted, as in messages."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class BatchIntent:
    """What a batch is about to apply: the transactions that end in (start_lsn, end_lsn].

    Each commit of the batch names the same range in Delta's history, which is where an undo finds the version
    before it; reading every table's version ahead of each batch would cost more than a small batch itself.

    Attributes:
        undoing: Its commits are being taken back: it must not be applied before that is done.
        alters: It changes columns of its targets, as the publisher's catalog was when it was formed, or has several
            commits of one.
        rebooted: The machine was started anew since it was begun: of what it has committed, a power cut may have left
            the log and taken the data.
    """

    start_lsn: Lsn
    end_lsn: Lsn
    undoing: bool = False
    alters: bool = False
    rebooted: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """A column of a published table, as the stream had it last.

    Attributes:
        attnum: `pg_attribute.attnum`: it stays when the column is renamed, and is never given out again. Negative for
            a column that is gone, and whose number is not known.
        state: `live`: the stream has it; `hidden`: it has not, because the column is not published; `gone`: it has it
            no more.
    """

    attnum: int
    name: str
    type_oid: int
    typmod: int
    state: Literal["live", "hidden", "gone"] = "live"


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """A prepared transaction whose changes lie in `state_dir/spool/<subscription>/<file>`."""

    file: str
    gid: str
    xid: int
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The last error; kept until a later transaction was applied."""

    message: str
    finish_lsn: Lsn | None
    relation: str | None
    time_s: float
