"""A slot and its receivers, and helpers that look at their positions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.receive.stream.queue import BatchLimits, TransactionQueue
from pgbridge.bridge.receive.stream.walreceiver import StreamOptions, WalReceiver
from pgbridge.bridge.runtime.errors import BridgeError, PublisherError
from pgbridge.bridge.track.progress import Progress
from pgbridge.bridge.track.spool import SpoolFolder
from pgbridge.protocol.codec.messages import Insert
from pgbridge.protocol.codec.pgoutput import decode
from pgbridge.protocol.codec.walsender import HEADER_BYTES
from pgbridge.protocol.errors import ProtocolError
from pgbridge.protocol.lsn import Lsn
from tests.protocol.singled import singles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from pgbridge.protocol.codec.walsender import PgoutputOptions
    from pgbridge.protocol.stream.transactions import Transaction

PATIENCE_S = 20.0
SETTLED_S = 0.3
"""Long enough for something that must not happen to happen."""


class Stream:
    """A slot, and receivers of it, one after the other."""

    def __init__(self, conninfo: str, slot_name: str, folder: Path) -> None:
        self.conninfo = conninfo
        self.slot_name = slot_name
        self.folder = folder
        with ReplicationConnection(conninfo, application_name="test") as replication:
            self.start_lsn = replication.create_slot(slot_name, export_snapshot=False).consistent_point
        self.options: PgoutputOptions = {"proto_version": 1, "publication_names": ["p"], "binary": False}
        self.open(self.start_lsn)

    def open(
        self,
        start_lsn: Lsn,
        *,
        max_bytes: int = 1 << 30,
        memory_bytes: int = 1 << 30,
        timeout_s: float = 60.0,
        keep: Collection[str] = (),
        **arguments: Any,
    ) -> None:
        """Make a receiver that begins at an LSN; it does not stream yet. `keep` are spool files of the one before."""
        self.queue = TransactionQueue(max_bytes)
        self.progress = Progress(start_lsn)
        self.receiver = WalReceiver(
            self.conninfo,
            StreamOptions(self.slot_name, start_lsn, self.options, memory_bytes, timeout_s),
            self.queue,
            self.progress,
            SpoolFolder(self.folder, keep),
            application_name=f"{self.slot_name}_receiver",
            **arguments,
        )

    def start(self) -> None:
        """Stream, as soon as the server has noticed that the receiver before is gone."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.receiver.start()
            except PublisherError as error:
                if "is active for PID" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return

    def again(self, start_lsn: Lsn, **arguments: Any) -> None:
        """Stop, and begin anew at an LSN."""
        self.receiver.stop()
        self.open(start_lsn, **arguments)

    def take(self, count: int) -> list[Transaction]:
        """The next so many transactions."""
        taken: list[Transaction] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(taken) < count:
            assert time.monotonic() < deadline, f"{len(taken)} of {count} transactions came"
            for item in self.queue.take(BatchLimits(1, 1 << 40, 0), 0.2):
                taken += singles(item)
        return taken

    def nothing_comes(self) -> bool:
        """Whether no transaction comes for a while."""
        return self.queue.take(BatchLimits(1, 1 << 40, 0), SETTLED_S) == []

    def failure(self) -> BaseException:
        """The error that ends the stream."""
        with pytest.raises((BridgeError, ProtocolError, RuntimeError)) as caught:
            self.take(10**6)
        return caught.value


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def confirmed(publisher, stream: Stream) -> Lsn:
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    return Lsn.parse(publisher.query(query, (stream.slot_name,))[0][0])


def wait_until_confirmed(publisher, stream: Stream, lsn: Lsn) -> None:
    wait_for(lambda: confirmed(publisher, stream) >= lsn)


def wal_position(publisher) -> Lsn:
    return Lsn.parse(publisher.query("SELECT pg_current_wal_lsn()::text")[0][0])


def inserted(row: bytes | memoryview) -> list[bytes]:
    """The values of an inserted row."""
    message = decode(bytes(row)[HEADER_BYTES:])
    assert isinstance(message, Insert)
    return [value.data for value in message.new_tuple]


def ids(transactions: list[Transaction]) -> list[list[int]]:
    """The first column's values of each transaction's inserted rows."""
    return [[int(inserted(row)[0]) for row in transaction.rows.messages()] for transaction in transactions]


def insert(publisher, *numbers: int) -> None:
    """Each in a transaction of its own."""
    for number in numbers:
        publisher.execute("INSERT INTO t VALUES (%s, 'x')", (number,))
