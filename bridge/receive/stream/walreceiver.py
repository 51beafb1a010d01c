"""Receives a slot's stream in a thread of its own, and sends the server status updates.

The thread owns the connection, so status updates are sent on time while the applier works. Messages are handled as
arrays, as many at a time as have arrived. Its priority is low, and it writes spool files, so on a loaded machine it may
be late: a thread of the process, which only looks at the clock, then sends the status update.

Source: the documentation's "Streaming Replication Protocol"; `LogicalRepApplyLoop` and `send_feedback` in worker.c.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import psycopg

from pgbridge.bridge.catalog.catalog_rows import owner_of
from pgbridge.bridge.receive.connection import follow_encoding, stream_name, translated
from pgbridge.bridge.receive.readiness import WalReceiverTimeout, writable
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.receive.stream.copy_both import StreamEnded, copy_both
from pgbridge.bridge.runtime import errors, faults, threads
from pgbridge.protocol.codec import walsender
from pgbridge.protocol.errors import MalformedMessage, ProtocolError
from pgbridge.protocol.lsn import INVALID, POSTGRES_EPOCH_S, Lsn
from pgbridge.protocol.stream.assembler import State, TransactionAssembler
from pgbridge.protocol.stream.transactions import Ending, Item, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbridge.bridge.receive.stream.masking import StreamMasks
    from pgbridge.bridge.receive.stream.queue import TransactionQueue
    from pgbridge.bridge.track.progress import Progress
    from pgbridge.bridge.track.spool import SpoolFolder
    from pgbridge.protocol.bulk.message_array import MessageArray


STATUS_INTERVAL_S = 1.0
"""The longest time between status updates while positions move: so pg_replication_slots is up to date for monitoring,
and a receiving thread that is busy keeps its walsender."""

IDLE_STATUS_INTERVAL_S: Final = 3.0
"""The same while nothing comes, and nothing new is to be told. A standby machine takes over after `SILENT_S` without a
reply (`bridge.receive.owner`). The server asks for one before its wal_sender_timeout, and gets it at once."""

_LATE: Final = threads.Turns("late status updates", rest=0)
_LAST_WORDS_S = 0.5
_END_S = 3.0
"""How long the server has to end the stream: within a transaction it reads nothing, and a large one takes minutes."""

_STREAMING_STATES = frozenset({State.IDLE, State.IN_STREAM})


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The stream to receive, and its limits.

    Attributes:
        start_lsn: The origin's LSN: transactions that commit before it are not sent.
        options: pgoutput's options (proto_version, publication_names, binary, …).
        memory_bytes: How much memory all transactions in progress may hold together.
        timeout_s: wal_receiver_timeout: how long the server may send nothing; 0 for any time.
        masks: Masks the values of columns before anything is kept; None if there are no masks.
    """

    slot_name: str
    start_lsn: Lsn
    options: walsender.PgoutputOptions
    memory_bytes: int = 64 << 20
    timeout_s: float = 60.0
    masks: StreamMasks | None = None


class WalReceiver:
    """A running stream: a thread that fills a queue with whole transactions.

    A prepared transaction is handed over when it is prepared, with its changes in a durable spool file, and again when
    it is committed or rolled back. Every error reaches the queue (`TransactionQueue.fail`): PublisherError,
    ProtocolError or StateError.

    Args:
        conninfo: The subscription's connection string.
        application_name: For pg_stat_replication and synchronous_standby_names, unless the connection string has one.
        stream: What to stream.
        queue: Receives the transactions.
        progress: Positions, shared with the apply worker: the receiver records what it has received, and reads what
            is durable.
        spools: The spool files of transactions in progress and of prepared ones.
        after_receive: Called with each whole transaction, or run of them, before it is handed over.
        notice: Called with each notice or warning, as psql would show it. From PostgreSQL 18 on there is a warning if
            a publication is missing in the WAL.

    Attributes:
        replication: The connection that streams. Until `start` it may be asked who the server is.
    """

    def __init__(
        self,
        conninfo: str,
        stream: StreamOptions,
        queue: TransactionQueue,
        progress: Progress,
        spools: SpoolFolder,
        *,
        application_name: str,
        after_receive: Callable[[Item], None] = lambda _: None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._stream = stream
        self._queue = queue
        self._progress = progress
        self._after_receive = after_receive
        self._spools = spools
        self._assembler = TransactionAssembler(spools.prepared())
        self._stop = threading.Event()
        self._reply_wanted = threading.Event()
        self._confirm = threading.Event()
        self._sent_s = -math.inf
        self._told_lsn = INVALID
        self._waits = False
        self._sending = threading.Lock()
        self.replication = ReplicationConnection(conninfo, application_name=stream_name(conninfo, application_name))
        self._subscription = owner_of(application_name)
        self._copy_both = copy_both(self.replication.connection, notice)
        self._thread = threading.Thread(target=self._run, name=f"walreceiver {stream.slot_name}", daemon=True)

    def start(
        self,
        admit: Callable[[ReplicationConnection], object] = lambda _: None,
        admitted: Callable[[], object] = lambda: None,
    ) -> None:
        """Start streaming.

        Args:
            admit: Called with the connection just before it streams; raises an error if it must not.
            admitted: Called when it streams, before anything is received or confirmed; the same.

        Raises:
            PublisherError: The server refuses START_REPLICATION.
        """
        admit(self.replication)
        command = walsender.start_replication(self._stream.slot_name, self._stream.start_lsn, self._stream.options)
        try:
            follow_encoding(self.replication.connection)
            self._copy_both.start(command)
        except psycopg.Error as error:
            raise translated(error, f'cannot stream from replication slot "{self._stream.slot_name}"') from error
        admitted()
        self._thread.start()
        _LATE.begin(self._send_status_if_late, STATUS_INTERVAL_S)

    def stop(self) -> None:
        """Send a last status update, end the stream, and wait for the thread."""
        self._stop.set()
        self._copy_both.wake()
        if self._thread.ident is not None:
            self._thread.join()
        _LATE.end(self._send_status_if_late)
        self._copy_both.close()
        self.replication.close()

    def request_keepalive(self) -> None:
        """Ask the server for a keepalive, which it sends after all changes it has."""
        self._reply_wanted.set()
        self._copy_both.wake()

    def confirm(self) -> None:
        """Tell the server at once what is durable: its synchronous commits may be waiting for it."""
        self._confirm.set()
        self._copy_both.wake()

    def _run(self) -> None:
        threads.yield_to_others(threads.RECEIVING)
        try:
            timeout = WalReceiverTimeout(self._stream.timeout_s, time.monotonic())
            while not self._stop.is_set():
                idle = self._receive()
                self._limit_memory()
                self._send_status_if_due()
                if idle:
                    self._waits = True
                    wait_s = min(self._status_due_s, timeout.due_s) - time.monotonic()
                    idle = not self._copy_both.wait(max(0.0, wait_s))
                    self._waits = False
                while not self._stop.is_set() and not self._queue.wait_for_room(STATUS_INTERVAL_S / 4):
                    # Earlier than due: meanwhile keepalives that request a reply are not read.
                    self._send_status()
                    idle = False  # the server is not silent: nothing is read
                if idle:
                    self._ping_or_time_out(timeout)
                else:
                    timeout.received(time.monotonic())
            self._send_status()
            self._end()
        except StreamEnded as ended:
            open_ = self._assembler.open if self._assembler.state is State.IN_TRANSACTION else None
            finish_lsn = None if open_ is None else open_.commit_lsn
            self._queue.fail(ended.error(self._subscription, self._progress.handed_over_lsn, finish_lsn))
        except (psycopg.Error, OSError) as error:
            self._queue.fail(self._lost(error))
        except (errors.BridgeError, ProtocolError) as error:
            self._queue.fail(error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the worker must hear of it
            self._queue.fail(error)

    def _end(self) -> None:
        """End the stream, and wait until the server has: of a connection that is closed it may not read the rest."""
        self._copy_both.end()
        latest_s = time.monotonic() + _END_S
        with suppress(StreamEnded):
            while (left_s := latest_s - time.monotonic()) > 0:
                if not len(self._copy_both.read()):
                    self._copy_both.wait(left_s)

    def _lost(self, error: psycopg.Error | OSError) -> errors.PublisherError:
        """The error for a connection that was lost: by the server's last words, if they are still to be read."""
        try:
            while len(self._copy_both.read()) or self._copy_both.wait(_LAST_WORDS_S):
                pass
        except StreamEnded as ended:
            if ended.sqlstate is not None:
                return ended.error(self._subscription, self._progress.handed_over_lsn)
        except (psycopg.Error, OSError, ProtocolError):
            pass  # the first error says why
        doing = "the replication stream was lost"
        if isinstance(error, psycopg.Error):
            return translated(error, doing)
        return errors.PublisherError(f"{doing}: {error}", retry=True)

    def _ping_or_time_out(self, timeout: WalReceiverTimeout) -> None:
        """Ping a server that has been silent for half of the timeout.

        Raises:
            PublisherError: It has not replied in time.
        """
        now_s = time.monotonic()
        if timeout.expired(now_s):
            raise errors.PublisherError(
                "terminating logical replication worker due to timeout: the publisher has not answered for "
                f"{self._stream.timeout_s:g} s",
                hint="if it needs longer for a large transaction, raise workers.wal_receiver_timeout_s",
                retry=True,
            )
        if timeout.ping_due(now_s):
            self.request_keepalive()

    def _receive(self) -> bool:
        """Handle the messages that have arrived, up to one read's worth; True if none had."""
        messages = self._copy_both.read()
        if self._stream.masks is not None:
            messages = self._stream.masks.masked(messages)
        at = 0
        # Keepalives: messages too short for XLogData with a payload.
        for index in np.flatnonzero(messages.lengths <= walsender.HEADER_BYTES).tolist():
            self._assemble(messages.part(at, index))
            self._handle_keepalive(messages[index])
            at = index + 1
        if at < len(messages):
            self._progress.server_time_us = walsender.decode_xlog_data(
                messages.head(-1, walsender.HEADER_BYTES)
            ).send_time_us
        self._assemble(messages.part(at))
        if at < len(messages) and self._assembler.streamed and self._assembler.state in _STREAMING_STATES:
            self._record_streamed_position(messages.head(-1, walsender.HEADER_BYTES))
        return not len(messages)

    def _record_streamed_position(self, last: bytes) -> None:
        """Record the position within a streamed transaction: no keepalive may come before its end."""
        position = walsender.decode_xlog_data(last).wal_start
        if position:  # messages that only describe the next one (Relation, Type) have none
            self._progress.streamed(position)

    def _assemble(self, messages: MessageArray) -> None:
        """Assemble pgoutput's messages."""
        if len(messages):
            for ended in self._assembler.take(messages):
                self._hand_over(ended)

    def _handle_keepalive(self, data: bytes) -> None:
        """Handle a message that is not pgoutput's: a keepalive."""
        message = walsender.decode_copy_data(data)
        if isinstance(message, walsender.PrimaryKeepalive):
            in_transaction = self._assembler.state is not State.IDLE
            self._progress.server_time_us = message.send_time_us
            self._progress.keepalive(message.wal_end, in_transaction=in_transaction)
            self._queue.wake()
            if message.reply_requested:
                self._send_status()
            return
        raise MalformedMessage("XLogData", walsender.HEADER_BYTES, "it has no payload")

    def _hand_over(self, ended: Item) -> None:
        if isinstance(ended, Transaction) and not self._to_hand_over(ended):
            return
        self._after_receive(ended)
        # In this order: a transaction that progress counts as handed over is in the queue.
        self._queue.put(ended)
        self._progress.transaction(ended.end_lsn)

    def _to_hand_over(self, transaction: Transaction) -> bool:
        """Whether to hand a transaction over; keeps prepared ones durably, and drops aborted ones."""
        if transaction.ending is Ending.ABORT:
            if transaction.spooled is not None:
                self._spools.file_for(transaction).discard()
            return False
        if transaction.ending is Ending.PREPARE:
            file, masks = self._spools.file_for(transaction), self._stream.masks
            file.masks = {} if masks is None else masks.descriptions
            file.keep(transaction, self._send_while_spooling)
            faults.reach("prepare_kept")
            # One prepared before the slot had two_phase comes with its COMMIT PREPARED, out of order.
            return transaction.end_lsn > self._progress.handed_over_lsn
        return True

    def _limit_memory(self) -> None:
        """Move changes to spool files, the largest transaction's first, until the others fit."""
        in_progress = self._assembler.in_progress()
        while sum(transaction.memory_bytes for transaction in in_progress) > self._stream.memory_bytes:
            largest = max(in_progress, key=lambda transaction: transaction.memory_bytes)
            self._spools.file_for(largest).append(largest, self._send_while_spooling)

    def _send_while_spooling(self) -> None:
        try:
            self._send_status_if_due()
        except OSError as error:  # of the connection, not of the file
            raise psycopg.OperationalError(str(error)) from error

    @property
    def _status_due_s(self) -> float:
        quiet = self._waits and not self._confirm.is_set() and self._progress.received_lsn <= self._told_lsn
        return self._sent_s + (IDLE_STATUS_INTERVAL_S if quiet else STATUS_INTERVAL_S)

    def _send_status_if_due(self) -> None:
        if self._reply_wanted.is_set() or self._confirm.is_set() or time.monotonic() >= self._status_due_s:
            self._send_status()

    def _send_status_if_late(self) -> float:
        """Send what the receiving thread should have sent a moment ago: a walsender that hears nothing ends.

        It is for all streams, one after the other, so it waits for nothing. Returns when it is due again, in seconds.
        """
        late = time.monotonic() >= self._status_due_s + STATUS_INTERVAL_S / 4
        if late and self._thread.is_alive() and not self._stop.is_set() and self._sending.acquire(blocking=False):
            try:
                if writable(self.replication.connection.fileno(), 0.0):
                    self._send_status_alone()
            finally:
                self._sending.release()
        return STATUS_INTERVAL_S - time.monotonic() % STATUS_INTERVAL_S

    def _send_status(self) -> None:
        """Send a status update: write_lsn is what was received; flush_lsn and apply_lsn are what is durable."""
        with self._sending:
            self._send_status_alone()

    def _send_status_alone(self) -> None:
        self._confirm.clear()  # first: what becomes durable from here on is confirmed by the next update
        durable = self._progress.durable_lsn  # read once: what a data source has to confirm is told once
        received = max(self._progress.received_lsn, durable)
        reply_wanted = self._reply_wanted.is_set()
        self._reply_wanted.clear()
        update = walsender.StandbyStatusUpdate(
            write_lsn=received,
            flush_lsn=durable,
            apply_lsn=durable,
            send_time_us=int((time.time() - POSTGRES_EPOCH_S) * 1_000_000),
            reply_requested=reply_wanted,
        )
        self._copy_both.send(walsender.encode_standby_status_update(update))
        self._told_lsn, self._sent_s = received, time.monotonic()
