"""The logical replication slot: created with an exported snapshot, dropped, and checked before streaming from it.

Source: the documentation's "Streaming Replication Protocol"; CREATE_REPLICATION_SLOT in PostgreSQL's repl_gram.y (the
syntax with bare keywords, which all versions from 10 on accept, and TWO_PHASE from 15 on).
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from pgbridge.bridge.receive.connection import connect, read_rows, translated
from pgbridge.bridge.runtime import errors, remedies, threads
from pgbridge.bridge.track.position import Held, Missing, Position, ServerHistory, compare, switch_points
from pgbridge.protocol.codec.walsender import quote_identifier
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgbridge.bridge.receive.slot_status import SlotStatus

_LOOK_INTERVAL_S = 0.25
_CANCEL_TIMEOUT_S = 5.0
_NAME_BYTES = 63  # NAMEDATALEN - 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An exported snapshot and its LSN.

    Attributes:
        name: For SET TRANSACTION SNAPSHOT; None if none was exported.
        consistent_point: Transactions that commit before it are in the snapshot; all others come in the stream.
        timeline: The timeline that it is on; None if that is not known.
    """

    name: str | None
    consistent_point: Lsn
    timeline: int | None = None


def tablesync_slot(slot_name: str) -> str:
    """The name of a tablesync worker's slot. It has that of the subscription's in it, which is unique on the server."""
    return _named_after(f"pgbridge_{slot_name}", "sync")


def watch_name(slot_name: str) -> str:
    """The application_name of a daemon's session that looks at slots, by the first one."""
    return _named_after(slot_name, "watch")


def recovery_name(slot_name: str) -> str:
    """The application_name of a recovery's session."""
    return _named_after(slot_name, "recover")


def _named_after(slot_name: str, what: str) -> str:
    name = f"{slot_name}_{what}"
    if len(name) <= _NAME_BYTES:
        return name
    ending = f"_{zlib.crc32(name.encode()):08x}_{what}"
    return slot_name[: _NAME_BYTES - len(ending)] + ending


class ReplicationConnection(threads.Closing):
    """A walsender connection that manages slots.

    A snapshot that it exports is valid until its next command, or until it is closed.

    Args:
        application_name: For pg_stat_activity.
        stopping: Called while a command waits for transactions or other processes; if it returns True, the command is
            cancelled.

    Raises:
        PublisherError: From the constructor and every method, if the server refuses.
        SyncError: From every method, if `stopping` returned True. A slot that was being created does not exist then.
    """

    def __init__(self, conninfo: str, *, application_name: str, stopping: Callable[[], bool] = lambda: False) -> None:
        self._stopping = stopping
        self.connection = connect(conninfo, application_name=application_name, replication=True)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _run(self, command: str, doing: str) -> list[tuple[Any, ...]]:
        try:
            with _cancelled_if(self.connection, self._stopping):
                cursor = self.connection.execute(command.encode())
                return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            if self._stopping():
                raise errors.SyncError(f"{doing}: stopped while waiting") from error
            raise translated(error, doing) from error

    def history(self) -> ServerHistory:
        """Read which server it is, and which WAL it has: IDENTIFY_SYSTEM, and the history of its timeline."""
        # asked first: a standby that is promoted in between may send WAL of a later timeline than it has told
        facts = read_rows(self.connection, "server")[0]
        system_identifier, timeline, flush_lsn, *_ = self._run("IDENTIFY_SYSTEM", "cannot identify the publisher")[0]
        left = {}
        if int(timeline) > 1:  # timeline 1 has no history
            content = self._run(f"TIMELINE_HISTORY {timeline}", "cannot read the publisher's timeline history")[0][1]
            left = switch_points(content.decode() if isinstance(content, bytes) else str(content))
        in_recovery = bool(facts["in_recovery"])
        return ServerHistory(
            str(system_identifier),
            int(timeline),
            # a standby may still drop what it has received, but not what it has replayed
            Lsn.parse(facts["flush_lsn"] if in_recovery else flush_lsn),
            in_recovery,
            left,
            int(facts["started_us"]),
        )

    def create_slot(
        self,
        slot_name: str,
        *,
        temporary: bool = False,
        export_snapshot: bool = True,
        two_phase: bool = False,
        failover: bool = False,
    ) -> Snapshot:
        """Create a logical slot for pgoutput, and wait for its consistent point.

        Before that, every transaction that is open at the start must end, in every database, prepared ones included.

        Args:
            temporary: Whether it is dropped with this connection.
            export_snapshot: Whether to export the snapshot of the consistent point.
            two_phase: Whether transactions prepared after the consistent point are sent at PREPARE TRANSACTION
                (PostgreSQL 15).
            failover: Whether it is synchronized to standbys (PostgreSQL 17).
        """
        kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
        if failover:  # which only the later syntax has
            prepared = ", TWO_PHASE" if two_phase else ""
            options = f"(SNAPSHOT '{'export' if export_snapshot else 'nothing'}', FAILOVER{prepared})"
        else:
            options = "EXPORT_SNAPSHOT" if export_snapshot else "NOEXPORT_SNAPSHOT"
            options += " TWO_PHASE" if two_phase else ""
        command = f"CREATE_REPLICATION_SLOT {quote_identifier(slot_name)} {kind} pgoutput {options}"
        row = self._run(command, f'cannot create replication slot "{slot_name}"')[0]
        return Snapshot(row[2], Lsn.parse(row[1]))

    def set_failover(self, slot_name: str) -> None:
        """Have a slot synchronized to standbys (PostgreSQL 17). Nobody may stream from it meanwhile."""
        self._run(
            f"ALTER_REPLICATION_SLOT {quote_identifier(slot_name)} (FAILOVER true)",
            f'cannot set failover of replication slot "{slot_name}"',
        )

    def drop_slot(self, slot_name: str) -> None:
        """Drop a slot, waiting while another process streams from it."""
        self._run(
            f"DROP_REPLICATION_SLOT {quote_identifier(slot_name)} WAIT",
            f'cannot drop replication slot "{slot_name}"',
        )


@contextlib.contextmanager
def _cancelled_if(connection: psycopg.Connection[Any], stopping: Callable[[], bool]) -> Iterator[None]:
    """Have the server cancel the command that runs in this context once `stopping` returns True.

    Closing the connection is not enough: a server that waits for a transaction does not notice it.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_INTERVAL_S):
            if stopping():
                with contextlib.suppress(psycopg.Error):  # it is tried again
                    connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)

    watcher = threading.Thread(target=watch, name="cancels a replication command", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


_INVALID = {
    "wal_removed": "it needed more WAL than max_slot_wal_keep_size lets the server keep",
    "idle_timeout": "nobody streamed from it for idle_replication_slot_timeout",
    "rows_removed": "the server has removed catalog rows that it needs",
    "wal_level_insufficient": "the primary's wal_level was too low",
    "conflicting": "the standby's recovery conflicted with it",
}
"""pg_replication_slots.invalidation_reason (PostgreSQL 17; idle_timeout 18), and what 16 has in its place."""


def refusal(missing: Missing, position: Position, *, anew: str, upgraded: str = "") -> errors.PublisherError:
    """Return the error for a server that does not have a position.

    Args:
        missing: Why it does not.
        position: The position, up to which changes are durable here.
        anew: What to do if the server is right: a sentence that begins in lower case.
        upgraded: What to do if pg_upgrade has made the server of the former one: the same.
    """
    durable = f"but changes up to {position} are durable here"
    if missing.another_server:
        return errors.AnotherServer(
            f"the publisher is another server: {missing.reason}",
            hint="check the connection string: until it leads to the first server, nothing is changed here; "
            f"{upgraded or 'one that pg_upgrade made is another server, too'}; "
            "any other server needs another state_dir and warehouse",
        )
    if missing.later:
        return errors.PublisherError(f"the standby lags: {missing.reason}, {durable}", retry=True)
    return errors.PublisherWentBack(
        f"the publisher went back: {missing.reason}, {durable}",
        hint=f"check the connection string; if the server is right, the targets have what it lost; {anew}",
    )


def refused_by(positions: Held, server: ServerHistory, subscription: str) -> errors.PublisherError | None:
    """Return the error for a server that nothing can be streamed from; None if something can.

    Args:
        subscription: The subscription's own name.
    """
    compared = compare(positions, server)
    if compared.refused is None or compared.position is None:
        return None
    anew = f"to copy all tables again, run: {remedies.start_afresh(subscription)}"
    upgraded = f"if pg_upgrade made this one of it, stop the daemon, and run: {remedies.upgraded(subscription)}"
    return refusal(compared.refused, compared.position, anew=anew, upgraded=upgraded)


def check_slot(
    slot_name: str, status: SlotStatus | None, *, subscription: str, database: str, durable_lsn: Lsn | None
) -> Lsn:
    """Check a slot before streaming from it.

    Its two_phase may differ from the subscription's; each transaction is applied at its COMMIT PREPARED either way:

    - If only the subscription has two_phase, START_REPLICATION sets it on the slot (`CreateDecodingContext` in
      logical.c; PostgreSQL's own subscriber relies on that). A transaction prepared before the start LSN is sent whole
      at COMMIT PREPARED (BEGIN PREPARE … PREPARE, COMMIT PREPARED); at ROLLBACK PREPARED only that message is sent.
    - If only the slot has it, the server sends prepared transactions at PREPARE, whatever the options and the protocol
      version are. Only ALTER_REPLICATION_SLOT (18) removes it from a slot.

    Args:
        slot_name: Its name, for messages.
        status: Its row of pg_replication_slots; None if it does not exist.
        subscription: The subscription's name, for hints.
        database: The connection's database.
        durable_lsn: The origin's LSN; None before the first stream.

    Returns:
        Its confirmed_flush_lsn.

    Raises:
        SlotAdvanced: The slot has confirmed more than is durable here: the changes between are lost.
        PublisherError: The slot does not exist, or this subscription cannot stream from it.
    """
    afresh = f"to copy all tables again, run: {remedies.start_afresh(subscription)}"
    if status is None:
        if durable_lsn is None:
            raise errors.PublisherError(
                f'replication slot "{slot_name}" does not exist on the publisher',
                hint=f"run on the server: SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput');",
            )
        raise errors.PublisherError(
            f'replication slot "{slot_name}" does not exist on the publisher any more: changes after {durable_lsn} '
            "are lost",
            hint=afresh,
        )
    if status.slot_type != "logical" or status.plugin != "pgoutput":
        raise errors.PublisherError(
            f'replication slot "{slot_name}" is {status.slot_type} with plugin {status.plugin}, '
            "not logical with pgoutput",
            hint="choose another slot_name",
        )
    if status.database != database:
        raise errors.PublisherError(
            f'replication slot "{slot_name}" was created in database "{status.database}", not in "{database}"',
            hint="set dbname in the connection, or another slot_name",
        )
    if status.synced:
        skipped = status.slotsync_skip_reason
        raise errors.PublisherError(
            f"replication slot \"{slot_name}\" is the standby's copy of its primary's: it can be streamed from after a "
            "promotion only" + (f"; its last synchronization was skipped ({skipped})" if skipped else ""),
            hint="connect to the primary: name all hosts in the connection, with target_session_attrs=read-write",
            retry=True,
        )
    reason = status.invalidation_reason
    if reason is not None or status.wal_status == "lost" or status.confirmed_flush_lsn is None:
        why = _INVALID.get(reason or "", reason or "the server has removed WAL that it needs")
        invalid = f'replication slot "{slot_name}" is invalid: {why}'
        if durable_lsn is None:
            raise errors.PublisherError(
                invalid, hint=f"drop it on the server: SELECT pg_drop_replication_slot('{slot_name}');"
            )
        raise errors.PublisherError(f"{invalid}; changes after {durable_lsn} are lost", hint=afresh)
    if durable_lsn is not None and status.confirmed_flush_lsn > durable_lsn:
        raise errors.SlotAdvanced(
            f'replication slot "{slot_name}" has confirmed {status.confirmed_flush_lsn}, but only changes up to '
            f"{durable_lsn} are durable here: somebody advanced or re-created it, and the changes between are lost",
            hint="if state_dir was put back from a backup, and the warehouse was not, move it away, and run: "
            f"{remedies.recover(subscription)}; else {afresh}",
        )
    return status.confirmed_flush_lsn
