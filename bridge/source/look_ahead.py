"""Plans batches in the driver: how far the next one reaches, and whether it has anything.

Between batches the slot's stream is open here, so that the planner knows what was changed. It holds at most
HELD_BYTES. A batch within that is decoded here and goes to Spark in its partition: the slot is not read again. What is
larger is left to an executor, which opens the slot for as long as the batch takes; this stream is closed before.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.receive.stream.queue import BatchLimits
from pgbridge.bridge.runtime import errors, threads
from pgbridge.bridge.source.change_rows import ChangeDecoder
from pgbridge.bridge.source.slot_stream import Offset, Server, SlotStream, check_server, check_slot_of
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Item, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbridge.bridge.source.frame_schema import ChangeSchema
    from pgbridge.bridge.source.options import SourceOptions

HELD_BYTES: Final = 16 << 20
"""The most bytes of messages that the planner holds, and of WAL that it looks through: under a second's work of a
walsender."""

_QUIET_S: Final = 0.2
"""How long the server is not asked again after it had nothing."""

_TRY_AGAIN_S: Final = 1.0

_NO_LIMIT: Final = 1 << 62

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Held:
    """A batch that is decoded.

    Attributes:
        batches: Its rows, as an Arrow stream; empty if it has none.
    """

    start: Offset
    end: Offset
    batches: bytes


class LookAhead(threads.Closing):
    """Plans the batches of one query, in order.

    Args:
        options: The source's.
        schema: The DataFrame's.

    Attributes:
        committed_lsn: Spark's checkpoint has all batches up to here; each new reader of the slot confirms it. None if
            Spark has not said so yet.

    Raises:
        BridgeError: From the constructor and every method, if the server cannot be asked, or `check_server` refuses.
    """

    def __init__(self, options: SourceOptions, schema: ChangeSchema) -> None:
        self._options = options
        self._schema = schema
        self._connected: Publisher | None = None
        self._stream: SlotStream | None = None
        self._decoder: ChangeDecoder | None = None
        self._position: tuple[Offset, Server] | None = None  # where the next batch starts, and who is known to have it
        self.committed_lsn: Lsn | None = None
        self._held: Held | None = None
        self._last_batch_s = time.monotonic()
        self._quiet_until_s = 0.0

    def close(self) -> None:
        """Release the slot and the connection."""
        self._disconnect()

    @property
    def _publisher(self) -> Publisher:
        if self._connected is None:
            self._connected = Publisher(self._options.connection, application_name=self._options.application_name)
        return self._connected

    def _disconnect(self) -> None:
        self._release()
        self._position = None
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.close()

    def flush_lsn(self) -> Lsn:
        """How far the server's WAL is on disk; on a standby, replayed."""
        return self._publisher.flush_lsn()

    def latest(self, start: Offset, *, target: Lsn | None, limited: bool) -> Offset:
        """Return where the next batch ends; `start` if there is to be none now.

        Args:
            start: Where it starts.
            target: The last position that may be read, to which the query goes even if nothing is published up to it;
                None for what the server has.
            limited: Whether the options' limits count.

        Raises:
            BridgeError: As the class says; if the server is only not there, after `slot_timeout_s`.
        """
        return self._patiently(lambda: self._latest(start, target=target, limited=limited))

    def everything(self) -> Offset:
        """Return where the server is, for a Spark that does not say where the batch starts.

        Raises:
            BridgeError: As `latest`.
        """
        return self._patiently(lambda: self._planned(self._check(), self.flush_lsn()))

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        """Ask a server that may just be away, or a standby that may lag, for up to `slot_timeout_s`."""
        end_s = time.monotonic() + self._options.slot_timeout_s
        while True:
            try:
                return ask()
            except errors.PublisherError as error:
                self._disconnect()
                if not error.retry or time.monotonic() >= end_s:
                    raise
                time.sleep(_TRY_AGAIN_S)

    def _latest(self, start: Offset, *, target: Lsn | None, limited: bool) -> Offset:
        self._pause()
        server = self._checked(start)
        flushed = self.flush_lsn()
        last = flushed if target is None else min(flushed, target)
        if last <= start.lsn:
            return self._nothing(start)
        max_bytes = self._options.max_bytes if limited else _NO_LIMIT
        max_rows = self._options.max_rows if limited else None
        end = Lsn(min(last, start.lsn + max_bytes))
        if max_rows is None and end - start.lsn > HELD_BYTES:
            self._release()
            return self._planned(server, end)
        stream = self._opened(start)
        server = stream.server
        lsn, items = self._look(stream, end, last, max_bytes, max_rows)
        if lsn is None:  # more than is held here
            whole = items[-1].end_lsn if items else Lsn(min(last, max(end, start.lsn + HELD_BYTES)))
            self._release()
            return self._planned(server, whole)
        if not items:
            idle_s = time.monotonic() - self._last_batch_s
            if target is None and lsn >= flushed and idle_s < self._options.idle_interval_s:
                return self._nothing(start)
        self._held = Held(start, server.offset(lsn), self._decoded(items))
        return self._planned(server, lsn)

    def _nothing(self, start: Offset) -> Offset:
        self._quiet_until_s = time.monotonic() + _QUIET_S
        return start

    def _pause(self) -> None:
        """Wait, if there was nothing just now: without a trigger interval, Spark asks a hundred times a second."""
        time.sleep(max(0.0, self._quiet_until_s - time.monotonic()))

    def held(self, start: Offset, end: Offset) -> Held | None:
        """Return a batch's rows, if they are here: then they came from the server whose timeline `end` has."""
        if self._held is not None and (self._held.start, self._held.end) == (start, end):
            return self._held
        return None

    def commit(self, lsn: Lsn) -> None:
        """Have the server told that Spark's checkpoint has all batches up to a position."""
        self.committed_lsn = lsn
        if self._stream is not None:
            self._stream.confirm(lsn)

    def check(self, start: Offset, end: Offset) -> None:
        """Check that the server has a batch as it was planned. The slot is free when this returns.

        Raises:
            BridgeError: As `latest`.
        """
        self._patiently(lambda: self._check(start, end))

    def _check(self, *offsets: Offset) -> Server:
        self._release()
        options = self._options
        with ReplicationConnection(options.connection, application_name=options.application_name) as replication:
            server = check_server(options, self._publisher, replication, *offsets)
        check_slot_of(options, self._publisher, offsets[0] if offsets else None, server)
        if offsets:
            self._position = offsets[-1], server
        return server

    def _checked(self, start: Offset) -> Server:
        """The server, which has the start: it is asked unless the batch before ended there, on these connections."""
        if self._position is not None and self._position[0] == start:
            return self._position[1]
        return self._check(start)

    def _planned(self, server: Server, end: Lsn) -> Offset:
        self._last_batch_s = time.monotonic()
        self._position = server.offset(end), server
        return self._position[0]

    def _look(
        self, stream: SlotStream, end: Lsn, last: Lsn, max_bytes: int, max_rows: int | None
    ) -> tuple[Lsn | None, list[Item]]:
        """Read ahead to `end`, and on to the first transaction if there is none.

        Returns:
            Where the batch ends, and its transactions. None instead of the end if it is more than is held here; then
            the transactions are those that the batch has to have, if it is limited to these.
        """
        limits = BatchLimits(max_rows or _NO_LIMIT, HELD_BYTES, 0)
        items: list[Item] = []
        while True:
            taken, complete = stream.take(end, limits)
            items += taken
            large = sum(item.memory_bytes for item in items) > HELD_BYTES or any(
                isinstance(item, Transaction) and item.spooled is not None for item in items
            )
            if large or (stream.overflowed and not items):
                return None, items if max_rows is not None else []
            if max_rows is not None and sum(item.n_rows for item in items) >= max_rows:
                return items[-1].end_lsn, items
            if not complete:
                if stream.overflowed or items:
                    return (items[-1].end_lsn, items) if max_rows is not None else (None, [])
                continue
            if items or end >= last:
                return end, items
            end = Lsn(min(last, end + max_bytes))

    def _opened(self, start: Offset) -> SlotStream:
        """The stream, from `start` on, where the batch before ended."""
        if self._stream is not None and not self._stream.overflowed:
            return self._stream
        self._release()
        self._stream = SlotStream(
            self._options,
            self._publisher,
            start,
            confirm_lsn=self.committed_lsn,
            memory_bytes=HELD_BYTES,
            leave_when_full=True,
        )
        self._position = start, self._stream.server
        self._decoder = ChangeDecoder.of(self._options, self._schema, self._publisher)
        return self._stream

    def _decoded(self, items: list[Item]) -> bytes:
        if not items or self._decoder is None:
            return b""
        sink = pa.BufferOutputStream()
        rows = 0
        with pa.ipc.new_stream(sink, self._schema.arrow) as writer:
            for batch in self._decoder.decode(items):
                rows += len(batch)
                writer.write_batch(batch)
        return sink.getvalue().to_pybytes() if rows else b""

    def _release(self) -> None:
        """Close the stream."""
        if self._stream is not None:
            self._stream.close()
        self._stream = self._decoder = self._held = None
