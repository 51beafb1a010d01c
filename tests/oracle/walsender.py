"""A walsender seen from its client: every message of a slot's stream, decoded, with nothing in between."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import psycopg

from pgbridge.protocol.codec.messages import StreamStart, StreamStop
from pgbridge.protocol.codec.pgoutput import decode
from pgbridge.protocol.codec.walsender import (
    StandbyStatusUpdate,
    XLogData,
    decode_copy_data,
    encode_standby_status_update,
    start_replication,
)
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from pgbridge.protocol.codec.messages import Message
    from pgbridge.protocol.codec.walsender import PgoutputOptions

STREAM_EVERYTHING = "-cdebug_logical_replication_streaming=immediate"
"""As `options` of a connection: with streaming = on, every change is sent at once (PostgreSQL 16)."""

_PATIENCE_S = 20.0


class Sent(NamedTuple):
    """A message, and the LSN in front of it: its change's, or its transaction's end."""

    wal_start: Lsn
    message: Message


class Walsender:
    """A slot's stream, as a context manager.

    Args:
        conninfo: A superuser's connection string.
        slot_name: The slot.
        options: pgoutput's options beside the protocol's version, which is 3, and the publication, which is p.
        start_lsn: Where to start.
        settings: `options` of the connection.
    """

    def __init__(
        self, conninfo: str, slot_name: str, start_lsn: Lsn = INVALID, *, settings: str = "", **options: Any
    ) -> None:
        wanted: PgoutputOptions = {"proto_version": 3, "publication_names": ["p"], **options}  # type: ignore[typeddict-item]
        self._admin = psycopg.connect(conninfo, autocommit=True)
        self._slot_name = slot_name
        self._in_stream = False
        parameters: dict[str, Any] = {"replication": "database", "client_encoding": "UTF8", "options": settings}
        self._connection = psycopg.connect(conninfo, autocommit=True, **parameters)
        self._connection.execute(start_replication(slot_name, start_lsn, wanted).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection, and wait until the slot is free."""
        self._connection.pgconn.finish()
        deadline = time.monotonic() + _PATIENCE_S
        query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        while self._admin.execute(query, (self._slot_name,)).fetchone() == (True,):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self._admin.close()

    def read(self, confirm: Lsn = INVALID) -> list[Sent]:
        """All that the server sends for the WAL written until now; `confirm` is reported as flushed."""
        row = self._admin.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        self._admin.execute("CHECKPOINT")  # flushes it
        target, reached = Lsn.parse(row[0]), INVALID
        update = encode_standby_status_update(StandbyStatusUpdate(confirm, confirm, confirm, 0, reply_requested=True))
        sent: list[Sent] = []
        deadline = time.monotonic() + _PATIENCE_S
        pgconn = self._connection.pgconn
        while reached < target:
            assert time.monotonic() < deadline, f"the walsender has come to {reached}, not to {target}"
            pgconn.put_copy_data(update)
            pgconn.flush()
            select.select([pgconn.socket], [], [], 0.1)
            pgconn.consume_input()
            while (copied := pgconn.get_copy_data(1))[0] > 0:
                outer = decode_copy_data(bytes(copied[1]))
                if isinstance(outer, XLogData):
                    sent.append(Sent(outer.wal_start, self._decoded(outer.payload)))
                else:
                    reached = max(reached, outer.wal_end)
            assert copied[0] == 0, pgconn.error_message
        return sent

    def _decoded(self, payload: bytes) -> Message:
        message = decode(payload, in_stream=self._in_stream and payload[:1] != b"E")
        if isinstance(message, StreamStart | StreamStop):
            self._in_stream = isinstance(message, StreamStart)
        return message


def names(sent: list[Sent]) -> list[str]:
    """The messages' names, without those that only describe the next one."""
    return [type(item.message).__name__ for item in sent if type(item.message).__name__ != "Relation"]
