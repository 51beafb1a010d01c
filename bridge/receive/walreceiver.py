"""Receives a slot's stream in a thread of its own, and keeps the server told of what is durable.

One thread owns the connection, so that status updates go out on their own schedule whatever the applier does.
Its loop is the only Python that runs once per message. Source: the documentation's "Streaming Replication
Protocol"; `LogicalRepApplyLoop` and `send_feedback` in PostgreSQL's worker.c.
"""

from __future__ import annotations

import select
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import pq

from bridge import faults
from bridge.errors import BridgeError, PublisherError
from bridge.receive.connection import connect, translated
from protocol.assembler import State, TransactionAssembler
from protocol.errors import ProtocolError
from protocol.pgoutput import decode
from protocol.transactions import ROW_TAGS, Ending, Transaction
from protocol.walsender import (
    HEADER_BYTES,
    PrimaryKeepalive,
    StandbyStatusUpdate,
    XLogData,
    decode_copy_data,
    encode_standby_status_update,
    start_replication,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.receive.queue import TransactionQueue
    from bridge.track.progress import Progress
    from bridge.track.spool import SpoolFolder
    from protocol.lsn import Lsn
    from protocol.walsender import PgoutputOptions

STATUS_INTERVAL_S = 1.0
"""How often the server is told at least. PostgreSQL's wal_receiver_status_interval is 10 s; a second keeps
pg_replication_slots fresh for whoever watches it, and costs 34 bytes."""

_POSTGRES_EPOCH_S = 946_684_800  # 2000-01-01 UTC
_MESSAGES_PER_TURN = 20_000  # so that the schedule is looked at every few milliseconds under full load
_XLOG_DATA = ord("w")
_UNDEFINED_OBJECT = b"42704"


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What START_REPLICATION asks for.

    Attributes:
        slot_name: The slot.
        start_lsn: The origin's LSN: transactions that commit before it are not sent.
        options: pgoutput's options (proto_version, publication_names, binary, …).
        memory_bytes: What transactions that have not ended may hold in memory, all together.
    """

    slot_name: str
    start_lsn: Lsn
    options: PgoutputOptions
    memory_bytes: int = 64 << 20


class WalReceiver:
    """A running stream: a thread that fills a queue with whole transactions.

    A prepared transaction is handed over when it is prepared, its changes in a durable spool file, and again when it
    is committed or rolled back. Everything that goes wrong reaches the queue (`TransactionQueue.fail`) as a
    PublisherError, ProtocolError or StateError.

    Args:
        conninfo: The subscription's connection string.
        application_name: For pg_stat_replication and synchronous_standby_names.
        stream: What to stream.
        queue: Where transactions go.
        progress: Positions, shared with the apply worker: this side writes what is received and reads what is
            durable.
        after_receive: Called for each whole transaction before it is handed over.
        notice: Called with each message beside the stream, as psql would show it: from PostgreSQL 18 on a publication
            that is missing in the WAL is only warned of.
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
        after_receive: Callable[[], None] = lambda: None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._stream = stream
        self._queue = queue
        self._progress = progress
        self._after_receive = after_receive
        self._spools = spools
        self._assembler = TransactionAssembler(spools.prepared())
        self._stop = threading.Event()
        self._ask = threading.Event()
        self._status_due_s = 0.0
        self._connection = connect(conninfo, application_name=application_name, replication=True)
        self._connection.add_notice_handler(lambda diagnostic: notice(_as_psql(diagnostic)))
        self._thread = threading.Thread(target=self._run, name=f"walreceiver {stream.slot_name}", daemon=True)

    def start(self) -> None:
        """Start streaming.

        Raises:
            PublisherError: The server refuses START_REPLICATION.
        """
        command = start_replication(self._stream.slot_name, self._stream.start_lsn, self._stream.options)
        try:
            self._connection.execute(command.encode())
        except psycopg.Error as error:
            raise translated(error, f'cannot stream from replication slot "{self._stream.slot_name}"') from error
        if self._connection.pgconn.status != pq.ConnStatus.OK:
            raise PublisherError("the publisher closed the connection at START_REPLICATION", retry=True)
        self._thread.start()

    def stop(self) -> None:
        """Send a last status update, end the stream, and wait for the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._connection.close()

    def ask_for_position(self) -> None:
        """Have the server answer with a keepalive as soon as it has sent what it has."""
        self._ask.set()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                idle = self._receive()
                self._limit_memory()
                self._report_if_due()
                if idle:
                    self._wait_readable()
                while not self._stop.is_set() and not self._queue.wait_for_room(STATUS_INTERVAL_S / 4):
                    # More often than due: what asks for an answer is not read meanwhile.
                    self._report()
            self._report()
        except psycopg.Error as error:
            self._queue.fail(translated(error, "the replication stream was lost"))
        except OSError as error:
            self._queue.fail(PublisherError(f"the replication stream was lost: {error}", retry=True))
        except (BridgeError, ProtocolError) as error:
            self._queue.fail(error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the worker must hear of it
            self._queue.fail(error)

    def _receive(self) -> bool:
        """Take what has arrived; True when nothing is left to read."""
        get_copy_data = self._connection.pgconn.get_copy_data
        append = self._assembler.rows().append if self._assembler.open else None
        for _ in range(_MESSAGES_PER_TURN):
            size, data = get_copy_data(1)
            if size <= 0:
                if size < 0:
                    self._ended()
                return True
            if data[0] == _XLOG_DATA and size > HEADER_BYTES and data[HEADER_BYTES] in ROW_TAGS:
                if append is None:
                    append = self._assembler.rows().append  # raises: no transaction is open
                append(data)
            else:
                self._control(bytes(data))
                append = self._assembler.rows().append if self._assembler.open else None
        return False

    def _control(self, data: bytes) -> None:
        """Everything that is not a row message."""
        message = decode_copy_data(data)
        if isinstance(message, PrimaryKeepalive):
            in_transaction = self._assembler.state is not State.IDLE
            self._progress.keepalive(message.wal_end, in_transaction=in_transaction)
            self._queue.wake()
            if message.reply_requested:
                self._report()
            return
        assert isinstance(message, XLogData)  # noqa: S101 - decode_copy_data knows only these two
        in_stream = self._assembler.state is State.IN_STREAM
        ended = self._assembler.control(decode(message.payload, in_stream=in_stream))
        if ended is not None:
            self._ended_transaction(ended)

    def _ended_transaction(self, transaction: Transaction) -> None:
        if transaction.ending is Ending.ABORT:
            if transaction.moved is not None:
                self._spools.file_for(transaction).discard()
            return
        if transaction.ending is Ending.PREPARE:
            self._spools.file_for(transaction).keep(transaction)
            faults.reach("prepare_kept")
            if transaction.end_lsn <= self._progress.handed_over_lsn:
                return  # prepared before the slot's two_phase was on: its COMMIT PREPARED follows at once
        self._after_receive()
        # In this order: what progress says has been handed over is in the queue.
        self._queue.put(transaction)
        self._progress.transaction(transaction.end_lsn)

    def _limit_memory(self) -> None:
        """Move changes to spool files, the largest transaction's first, until the others fit."""
        if self._assembler.open is not None:
            self._assembler.open.weigh()
        elif not self._assembler.streamed:
            return
        in_progress = self._assembler.in_progress()
        while sum(transaction.memory_bytes for transaction in in_progress) > self._stream.memory_bytes:
            largest = max(in_progress, key=lambda transaction: transaction.memory_bytes)
            self._spools.file_for(largest).append(largest)

    def _ended(self) -> None:
        """The server ended the COPY, or the connection is gone."""
        result = self._connection.pgconn.get_result()
        reason = (result.error_message if result else self._connection.pgconn.error_message).decode(errors="replace")
        sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE) if result else None
        retry = sqlstate is None or sqlstate[:2] in {b"57", b"08", b"55", b"53", b"XX"}
        hint = "" if retry else "mend it on the publisher; the stream goes on from the last durable transaction"
        if sqlstate == _UNDEFINED_OBJECT:
            hint = (
                "a publication that is created again is still missing in the WAL that was written without it: "
                "to go on, drop the slot and remove the subscription's state, so that the tables are copied again"
            )
        raise PublisherError(
            f"the publisher ended the stream: {reason.strip() or 'no reason given'}", hint=hint, retry=retry
        )

    def _report_if_due(self) -> None:
        if self._ask.is_set() or time.monotonic() >= self._status_due_s:
            self._report()

    def _report(self) -> None:
        """Send a status update: what was received, and what is durable. Never more than that."""
        durable = self._progress.durable_lsn
        asked = self._ask.is_set()
        self._ask.clear()
        update = StandbyStatusUpdate(
            write_lsn=max(self._progress.received_lsn, durable),
            flush_lsn=durable,
            apply_lsn=durable,
            send_time_us=int((time.time() - _POSTGRES_EPOCH_S) * 1_000_000),
            reply_requested=asked,
        )
        pgconn = self._connection.pgconn
        pgconn.put_copy_data(encode_standby_status_update(update))
        while pgconn.flush():
            select.select([], [pgconn.socket], [], STATUS_INTERVAL_S)
        self._status_due_s = time.monotonic() + STATUS_INTERVAL_S

    def _wait_readable(self) -> None:
        """Sleep until bytes arrive or something is due."""
        pgconn = self._connection.pgconn
        timeout_s = min(STATUS_INTERVAL_S / 4, max(0.0, self._status_due_s - time.monotonic()))
        if select.select([pgconn.socket], [], [], timeout_s)[0]:
            pgconn.consume_input()


def _as_psql(diagnostic: psycopg.errors.Diagnostic) -> str:
    text = f"{diagnostic.severity}:  {diagnostic.message_primary}"
    return f"{text}\nDETAIL:  {diagnostic.message_detail}" if diagnostic.message_detail else text
