"""The rows of the catalog's tables, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from collections.abc import Sequence

SYNC: Final = ":sync"
"""Ends the tablesync worker's name in the catalog; a subscription's name has no colon."""


def sync_name(subscription: str) -> str:
    """The name of a subscription's tablesync worker in the catalog."""
    return subscription + SYNC


def owner_of(name: str) -> str:
    """The subscription that a name in the catalog belongs to: its own, or its tablesync worker's."""
    return name.removesuffix(SYNC)


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

    @classmethod
    def of(cls, values: Sequence[Any]) -> Self:
        """Make one of the values of `SUBSCRIPTION_COLUMNS`."""
        name, enabled, incarnation, epoch, slot_name, slot_state, system, skip_lsn, state, received, *counts = values
        lsn, received_lsn = None if skip_lsn is None else Lsn(skip_lsn), Lsn(received)
        return cls(
            name, bool(enabled), incarnation, epoch, slot_name, slot_state, system, lsn, state, received_lsn, *counts
        )

    @property
    def txn_app_id(self) -> str:
        """Delta's application id of the subscription's commits; another one after the state was removed."""
        return f"pgbridge/{self.system_identifier}/{self.name}/{self.incarnation}"

    @property
    def batch_app_id(self) -> str:
        """Delta's application id of batches; another one after each undo, or Delta would ignore the batch's retry."""
        return f"{self.txn_app_id}/{self.epoch}"


SUBSCRIPTION_COLUMNS: Final = (
    "name, enabled, incarnation, epoch, slot_name, slot_state, system_identifier, skip_lsn, state, received_lsn, "
    "apply_error_count, sync_error_count"
)
"""The columns of `subscription` in the order of `SubscriptionRow`'s fields."""

FOLLOWS_STREAM: Final = frozenset("sr")
"""States of a table that follows the stream."""


@dataclass(frozen=True, slots=True)
class RelRow:
    """`pg_subscription_rel`'s counterpart: a table's state, the LSN of that state, and the table's position.

    Attributes:
        lsn: Where the table joined the subscription's stream, by a copy or a hand-over (`srsublsn`).
        first_lsn: Of a copy with ranges under several snapshots (`bridge.catalog.copied_ranges`): the first one's, from
            which on the stream brings changes; `lsn` is the last one's. 0 for any other.
        position: What the Delta table's own log says, as last seen: the table has the transactions that committed
            before it. 0 if it has not been seen, or has no commit of the subscription.
        timeline: The timeline that both are on; None if that is not known.
        relid: The published table's oid as of the origin's LSN, by which a renamed table is recognized. None before it
            is known.
        waits: Why it waits for its resync, with the hint; None if it does not. Its changes are left out.
        waits_since_s: Since when, in seconds since 1970.
        shape: What its Delta table has in place of the columns (`bridge.publication.shape.Shape.description`); None if
            unknown.
    """

    namespace: str
    name: str
    state: str
    lsn: Lsn
    path: str
    relid: int | None = None
    position: Lsn = INVALID
    timeline: int | None = None
    waits: str | None = None
    waits_since_s: float | None = None
    first_lsn: Lsn = INVALID
    shape: str | None = None

    @property
    def follows(self) -> bool:
        """Whether it follows a stream."""
        return self.state in FOLLOWS_STREAM and self.waits is None

    @property
    def since_lsn(self) -> Lsn:
        """The table has nothing from after it, and the transactions that committed before it, but for `whole_lsn`."""
        return max(self.lsn, self.position)

    @property
    def whole_lsn(self) -> Lsn:
        """The table has the transactions that committed before it; of a range it may have later ones."""
        return max(self.first_lsn or self.lsn, self.position)

    @property
    def qualified_name(self) -> str:
        """`namespace.name`, unquoted, as in messages."""
        return f"{self.namespace}.{self.name}"


REL_COLUMNS: Final = (
    "namespace, name, state, lsn, path, relid, position, timeline, waits, waits_since, first_lsn, shape"
)
"""The columns of `subscription_rel` in the order of `RelRow`'s fields."""
REL_VALUES: Final = ", ".join("?" for _ in REL_COLUMNS.split(", "))
"""Their parameters."""
AHEAD_OF_2: Final = "position > max(iif(first_lsn > 0, first_lsn, lsn), ?2)"
"""The condition that a table has transactions beyond an LSN, the second parameter, of a batch and not of its copy."""


@dataclass(frozen=True, slots=True)
class CopyRow:
    """The progress of a table's copy.

    Attributes:
        bytes: Bytes read so far, in COPY's binary format.
        total_bytes_estimate: `bytes` at the end, by the planner's estimate of rows.
        rows_per_s: The latest rate; None before it is known.
        seconds_left: At that rate; None before it is known.
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
    """A batch about to be applied: the transactions that end in (start_lsn, end_lsn].

    Each commit of the batch has its end in the table's log. So a batch that was cut short is not applied again as it
    was: its transactions are received again, and tables that have them leave them out.

    Attributes:
        undoing: Its commits are being undone: it must not be applied before that is finished.
        alters: It changes columns of its targets, by the publisher's catalog when it was formed, or makes several
            commits to one target.
        flushing: A flush of what it committed was begun, and has not succeeded. If it failed, the kernel reports that
            once; a later flush of the same files succeeds, although they are not on disk. So none of these files is
            to be relied on.
        rebooted: The machine was rebooted since the batch was begun: after a power cut, Delta's log may have commits
            whose data is lost.
        messages_path: The Delta table that its logical messages go to; None for none. The configuration may name
            another one when the batch is undone.
        tables: The locations that it commits to; None for any of the subscription: an earlier version recorded it.
        timeline: The timeline that its end is on, once it is recorded; None if that is not known.
    """

    start_lsn: Lsn
    end_lsn: Lsn
    undoing: bool = False
    alters: bool = False
    flushing: bool = False
    rebooted: bool = field(default=False, compare=False)
    messages_path: str | None = field(default=None, compare=False)
    tables: tuple[str, ...] | None = field(default=None, compare=False)
    timeline: int | None = field(default=None, compare=False)

    @property
    def must_be_undone(self) -> bool:
        """Whether what an earlier life has committed must be undone before the transactions are applied again."""
        return self.undoing or self.alters or self.flushing or self.rebooted


@dataclass(frozen=True, slots=True)
class AppliedBatch:
    """The record of a batch that is durable, for `<warehouse>/pgbridge/commits`.

    Attributes:
        origin: The application id of its commits.
        first_commit_us: When its first transaction was committed: microseconds since 2000-01-01 UTC; 0 if not known.
        last_commit_us: When its last one was.
        tables: (namespace, name, path) of each table that it may have committed to.
        committed: The locations of those whose logs now have the batch's end as their position.
    """

    origin: str
    start_lsn: Lsn
    first_commit_us: int
    last_commit_us: int
    transactions: int
    tables: tuple[tuple[str, str, str], ...]
    committed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """A column of a published table, as last seen in the stream.

    Attributes:
        attnum: `pg_attribute.attnum`: it stays the same when the column is renamed, and is never used again. Negative
            for a column that is gone and whose number is not known.
        state: `live`: in the stream; `hidden`: not in the stream, because the column is not published; `gone`: no
            longer in the table.
    """

    attnum: int
    name: str
    type_oid: int
    typmod: int
    state: Literal["live", "hidden", "gone"] = "live"


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """A prepared transaction; its changes are in `state_dir/spool/<subscription>/<file>`.

    Attributes:
        relids: The tables that it changes; None if that is not known: an earlier version recorded it.
    """

    file: str
    gid: str
    xid: int
    end_lsn: Lsn
    relids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The last error; kept until a later transaction is applied."""

    message: str
    finish_lsn: Lsn | None
    relation: str | None
    time_s: float
