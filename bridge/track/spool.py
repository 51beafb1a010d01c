"""Spool files: changes of transactions on disk, if they are streamed, prepared, or too large for memory.

A spool file has blocks of row messages as they were received and, between them, the other messages. Rows are not
decoded before they are written, so a value that cannot be read is an error of a transaction that commits, never of one
that is rolled back. A file is read in chunks of bounded size. PostgreSQL's counterparts are the changes files of
`stream_open_file` in worker.c and the walsender's spill files.

The catalog's table `prepared` names the files to keep. All others were left by an earlier process: the server sends
their transactions again. A skipped transaction is kept as such a file, too (`bridge.skipped.kept_transaction`).
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.runtime.process import fsync
from pgbridge.protocol.bulk.columns import RowMessages
from pgbridge.protocol.bulk.message_array import ChunkedMessages, MessageArray
from pgbridge.protocol.codec import messages, pgoutput, walsender
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Ending, Event, Events, Transaction
from pgbridge.protocol.values.value_array import PADDING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

_MAGIC = b"pgbridge spool 1\n"
_BLOCK = struct.Struct("<cIQ")  # kind, messages, bytes of payload
_CRC = struct.Struct("<I")  # CRC-32 of header and payload, between the two
_ROWS, _EVENT, _OPERATIONS, _FOOTER = b"R", b"E", b"O", b"F"
_BLOCK_ROWS = 50_000
_BLOCK_BYTES = 4 << 20
"""A block is about as large at most: between two, the receiver may have a status update to send."""
_LENGTH = np.dtype("<u4")

CHUNK_BYTES = 32 << 20
"""About how much of a file is read at a time; decoding takes a few times as much memory."""


LargestRow = tuple[int, int]
"""Bytes of a row message, and the OID of its relation; of no row, (0, 0)."""


@dataclass(slots=True)
class SpoolFile:
    """One transaction's file.

    Attributes:
        rows: Number of row messages in it.
        relation_ids: The relations that its changes belong to.
        operations: What each row becomes, where that is kept with them: uint8, one for each row.
        noted: What else is kept with them, as JSON has it.
        masks: The masks that have been laid over its rows (`Shape.description`), by `namespace.name`; None if that is
            not known, as of a transaction that nobody else will read.
    """

    path: Path
    rows: int = 0
    relation_ids: set[int] = field(default_factory=set)
    largest_row: LargestRow = field(default=(0, 0), compare=False)  # of those that this process has written
    operations: np.ndarray | None = field(default=None, compare=False)
    noted: dict[str, Any] = field(default_factory=dict, compare=False)
    masks: Mapping[str, str] | None = field(default=None, compare=False)

    def append(self, transaction: Transaction, between: Callable[[], object] = lambda: None) -> None:
        """Move the transaction's changes from memory to the end of the file.

        Args:
            between: Called after each block.

        Raises:
            StateError: The file cannot be written, for example because the disk is full.
        """
        with _writing(self.path), self.path.open("ab") as file:
            if file.tell() == 0:
                file.write(_MAGIC)
            rows, begin = transaction.rows, 0
            for position, event in transaction.events:
                self._write_rows(file, rows, begin, position, between, in_stream=transaction.in_stream)
                begin = position
                _write_block(file, _EVENT, 1, pgoutput.encode(event))
                if isinstance(event, messages.Truncate):
                    self.relation_ids.update(event.relation_ids)
            self._write_rows(file, rows, begin, len(rows), between, in_stream=transaction.in_stream)
        transaction.spool_to(self)

    def _write_rows(
        self,
        file: BinaryIO,
        rows: ChunkedMessages,
        first: int,
        last: int,
        between: Callable[[], object],
        *,
        in_stream: bool,
    ) -> None:
        begin = first
        while begin < last:
            block = rows.part(begin, min(last, begin + _BLOCK_ROWS))
            sizes = np.cumsum(block.lengths)
            if sizes[-1] > _BLOCK_BYTES:
                block = rows.part(begin, begin + max(1, int(np.searchsorted(sizes, _BLOCK_BYTES))))
            ids = RowMessages(block, skip_bytes=walsender.HEADER_BYTES, in_stream=in_stream).relation_ids
            self.relation_ids.update(np.unique(ids).tolist())
            _write_rows(file, block)
            self.rows += len(block)
            self.largest_row = max(self.largest_row, largest_row(block, in_stream=in_stream))
            begin += len(block)
            between()

    def keep(self, transaction: Transaction, between: Callable[[], object] = lambda: None) -> None:
        """Move a transaction's remaining changes and its attributes into the file, and make it durable.

        When it returns, the transaction survives a power cut.

        Raises:
            StateError: The file cannot be written.
        """
        self.append(transaction, between)
        transaction.relations = tuple(r for r in transaction.relations if r.relation_id in self.relation_ids)
        footer = {
            "gid": transaction.gid,
            "xid": transaction.xid,
            "ending": transaction.ending.name,
            "prepare_lsn": str(transaction.commit_lsn),
            "end_lsn": str(transaction.end_lsn),
            "prepare_time_us": transaction.commit_time_us,
            "origin_name": transaction.origin_name,
            "in_stream": transaction.in_stream,
            "aborted": sorted(transaction.aborted),
            "relations": [pgoutput.encode(relation).hex() for relation in transaction.relations],
            "rows": self.rows,
            "noted": self.noted,
            "masks": self.masks,
        }
        with _writing(self.path), self.path.open("ab") as file:
            if self.operations is not None:
                _write_block(file, _OPERATIONS, len(self.operations), self.operations.tobytes())
            _write_block(file, _FOOTER, 1, json.dumps(footer).encode())
            file.flush()
            between()
            os.fsync(file.fileno())
            fsync(self.path.parent)

    @classmethod
    def load(cls, path: Path) -> Transaction:
        """Read the transaction that `keep` wrote; raise a StateError if the file is missing or damaged."""
        footer: dict[str, Any] | None = None
        operations: np.ndarray | None = None
        for kind, _, payload in _blocks(path):
            footer = json.loads(payload) if kind == _FOOTER else None
            if kind == _OPERATIONS:
                operations = np.frombuffer(payload, np.uint8)
        if footer is None:
            raise _damaged(path, "it ends before the transaction does")
        relations = [pgoutput.decode(bytes.fromhex(text)) for text in footer["relations"]]
        relation_ids = {r.relation_id for r in relations if isinstance(r, messages.Relation)}
        return Transaction(
            footer["xid"],
            Lsn.parse(footer["prepare_lsn"]),
            footer["prepare_time_us"],
            Lsn.parse(footer["end_lsn"]),
            origin_name=footer["origin_name"],
            relations=tuple(relation for relation in relations if isinstance(relation, messages.Relation)),
            in_stream=footer["in_stream"],
            aborted=set(footer["aborted"]),
            gid=footer["gid"],
            ending=Ending[footer.get("ending", "PREPARE")],
            spooled=cls(
                *(path, footer["rows"], relation_ids),
                operations=operations,
                noted=footer.get("noted", {}),
                masks=footer.get("masks"),
            ),
        )

    def chunks(self, *, in_stream: bool, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[MessageArray, Events]]:
        """Read the file from its start, in chunks of about so many bytes.

        Yields:
            Row messages and events, as `Transaction` has them; an event's position counts from the chunk's first row.

        Raises:
            StateError: The file is missing, cut short or damaged.
        """
        lengths: list[np.ndarray] = []
        data: list[memoryview] = []
        events: Events = []
        rows = size = 0
        for kind, count, payload in _blocks(self.path):
            if kind == _EVENT:
                event = pgoutput.decode(payload, in_stream=in_stream)
                assert isinstance(event, Event)  # noqa: S101 - as `append` wrote it
                events.append((rows, event))
            elif kind == _ROWS:
                lengths.append(np.frombuffer(payload, _LENGTH, count))
                data.append(memoryview(payload)[count * _LENGTH.itemsize :])
                rows += count
            size += len(payload)
            del payload  # one row may have hundreds of megabytes: nothing keeps it beside the chunk
            if size >= chunk_bytes:
                chunk = [(_row_messages(data, lengths), events)]
                lengths, events = [], []
                rows = size = 0
                yield chunk.pop()
        if rows or events:
            yield _row_messages(data, lengths), events

    def messages(self, *, in_stream: bool) -> Iterator[messages.LogicalMessage]:
        """The logical messages in the file, one at a time, without reading the rows.

        Raises:
            StateError: The file is missing, cut short or damaged.
        """
        for _, _, payload in _blocks(self.path, only=_EVENT):
            event = pgoutput.decode(payload, in_stream=in_stream)
            if isinstance(event, messages.LogicalMessage):
                yield event

    def discard(self) -> None:
        """Remove the file, if it exists."""
        self.path.unlink(missing_ok=True)


def spool_folder(state_dir: Path, name: str) -> Path:
    """The folder of the spool files of a subscription, or of its tablesync worker."""
    return state_dir / "spool" / name


class SpoolFolder:
    """A subscription's spool files.

    Args:
        path: The folder; it is created.
        keep: Names of the files of prepared transactions. All others are removed.

    Raises:
        StateError: The folder cannot be used.
    """

    def __init__(self, path: Path, keep: Collection[str] = ()) -> None:
        self._path = path
        self._count = 0
        with _writing(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)  # it has rows
            for file in path.iterdir():
                if file.name not in keep:
                    file.unlink()
        self._kept = frozenset(keep)

    def prepared(self) -> list[Transaction]:
        """The prepared transactions in the files that were kept."""
        return [SpoolFile.load(self._path / name) for name in sorted(self._kept)]

    def file_for(self, transaction: Transaction) -> SpoolFile:
        """The transaction's file; a new one if it has none."""
        if isinstance(transaction.spooled, SpoolFile):
            return transaction.spooled
        while True:
            self._count += 1
            path = self._path / f"{transaction.xid}.{self._count}"
            if path.name not in self._kept:
                return SpoolFile(path)


def largest_row(rows: MessageArray | ChunkedMessages, *, in_stream: bool) -> LargestRow:
    """Return the largest one of row messages that have the header of XLogData."""
    longest = rows.longest()
    if not len(longest):
        return 0, 0
    ids = RowMessages(longest, skip_bytes=walsender.HEADER_BYTES, in_stream=in_stream).relation_ids
    return longest.size_bytes, int(ids[0])


def _row_messages(data: list[memoryview], lengths: list[np.ndarray]) -> MessageArray:
    """The messages in these bytes, which are released."""
    every = np.concatenate(lengths).astype(np.int64) if lengths else np.zeros(0, np.int64)
    joined = b"".join([*data, bytes(PADDING)])
    data.clear()
    return MessageArray.packed(joined, every)


def _write_rows(file: BinaryIO, rows: MessageArray) -> None:
    if len(rows) == 1:  # it may have hundreds of megabytes: it is not copied
        content: bytes | memoryview = rows.data[int(rows.starts[0]) : int(rows.ends[0])].data
    else:
        content = b"".join(rows.messages())
    _write_block(file, _ROWS, len(rows), rows.lengths.astype(_LENGTH).tobytes(), content)


def _write_block(file: BinaryIO, kind: bytes, count: int, *payload: bytes | memoryview) -> None:
    header = _BLOCK.pack(kind, count, sum(map(len, payload)))
    crc = zlib.crc32(header)
    for part in payload:
        crc = zlib.crc32(part, crc)
    file.write(header + _CRC.pack(crc))
    for part in payload:
        file.write(part)


def _blocks(path: Path, only: bytes | None = None) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield (kind, messages, payload) of each block; with `only`, of blocks of that kind, without reading others."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise _damaged(path, "it does not begin like a spool file")
            length = path.stat().st_size
            while header := file.read(_BLOCK.size):
                at = file.tell() - len(header)
                crc = file.read(_CRC.size)
                kind, count, size = _BLOCK.unpack(header) if crc else (b"", 0, 0)
                if crc and only not in {None, kind} and file.tell() + size <= length:
                    file.seek(size, os.SEEK_CUR)
                    continue
                # A damaged size may be larger than memory, so it is not read.
                payload = file.read(size) if size <= length else b""
                if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(payload, zlib.crc32(header)):
                    raise _damaged(path, f"the block at byte {at} has another checksum than was written")
                block = [(kind, count, payload)]
                del payload  # whoever takes it alone holds it
                yield block.pop()
    except OSError as error:
        raise StateError(f"spool file {path} cannot be read: {error.strerror or error}") from error


def _damaged(path: Path, reason: str) -> StateError:
    return StateError(
        f"spool file {path} is damaged: {reason}",
        hint="the publisher does not send the transaction in it again: restore the file, or copy the tables again",
    )


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(f"spool file {path} cannot be written: {error.strerror or error}", retry=True) from error
