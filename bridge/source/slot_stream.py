"""A slot's stream from an offset on, as the source reads it, by the daemon's receiver; and offsets in a checkpoint.

The slot's confirmed position moves only when `confirm` is called. A status update between says nothing of what is
durable, so that the server neither waits for it at its shutdown, nor lets go of WAL that a restart needs.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgbridge.bridge.receive.server_facts import ServerTypes
from pgbridge.bridge.receive.slot import ReplicationConnection, check_slot, refusal
from pgbridge.bridge.receive.stream.pgoutput_options import pgoutput_options
from pgbridge.bridge.receive.stream.queue import BatchLimits, TransactionQueue
from pgbridge.bridge.receive.stream.walreceiver import StreamOptions, WalReceiver
from pgbridge.bridge.runtime import errors, threads
from pgbridge.bridge.track.position import Missing, Position
from pgbridge.bridge.track.progress import Progress
from pgbridge.bridge.track.spool import SpoolFolder
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pgbridge.bridge.receive.publisher import Publisher
    from pgbridge.bridge.source.options import SourceOptions
    from pgbridge.protocol.stream.transactions import Item


@dataclass(frozen=True, slots=True)
class Offset:
    """A position of a server's WAL: all transactions that end at or before it belong to earlier batches.

    It need not be the end of a transaction.

    Attributes:
        system_identifier: The server's cluster: a query keeps to it.
        timeline: The timeline of the server that the WAL up to it came from; it stays, whatever server is read later.
            None if an earlier version of pgbridge wrote the offset on a standby.
        timeline_lsn: The last position that is certainly of that timeline; None for the offset itself.
    """

    lsn: Lsn
    system_identifier: str
    timeline: int | None = None
    timeline_lsn: Lsn | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into its checkpoint."""
        timeline = {} if self.timeline is None else {"timeline": self.timeline}
        certain = {} if self.timeline_lsn is None else {"timeline_lsn": str(self.timeline_lsn)}
        return {"lsn": str(self.lsn), "system_identifier": self.system_identifier, **timeline, **certain}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Offset:
        """Read an offset of a checkpoint.

        Raises:
            StateError: It is none of this source.
        """
        try:
            timeline, certain = fields.get("timeline"), fields.get("timeline_lsn")
            return cls(
                Lsn.parse(fields["lsn"]),
                str(fields["system_identifier"]),
                None if timeline is None else int(timeline),
                None if certain is None else Lsn.parse(certain),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise errors.StateError(
                f'the checkpoint has an offset that format("pgoutput") did not write: {fields}',
                hint="give the query a checkpointLocation of its own",
            ) from error


@dataclass(frozen=True, slots=True)
class Server:
    """The server that a connection leads to.

    Attributes:
        timeline: The timeline that it writes, or replays if it is a standby.
        replayed_lsn: How far a standby was when it was asked: from there on it may replay another timeline. None for a
            primary, whose timeline does not change while it runs.
    """

    system_identifier: str
    timeline: int
    replayed_lsn: Lsn | None

    def offset(self, lsn: Lsn) -> Offset:
        """Return a position of its WAL as an offset."""
        certain = None if self.replayed_lsn is None or lsn <= self.replayed_lsn else self.replayed_lsn
        return Offset(lsn, self.system_identifier, self.timeline, certain)


_TRY_AGAIN_S = 0.25
_LOOK_S = 0.2
_OBJECT_IN_USE = "55006"

AFRESH = (
    "drop the slot, then begin again with a new slot and snapshot, a new checkpointLocation, and the target table made "
    "anew (docs/spark-source.md#beginning-again)"
)
"""The remedy if changes are lost, or if the target has changes that the server lost."""

_NOT_ON = f"the query cannot go on from its checkpoint: {AFRESH}"


def check_server(
    options: SourceOptions, publisher: Publisher, replication: ReplicationConnection, *offsets: Offset
) -> Server:
    """Check that a server's WAL has offsets of the checkpoint, each on the timeline that it was received on.

    Those of the server that pg_upgrade has made it of, by the options, are before all that it has.

    Args:
        options: The source's.
        publisher: A connection for catalog queries, the slot's included.
        replication: The connection that streams, or one that looks before it.
        offsets: A batch's start; also its end if the checkpoint has it: the sink may have committed the batch already.

    Returns:
        The server that `replication` leads to.

    Raises:
        PublisherWentBack: The server has lost WAL that was read, or has other WAL in its place.
        PublisherError: It is another server, or a standby that does not have the offsets yet; or the two connections
            lead to two servers.
    """
    server = replication.history()
    if server.started_us != publisher.started_us():
        raise errors.PublisherError("the connection string has just led to two servers", retry=True)
    for offset in offsets:
        system = offset.system_identifier
        if system == options.upgraded_from != server.system_identifier:
            continue
        certain = Position(system, offset.timeline, offset.timeline_lsn or offset.lsn)
        for position in (certain, Position(system, None, offset.lsn)):
            if (missing := server.missing(position)) is not None:
                raise (
                    _another(missing, system)
                    if missing.another_server
                    else _for_the_source(refusal(missing, position, anew=_NOT_ON))
                )
    return Server(server.system_identifier, server.timeline, server.flush_lsn if server.in_recovery else None)


def check_slot_of(options: SourceOptions, publisher: Publisher, start: Offset | None, server: Server) -> Lsn:
    """Check a slot of a checked server; returns its confirmed_flush_lsn.

    Args:
        options: The source's.
        publisher: A connection to the server.
        start: Where the batch starts, perhaps on the server before pg_upgrade; None for a query without an offset yet.
        server: What `check_server` has returned.
    """
    status = publisher.slot(options.slot)
    upgraded = start is not None and start.system_identifier != server.system_identifier
    durable_lsn = None if start is None or upgraded else start.lsn
    try:
        confirmed = check_slot(
            options.slot, status, subscription=options.slot, database=publisher.database, durable_lsn=durable_lsn
        )
    except errors.PublisherError as error:
        raise _for_the_source(error) from None  # its hint is for the daemon
    if upgraded and start is not None and confirmed < start.lsn:  # its WAL would begin behind the former server's
        raise errors.PublisherError(
            f"pg_upgrade did not make this server of the one with system identifier {start.system_identifier}: its "
            f'slot "{options.slot}" is at {confirmed}, before the checkpoint\'s {start.lsn}',
            hint="check the options connection and upgradedFrom",
        )
    if status is not None and status.two_phase:
        raise errors.PublisherError(
            f'replication slot "{options.slot}" has two_phase, with which prepared transactions come before they are '
            "committed",
            hint="create it without two_phase",
        )
    return confirmed


def _another(missing: Missing, system_identifier: str) -> errors.PublisherError:
    return errors.AnotherServer(
        f"the publisher is another server: {missing.reason.replace('the subscription', 'the query')}",
        hint="check the option connection; if pg_upgrade made this server of the former one, set the option "
        f'upgradedFrom = "{system_identifier}"; a query of any other server needs another checkpointLocation',
    )


def _for_the_source(error: errors.PublisherError) -> errors.PublisherError:
    """An error of the checks that the daemon has, too, with what to do here."""
    if isinstance(error, errors.SlotAdvanced | errors.PublisherWentBack):
        return type(error)(error.message, hint=_NOT_ON)
    if "are lost" in error.message:
        return errors.PublisherError(error.message, hint=_NOT_ON)
    if "slot_name" in error.hint:
        return errors.PublisherError(error.message, hint=error.hint.replace("slot_name", "value of the option slot"))
    return error


class SlotStream(threads.Closing):
    """A running stream from an offset on.

    Args:
        options: The source's.
        publisher: A connection for catalog queries.
        start: Where to begin.
        ends: Where the batch ends, if it is planned.
        confirm_lsn: What Spark has committed and the server may not know yet; None for nothing new.
        memory_bytes: Limits what waits in memory, and each transaction in progress; more of a transaction is spooled.
        leave_when_full: Release the slot if as much waits: `overflowed` says so.

    Attributes:
        server: The server that streams.

    Raises:
        PublisherError: As `check_server` and `check_slot_of`; or the slot is still in use after `slot_timeout_s`.
    """

    def __init__(
        self,
        options: SourceOptions,
        publisher: Publisher,
        start: Offset,
        *ends: Offset,
        confirm_lsn: Lsn | None,
        memory_bytes: int,
        leave_when_full: bool = False,
    ) -> None:
        self._progress = _Unconfirmed(INVALID)
        if confirm_lsn is not None:
            self._progress.confirm(confirm_lsn)
        self._folder = tempfile.TemporaryDirectory(prefix="pgbridge-source-")
        self._queue = _LeavingQueue(memory_bytes, self._leave) if leave_when_full else TransactionQueue(memory_bytes)
        self._closed = threading.Lock()
        columns = [column for table in publisher.tables(options.publications) for column in table.columns]
        readable = all(type_.binary for type_ in ServerTypes(publisher)([(c.type_oid, c.typmod) for c in columns]))
        receiver = WalReceiver(
            options.connection,
            StreamOptions(
                options.slot,
                start.lsn,
                pgoutput_options(options.subscription, publisher.version, binary_readable=readable),
                memory_bytes,
            ),
            self._queue,
            self._progress,
            SpoolFolder(Path(self._folder.name), []),
            application_name=options.application_name,
        )
        self._receiver: WalReceiver | None = receiver
        try:
            self.server = check_server(options, publisher, receiver.replication, start, *ends)
            check_slot_of(options, publisher, start, self.server)
            waited(receiver.start, options.slot_timeout_s)
            # nobody else can move the slot any more, as somebody could between the check and the start
            check_slot_of(options, publisher, start, self.server)
        except BaseException:
            self.close()
            raise

    def take(self, end: Lsn, limits: BatchLimits) -> tuple[list[Item], bool]:
        """Wait for transactions that end by `end`, and take them, up to the limits.

        Returns:
            The transactions, and whether these are the last that end by then.

        Raises:
            BridgeError: The stream was lost.
        """
        while True:
            taken, complete = self._queue.take_until(end, lambda: self._progress.passed_lsn, limits, _LOOK_S)
            if taken or complete:
                return taken, complete
            if self.overflowed:
                return [], False
            with self._closed:
                if self._receiver is not None:
                    self._receiver.request_keepalive()

    @property
    def overflowed(self) -> bool:
        """Whether more waited than memory may hold, so that the slot was released."""
        return isinstance(self._queue, _LeavingQueue) and self._queue.full

    def confirm(self, lsn: Lsn) -> None:
        """Tell the server that all transactions that end by `lsn` are committed in Spark's checkpoint."""
        self._progress.confirm(lsn)
        with self._closed:
            if self._receiver is not None:
                self._receiver.confirm()

    def close(self) -> None:
        """End the stream, release the slot, and remove spool files."""
        with self._closed:
            receiver, self._receiver = self._receiver, None
            if receiver is not None:
                receiver.stop()
                self._folder.cleanup()

    def _leave(self) -> None:
        """Close from another thread than the receiver's, which is the one that calls this."""
        threading.Thread(target=self.close, name="releases a slot", daemon=True).start()


class _Unconfirmed(Progress):
    """A stream's positions, of which a status update tells only what was confirmed, once.

    A server that is shut down waits until each subscriber has flushed all that was sent, or, from one that tells no
    flush position, has written it. Spark may commit much later, so the position is told once.
    """

    def __init__(self, durable_lsn: Lsn) -> None:
        self._to_tell: deque[Lsn] = deque()
        super().__init__(durable_lsn)

    def confirm(self, lsn: Lsn) -> None:
        """Tell it with the next status update."""
        self._to_tell.append(lsn)

    @property
    def durable_lsn(self) -> Lsn:
        """The position for a status update's flush_lsn; 0 for none."""
        return self._to_tell.popleft() if self._to_tell else INVALID

    @durable_lsn.setter
    def durable_lsn(self, lsn: Lsn) -> None:
        """Do without the position that a stream begins with."""


class _LeavingQueue(TransactionQueue):
    """A queue that does not make the server wait once it is full: it has the stream ended."""

    def __init__(self, max_bytes: int, leave: Callable[[], None]) -> None:
        super().__init__(max_bytes)
        self._leave = leave
        self.full = False

    def wait_for_room(self, timeout_s: float) -> bool:
        """Return whether there is room; the first time that there is none, leave."""
        room = super().wait_for_room(0)
        if room and not self.full:
            return True
        if not self.full:
            self.full = True
            self._leave()
            self.wake()
        time.sleep(timeout_s / 10)
        return False


def waited(begin: Callable[[], None], timeout_s: float) -> None:
    """Call `begin` until the slot is free, or the time is over: the process that had it may have just been killed.

    Raises:
        PublisherError: It is still in use; or another error of `begin`.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            begin()
        except errors.PublisherError as error:
            if getattr(error.__cause__, "sqlstate", None) != _OBJECT_IN_USE:
                raise
            if time.monotonic() >= end_s:
                raise errors.PublisherError(
                    f"{error.message}; waited for {timeout_s:g} s",
                    hint="a slot serves one query at a time: end the other one, or give this one a slot of its own; "
                    "a query that reads a batch more than once at a time needs DataFrame.persist()",
                    retry=True,
                ) from error
            time.sleep(_TRY_AGAIN_S)
        else:
            return
