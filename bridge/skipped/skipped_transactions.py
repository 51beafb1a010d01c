"""Writes what a skipped transaction held: a folder named after its finish LSN, with a Parquet file for each table.

A table's file has the columns `seq` (position in the transaction), `op` (INSERT, UPDATE, DELETE), `old` and `new`
(structs of the table's columns; NULL if the message does not have that tuple; an old tuple may have only the columns
that identify a row), and `unchanged` (names of columns whose new value is an unchanged TOAST value, which the stream
does not carry). If the columns that identify rows change within the transaction, the changes after that are in
`<table>.2.parquet`, and so on. `truncated.txt` names tables that were truncated; their files have the later changes.

Rows and columns that a publication's definition leaves out are included. A value that its column cannot hold is NULL;
if there are any, `unheld` and `oldunheld` are structs of their texts. If the transaction could not be decoded,
`messages.parquet` has its messages as received (`message`, binary: see "Logical Replication Message Formats" in
PostgreSQL's documentation).
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bridge.batch.decode_block import decode_blocks
from bridge.effects.events import COMMANDS, DELETE, NO_OLD
from bridge.runtime.errors import StateError
from bridge.runtime.process import fsync
from bridge.skipped.replayable import parts_of
from protocol.codec.walsender import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bridge.batch.batch import Batch, TableChanges

_MESSAGES: Final = pa.schema([("message", pa.binary())])


def folder_of(state_folder: Path, subscription: str, finish_lsn: str) -> Path:
    """The folder of a skipped transaction; the LSN's slash becomes a hyphen."""
    return state_folder / finish_lsn.replace("/", "-") / subscription


def write(batch: Batch, state_folder: Path, subscription: str) -> Path:
    """Write a transaction's changes to files, replacing those of an earlier attempt.

    Args:
        batch: The transaction alone.
        state_folder: Where skipped transactions are kept.

    Returns:
        The transaction's folder, whose files are durable.

    Raises:
        StateError: The file system reports an error.
    """
    path = folder_of(state_folder, subscription, str(batch.finish_lsn))
    try:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700, parents=True)  # it has rows
        if batch.error is not None:
            (path / "error.txt").write_text(f"{batch.error}\n", encoding="utf-8")
            _write_messages(batch, path / "messages.parquet")
        for changes in batch.tables:
            _write_table(changes, _unused(path, changes.target.qualified_name.replace("/", "_")))
        truncated = list(dict.fromkeys(c.target.qualified_name for c in batch.tables if c.truncated))
        if truncated:
            (path / "truncated.txt").write_text("".join(f"{name}\n" for name in truncated), encoding="utf-8")
        _sync(path)
    except OSError as error:
        raise StateError(f"cannot write the skipped transaction to {path}: {error}", retry=True) from error
    return path


def _unused(folder: Path, name: str) -> Path:
    """The path of a table's next file."""
    number, path = 1, folder / f"{name}.parquet"
    while path.exists():
        number += 1
        path = folder / f"{name}.{number}.parquet"
    return path


def _write_table(changes: TableChanges, path: Path) -> None:
    names = [column.name for column in changes.columns]
    writer: pq.ParquetWriter | None = None
    try:
        for part in parts_of(changes.changes):
            table = readable(part, names)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def readable(changes: pa.Table, names: Sequence[str]) -> pa.Table:
    """Convert `TableChanges.changes` to the columns that the module describes."""
    columns = {name: _array(changes[name]) for name in changes.column_names}
    unchanged: list[list[str]] = [[] for _ in range(len(changes))]
    for i, name in enumerate(names):
        for row in pc.indices_nonzero(columns.get(f"unchanged_{i}", pa.array([], pa.bool_()))).to_pylist():
            unchanged[row].append(name)
    return pa.table(
        {
            "seq": columns["seq"],
            "op": pa.array([COMMANDS[operation] for operation in columns["op"].to_pylist()], pa.string()),
            "old": _struct(columns, "old", names, pc.equal(columns["old"], NO_OLD)),
            "new": _struct(columns, "new", names, pc.equal(columns["op"], DELETE)),
            "unchanged": pa.array(unchanged, pa.list_(pa.string())),
        }
    )


def _struct(columns: dict[str, pa.Array], kind: str, names: Sequence[str], missing: pa.Array | None = None) -> pa.Array:
    found = [(name, columns[f"{kind}_{i}"]) for i, name in enumerate(names) if f"{kind}_{i}" in columns]
    if not found:
        return pa.nulls(len(columns["seq"]))
    return pa.StructArray.from_arrays([array for _, array in found], [name for name, _ in found], mask=missing)


def _array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _write_messages(batch: Batch, path: Path) -> None:
    """Write the row messages as received, without the walsender's header."""
    with pq.ParquetWriter(path, _MESSAGES) as writer:
        for block in decode_blocks(batch.items):
            found = block.rows.without_prefix(HEADER_BYTES).messages()
            writer.write_table(pa.table({"message": pa.array(found, pa.binary())}, _MESSAGES))


def _sync(folder: Path) -> None:
    """Fsync the files and the folders that name them."""
    for path in (*folder.iterdir(), folder, folder.parent, folder.parent.parent):
        fsync(path)
