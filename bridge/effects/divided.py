"""The net effect of more changes than memory shall hold: they are divided by their keys, and folded part by part.

The changes, the parts and the effects are Arrow tables whose values lie in scratch files (`ScratchTable`), which the
kernel reads when they are looked at, and may forget again. A file has no name any more once it is a table: it goes when
nobody holds the table.

All changes of a key are in one part. A key change is of two keys, so keys that are connected by key changes are in one
part, too: the table of a transaction that moves each row to the key of the next one is not divided.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.effects.events import INSERT, NO_OLD, moved_rows
from pgbridge.bridge.effects.net_effect import NetEffect, Shape, net_effect
from pgbridge.bridge.runtime.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    Scratch = Callable[[], AbstractContextManager[Path]]
    """Makes an empty file; removes it at the end."""

_CHUNK_ROWS: Final = 50_000
_PIECE_BYTES: Final = 64 << 20
_LARGE_BYTES: Final = 1 << 30
_MOST_PARTS: Final = 256
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that it has an inverse modulo 2**64."""


class ScratchTable:
    """Writes a table to a file, piece by piece.

    Raises:
        StateError: The file system reports an error; so do its methods.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._open = ExitStack()
        with _errors():
            self._path = self._open.enter_context(scratch())
        self._writer: pa.RecordBatchFileWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # nobody reads what is written so
            self._close()
        self._open.close()

    def write(self, piece: pa.Table) -> None:
        """Append rows; all pieces have the same columns."""
        with _errors():
            if self._writer is None:
                self._writer = pa.ipc.new_file(str(self._path), piece.schema)
            self._writer.write_table(piece, _CHUNK_ROWS)

    def table(self) -> pa.Table:
        """The table; nothing more is written. There is at least one piece."""
        with _errors():
            self._close()
            table = pa.ipc.open_file(pa.memory_map(str(self._path))).read_all()
            self._open.close()
        return table

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(
            f"changes that memory shall not hold cannot be written to a temporary file: {error}",
            hint="free space there, or set TMPDIR to a folder with more",
            retry=True,
        ) from error


@dataclass(frozen=True, slots=True)
class Spill:
    """Where changes go that memory shall not hold.

    Attributes:
        scratch: Makes files.
        memory_bytes: How much memory changes may take.
    """

    scratch: Scratch
    memory_bytes: int = 64 << 20

    def table(self, pieces: Iterable[pa.Table]) -> pa.Table:
        """One table of pieces, at least one, that have the same columns."""
        with ScratchTable(self.scratch) as table:
            for piece in pieces:
                table.write(piece)
            return table.table()

    def net_effect(self, changes: pa.Table, key: Sequence[int]) -> NetEffect:
        """Compute the net effect of changes, of which there is at least one, part by part."""
        number = min(_MOST_PARTS, 1 + changes.nbytes // max(1, self.memory_bytes))
        shape = np.zeros(len(Shape.__slots__), np.int64)
        with ScratchTable(self.scratch) as effects:
            for part in _parts(changes, key, number, self.scratch):
                effect = net_effect(_with_large_offsets(part), key)
                shape += astuple(effect.shape)
                for piece in _pieces(effect.table):
                    effects.write(_with_small_offsets(piece))
            return NetEffect(effects.table(), Shape(*shape.tolist()))


def _parts(changes: pa.Table, key: Sequence[int], number: int, scratch: Scratch) -> Iterator[pa.Table]:
    """Divide changes, each part in order."""
    connected, first = _connected(changes, key)
    with ExitStack() as stack:
        parts: dict[int, ScratchTable] = {}
        for piece in _pieces(changes):
            hashes = _row_hashes(piece, key)
            if len(connected):
                at = np.minimum(np.searchsorted(connected, hashes), len(connected) - 1)
                hashes = np.where(connected[at] == hashes, first[at], hashes)
            numbers = (hashes >> np.uint64(32)) % np.uint64(number)
            order = np.argsort(numbers, kind="stable")
            starts = np.flatnonzero(np.diff(numbers[order], prepend=np.uint64(_MOST_PARTS)))
            for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
                part = int(numbers[order[start]])
                if part not in parts:
                    parts[part] = stack.enter_context(ScratchTable(scratch))
                parts[part].write(piece.take(pa.array(order[start:end])))
        while parts:
            yield parts.popitem()[1].table()


def _pieces(changes: pa.Table) -> Iterator[pa.Table]:
    rows = max(1, min(_CHUNK_ROWS, _PIECE_BYTES * len(changes) // max(1, changes.nbytes)))
    for batch in changes.to_batches(max_chunksize=rows):
        if len(batch):
            yield pa.Table.from_batches([batch], changes.schema)


def _with_large_offsets(part: pa.Table) -> pa.Table:
    """A part that `take` can make one chunk of, also if a column's texts are more than 32 bits count."""
    if part.nbytes < _LARGE_BYTES:
        return part
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return part.cast(pa.schema([field.with_type(wide.get(field.type, field.type)) for field in part.schema]))


def _with_small_offsets(piece: pa.Table) -> pa.Table:
    """The same columns in the types that they had before."""
    narrow = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return piece.cast(pa.schema([field.with_type(narrow.get(field.type, field.type)) for field in piece.schema]))


def _row_hashes(piece: pa.Table, key: Sequence[int]) -> Hashes:
    """A hash of the key that each change is on; of a key change, of the old one."""
    has_old = (piece["old"].to_numpy() != NO_OLD) & (piece["op"].to_numpy() != INSERT)
    if not has_old.any():
        return key_hashes([piece[f"new_{k}"] for k in key])
    pairs = [(piece[f"old_{k}"], piece[f"new_{k}"]) for k in key]
    if has_old.all():
        return key_hashes([old for old, _ in pairs])
    return np.where(has_old, key_hashes([old for old, _ in pairs]), key_hashes([new for _, new in pairs]))


def _connected(changes: pa.Table, key: Sequence[int]) -> tuple[Hashes, Hashes]:
    """The hashes of keys that rows leave or come to, ascending, and for each, one that stands for all it leads to."""
    olds, news = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    for piece in _pieces(changes):
        rows = np.flatnonzero(moved_rows(piece, piece["op"].to_numpy(), key))
        if len(rows):
            moved = piece.take(pa.array(rows))
            olds.append(key_hashes([moved[f"old_{k}"] for k in key]))
            news.append(key_hashes([moved[f"new_{k}"] for k in key]))
    old, new = np.concatenate(olds), np.concatenate(news)
    hashes, places = np.unique(np.concatenate([old, new]), return_inverse=True)
    old_places, new_places = places[: len(old)], places[len(old) :]
    first = np.arange(len(hashes))
    while (first[old_places] != first[new_places]).any():
        least = np.minimum(first[old_places], first[new_places])
        joined = first.copy()
        np.minimum.at(joined, first[old_places], least)
        np.minimum.at(joined, first[new_places], least)
        while ((further := joined[joined]) != joined).any():
            joined = further
        first = joined[first]
    return hashes, hashes[first]


def key_hashes(columns: Sequence[pa.ChunkedArray]) -> Hashes:
    """A hash of each row, the same for equal keys (see `key_codes`) in any table."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        hashes = (hashes ^ (hashes >> np.uint64(29))) * _FACTOR + _hashes(column)
    return (hashes ^ (hashes >> np.uint64(32))) * _FACTOR


def _hashes(column: pa.ChunkedArray) -> Hashes:
    arrow = column.type
    if pa.types.is_integer(arrow) or pa.types.is_date32(arrow) or pa.types.is_timestamp(arrow):
        whole = column.cast(pa.int32()) if pa.types.is_date32(arrow) else column
        return np.asarray(pc.fill_null(whole.cast(pa.int64()), 0).to_numpy()).astype(np.uint64)
    if pa.types.is_nested(arrow):
        column = pa.chunked_array([pa.array([repr(_plain(value)) for value in column.to_pylist()], pa.string())])
    elif pa.types.is_floating(arrow):
        column = pc.add(column, pa.scalar(0.0, arrow)).cast(pa.string())
    elif not pa.types.is_binary(arrow):
        column = column.cast(pa.string())
    return _text_hashes(column.cast(pa.large_binary()).combine_chunks())


def _plain(value: Any) -> Any:
    """A list without negative zeros."""
    if isinstance(value, list):
        return [_plain(element) for element in value]
    return value + 0.0 if isinstance(value, float) else value


def _text_hashes(texts: Any) -> Hashes:
    """Of each text the sum of its bytes times powers of a factor, modulo 2**64."""
    array = pa.concat_arrays(texts.chunks) if isinstance(texts, pa.ChunkedArray) else texts
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    size = int(offsets[-1] - offsets[0])
    content = np.frombuffer(array.buffers()[2], np.uint8)[offsets[0] : offsets[-1]] if size else np.zeros(0, np.uint8)
    powers = np.cumprod(np.full(size + 1, _FACTOR))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum((content + np.uint64(1)) * powers[:size])])
    inverse = np.uint64(pow(int(_FACTOR), -1, 1 << 64))
    starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    hashes: Hashes = (sums[ends] - sums[starts]) * np.cumprod(np.full(size + 1, inverse))[starts]
    return hashes
