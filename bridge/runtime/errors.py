"""The bridge's errors, as a small tree.

    BridgeError
      ConfigError           the configuration file cannot be used; nothing was started
      StateError            the state directory is locked, full, unreadable, or belongs to another server
        TakenOver           another machine goes on with the subscription
      SparkLost             Spark cannot be started, or its JVM died too often before all had caught up
      PublisherError        the server: connection, slot, publication, privileges, settings
        SlotAdvanced        the slot has confirmed changes that are not durable here
        PublisherWentBack   the server has lost WAL that is durable here
        AnotherServer       the connection leads to another server than the one that the subscription began with
        StreamError         the server ended the stream with an error
      SkipError             an LSN for `skip`, `replay` or `origin --advance` is not possible
        InvalidLsn          the text is no LSN
      PublicationError      publications contradict each other or the tables
      VerifyError           source and target could not be compared
      TargetError           a Delta table is not as it must be
        OwnColumnError      a column that only the table has, or that Delta fills by itself, is in the way
        NeedsResync         it cannot follow the published table; a fresh copy can
          RangesDiffer      it was copied in parts that a change of the stream does not fit; it is copied afresh
      StoreError            the object store of a Delta table does not answer, or refuses
      TargetBusy            other writers' commits to a Delta table were in the way every time; nothing was committed
      SyncError             a table's copy was cut short; the next attempt goes on
        TableAltered        the table was altered or rewritten just before
        TableAhead          a table has what the server lost; it is copied afresh
      EndsSpark             a copy or a batch has ended Spark's JVM too often; it is not begun
      ApplyError            a batch or transaction could not be applied; none of it is recorded as durable
        OutcomeUnknown      a commit may or may not have happened

Every error says what is wrong, where, and what to do. Its class says how workers go on, whichever of them meets it:

- If it is the subscription's `own`, it counts in `pgbridge status`, and `disable_on_error` disables the subscription.
- With `retry` it is soon tried again. Else it needs an operator, and is tried again only every `workers.retry_max_s`,
  because the operator may have acted on the server; after a ConfigError by another worker.

By default it is the subscription's own, and needs an operator. An `Exception` of any other kind is its own, too, and
soon tried again.
"""

from __future__ import annotations

import gc
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pgbridge.protocol.lsn import Lsn


HINT: Final = "\nHINT:  "
"""Stands between an error's message and its hint, as in psql."""


class BridgeError(Exception):
    """Base of the bridge's own errors.

    Attributes:
        message: What went wrong.
        hint: What the operator can do: a sentence, or a command to run; empty if there is nothing.
        retry: Whether trying again soon may succeed without an operator.
        own: Whether it is the subscription's own failure, not one of its surroundings.
    """

    retry = False
    own = True

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}{HINT}{self.hint}" if self.hint else message


class ConfigError(BridgeError):
    """The configuration file cannot be used; the message names the key and the allowed values."""

    own = False


class StateError(BridgeError):
    """The state directory cannot be used; with `retry`, only for the moment."""

    own = False

    def __init__(self, message: str, *, hint: str = "", retry: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.retry = retry


class TakenOver(StateError):
    """Another machine goes on with the subscription: this state directory is outdated, and nothing may be done by it.

    It ends the daemon.
    """


class SparkLost(BridgeError):
    """There is no Spark to work with. It ends the process, with exit code 3."""

    own = False


class PublisherError(BridgeError):
    """The server, its slot or its publications are not as the subscription needs them."""

    own = False

    def __init__(self, message: str, *, hint: str = "", retry: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.retry = retry


class SlotAdvanced(PublisherError):
    """The slot's confirmed_flush_lsn is ahead of what is durable here: the server does not send the changes between."""


class PublisherWentBack(PublisherError):
    """The server has lost WAL that was received from it, so what it sends does not continue what is durable here."""


class AnotherServer(PublisherError):
    """The server has another system identifier than the one that the subscription began with."""


class StreamError(PublisherError):
    """The walsender ended the stream with an error, which it may repeat at the same position.

    Attributes:
        sqlstate: Of its error.
        after: All transactions that commit before it were handed over.
        finish_lsn: Of the transaction that it could not send; None if that is not known.
    """

    def __init__(
        self,
        message: str,
        sqlstate: str,
        after: Lsn,
        finish_lsn: Lsn | None = None,
        *,
        hint: str = "",
        retry: bool = False,
    ) -> None:
        super().__init__(message, hint=hint, retry=retry)
        self.sqlstate: str = sqlstate
        self.after: Lsn = after
        self.finish_lsn: Lsn | None = finish_lsn


class SkipError(BridgeError):
    """An LSN that an operator gave cannot be used; the message is PostgreSQL's."""


class InvalidLsn(SkipError):
    """A text that an operator gave is no LSN: a wrong argument."""


class PublicationError(BridgeError):
    """Publications, of the server or of a file, are not as PostgreSQL would accept them; mostly with its message."""


class VerifyError(BridgeError):
    """Source and target could not be compared, or may not be repaired; nothing is said of their rows."""


class TargetError(BridgeError):
    """A Delta table does not exist, belongs to others, or does not have the columns that it needs."""


class OwnColumnError(TargetError):
    """Delta does not fill a column that only the Delta table has, or does not let one that is published be written.

    Attributes:
        alterable: Whether the Delta table can be altered so that it does.
    """

    def __init__(self, message: str, *, hint: str = "", alterable: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.alterable = alterable


class NeedsResync(TargetError):
    """A Delta table cannot follow the stream exactly, so it waits for a fresh copy.

    Attributes:
        tables: (namespace, name) of the target; of several, if they wait together.
        hint: What has to be done before the copy; who has them wait adds the command.
    """

    def __init__(self, message: str, *tables: tuple[str, str], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.tables = tables


class RangesDiffer(NeedsResync):
    """A change concerns parts of a table that were copied under several snapshots, and cannot be told for each."""


class StoreError(BridgeError):
    """The object store of a Delta table does not answer, has no such bucket, or refuses the credentials."""

    retry = True
    own = False


class TargetBusy(BridgeError):
    """Other writers' commits to a Delta table were in the way at every attempt: no transaction is at fault."""

    retry = True
    own = False


class SyncError(BridgeError):
    """A table's copy did not finish; the next attempt goes on, or starts it again."""

    retry = True


class TableAltered(SyncError):
    """A table was altered or rewritten before its copy had a lock on it; another copy has a new snapshot."""

    own = False


class TableAhead(SyncError):
    """A Delta table has transactions that the server lost. It is recorded that the table is to be copied afresh."""

    own = False


class EndsSpark(BridgeError):
    """A copy or a batch has ended Spark's JVM too often, alone in it (see `bridge.apply.suspects`)."""


@dataclass(frozen=True, slots=True)
class ApplyContext:
    """The change that was being applied, in the words of PostgreSQL's `apply_error_callback` (worker.c).

    Attributes:
        origin: The replication origin's name, `pgbridge_<subscription>`.
        finish_lsn: LSN of the (last) transaction's commit record, for `pgbridge skip --lsn`.
        xid: The transaction's id; None for a batch of several transactions.
        relation: `namespace.name` of the target; None if unknown.
        command: INSERT, UPDATE, DELETE or TRUNCATE; None if unknown.
        column: The column; None if unknown.
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
    """Changes could not be applied. They are not confirmed, so the server still has them.

    Attributes:
        context: What was being applied, with its finish LSN.
    """

    retry = True

    def __init__(self, message: str, context: ApplyContext, *, hint: str = "") -> None:
        super().__init__(f"{message}\nCONTEXT:  {context}", hint=hint)
        self.message = message
        self.context = context


class OutcomeUnknown(ApplyError):
    """A commit was sent and no answer came. The next attempt finds out by Delta's transaction version."""

    own = False


def is_own(error: BaseException) -> bool:
    """Whether an error is the subscription's own failure."""
    return getattr(error, "own", True)


def counts_in_copy(error: BaseException) -> bool:
    """Whether an error of a copy is counted: also the server's, if it refuses the copy, as for want of a GRANT."""
    return is_own(error) or (type(error) is PublisherError and not error.retry)


def may_retry(error: BaseException | None) -> bool:
    """Whether to try again soon after an error."""
    return getattr(error, "retry", True)


def let_go(error: BaseException) -> None:
    """Release what an error's frames hold: a batch, which waits for the next attempt with rows of any size.

    Cycles of errors and frames remain. The garbage collector would find them long after, because large rows are few
    objects.
    """
    waiting, seen = [error], list[BaseException]()
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.append(current)
            traceback.clear_frames(current.__traceback__)
            waiting += [cause for cause in (current.__cause__, current.__context__) if cause is not None]
    gc.collect()
