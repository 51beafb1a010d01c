"""What can go wrong in the bridge, as a small tree.

    BridgeError
      ConfigError           the configuration file; nothing was started
      StateError            the state directory: locked, full, unreadable, or of another server
      SparkLost             Spark cannot be started, or its JVM ends again and again
      PublisherError        the server: connection, slot, publication, privileges, settings
        SlotMoved           the slot confirmed what is not durable here
        WentBack            the server lost WAL that is durable here
        StreamError         the server ended the stream with an error of its own
      SkipError             the LSN to skip or to advance to cannot be one
      PublicationError      publications do not go together, or do not fit the tables
      TargetError           a Delta table is not what it must be
      TargetBusy            others' commits to a Delta table came in the way, again and again: nothing was committed
      SyncError             a table's copy was cut short: it starts again
      ApplyError            a batch or transaction could not be applied: nothing of it is recorded as durable
        OutcomeUnknown      a commit may or may not have happened: look before retrying

Every error says what, where and what to do. The worker retries an `Exception` it does not know and any
`BridgeError` whose `retry` is true; the others need somebody's hand first, and are tried again all the same,
at the slowest pace, because that hand may have acted on the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.lsn import Lsn


class BridgeError(Exception):
    """Base of the bridge's own errors.

    Attributes:
        message: What went wrong.
        hint: What the operator can do, in one sentence or one statement to run; empty when there is nothing.
        retry: Trying again soon, without anybody's help, may succeed.
    """

    retry = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\nHINT:  {self.hint}" if self.hint else message


class ConfigError(BridgeError):
    """The configuration file cannot be used as it is; names the key and the allowed values."""


class StateError(BridgeError):
    """The state directory cannot be used; with `retry`, not now."""

    def __init__(self, message: str, *, hint: str = "", retry: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.retry = retry


class SparkLost(BridgeError):
    """There is no Spark to work with; ends the process, with an exit code of its own."""


class PublisherError(BridgeError):
    """The server, its slot or its publications are not what the subscription needs."""

    def __init__(self, message: str, *, hint: str = "", retry: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.retry = retry


class SlotMoved(PublisherError):
    """The slot's confirmed_flush_lsn lies beyond everything that is durable here: changes are lost to us."""


class WentBack(PublisherError):
    """The server lost WAL that was received from it: its changes from there on are not all that it sends."""


class StreamError(PublisherError):
    """The walsender met an error in making the stream: another try at the same position may meet it again."""


class SkipError(BridgeError):
    """An LSN that was given by hand cannot be used, in PostgreSQL's words."""


class PublicationError(BridgeError):
    """Publications, a file's or the server's, are not what PostgreSQL would replicate by; mostly in its words."""


class TargetError(BridgeError):
    """A Delta table is missing, foreign, or has not the columns it needs."""


class TargetBusy(BridgeError):
    """Another writer's commits to a Delta table came in the way of every try: the fault of no transaction."""

    retry = True


class SyncError(BridgeError):
    """A table's copy did not come to its end; the next try starts it again."""

    retry = True


@dataclass(frozen=True, slots=True)
class ApplyContext:
    """Where applying stood, in the words of `apply_error_callback` (PostgreSQL, worker.c).

    Attributes:
        origin: The replication origin's name, `pgbridge_<subscription>`.
        finish_lsn: LSN of the (last) transaction's commit record: what `pgbridge skip --lsn` takes.
        xid: The transaction, where it is one; None for a batch of several.
        relation: `namespace.name` of the target, where known.
        command: INSERT, UPDATE, DELETE or TRUNCATE, where known.
        column: The column, where known.
    """

    origin: str
    finish_lsn: Lsn
    xid: int | None = None
    relation: str | None = None
    command: str | None = None
    column: str | None = None

    def __str__(self) -> str:
        text = f'processing remote data for replication origin "{self.origin}"'
        if self.command:
            text += f' during message type "{self.command}"'
        if self.relation:
            text += f' for replication target relation "{self.relation}"'
        if self.column:
            text += f' column "{self.column}"'
        if self.xid is not None:
            text += f" in transaction {self.xid},"
        return f"{text} finished at {self.finish_lsn}"


class ApplyError(BridgeError):
    """Applying failed; what it was applied from is still in the slot, and nothing was confirmed.

    Attributes:
        context: Where it happened; carries the finish LSN.
    """

    retry = True

    def __init__(self, message: str, context: ApplyContext, *, hint: str = "") -> None:
        super().__init__(f"{message}\nCONTEXT:  {context}", hint=hint)
        self.message = message
        self.context = context


class OutcomeUnknown(ApplyError):
    """A commit was sent and its answer did not come: Delta's transaction version decides at the next try."""
