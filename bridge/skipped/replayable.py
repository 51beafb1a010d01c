"""Keeps the changes of a skipped transaction so that they can be applied later (`bridge.service.replay`).

The folder `replay` of a skipped transaction has an Arrow file for each commit that the transaction would have made, in
order: the changes as the batch has them. The file's metadata says which table they go to, its columns and the positions
of its key. What cannot be kept so, because the transaction could not be decoded, is told by `refused.txt`.
"""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from bridge.batch.batch import TableChanges
from bridge.runtime.errors import SkipError, StateError, TargetError
from bridge.runtime.process import fsync
from bridge.targets.target import TargetColumn
from bridge.targets.widening import widened
from protocol.values.places import held
from protocol.values.types import ColumnType, Kind
from protocol.values.value_array import UnheldValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bridge.batch.batch import Batch
    from bridge.effects.divided import Spill
    from bridge.targets.target import Mode, Target

FOLDER: Final = "replay"
REFUSED: Final = "refused.txt"

_FORMAT: Final = 2
_KEY: Final = b"pgbridge"
_ROWS_AT_ONCE: Final = 200_000
"""So many rows are written, and staged again, at a time: memory need not hold all changes of a large transaction."""


@dataclass(frozen=True, slots=True)
class ReplayFile:
    """The changes of one commit; what `TableChanges` has, too, is as there.

    Attributes:
        relation: (namespace, name) of the published table.
        columns: In the types that the target had.
        origin: Who skipped it.
        relid: The published table's oid then; None if it was not known.
    """

    path: Path
    relation: tuple[str, str]
    columns: tuple[TargetColumn, ...]
    key: tuple[int, ...]
    mode: Mode
    truncated: bool
    fills: Mapping[str, pa.Scalar]
    lost: int
    origin: str
    relid: int | None
    rows: int

    @property
    def qualified_name(self) -> str:
        """`namespace.name`, unquoted, as in messages."""
        return ".".join(self.relation)

    def changes(self, target: Target, spill: Spill) -> TableChanges:
        """The changes, for a target as it is now.

        Args:
            spill: Gets the changes of a file that memory should not hold.

        Raises:
            TargetError: A column is missing there, or does not hold the values.
        """
        checked = {column.name: column for column in target.check(self.columns)}
        columns = tuple(checked.get(column.name, column) for column in self.columns)
        tables = (_as_now(pa.Table.from_batches([batch]), columns) for batch in _batches(self.path))
        beyond = spill if self.rows > _ROWS_AT_ONCE else None
        if beyond is not None:
            changes = beyond.table(tables)
        else:
            changes = pa.concat_tables([*tables] or [_as_now(_schema(self.path).empty_table(), columns)])
        return TableChanges(target, columns, self.key, changes, self.truncated, fills=self.fills, spill=beyond)


@dataclass(frozen=True, slots=True)
class Skipper:
    """Who skips a transaction.

    Attributes:
        origin: Delta's application id of the subscription's commits (`SubscriptionRow.txn_app_id`): the server, the
            subscription and its incarnation.
        relids: The published tables' oids, by (namespace, name).
    """

    origin: str
    relids: Mapping[tuple[str, str], int | None]


def write(batch: Batch, folder: Path, skipper: Skipper) -> None:
    """Write the changes of a transaction that is skipped; they are durable afterwards.

    Args:
        batch: The transaction alone.

    Raises:
        StateError: The file system reports an error.
    """
    path = folder / FOLDER
    try:
        path.mkdir(mode=0o700)
        if batch.error is not None:
            _refuse(path, f"the transaction could not be decoded: {batch.error.message}")
        else:
            _write_tables(batch, path, skipper)
        for file in (*path.iterdir(), path, folder):
            fsync(file)
    except OSError as error:
        raise StateError(f"cannot write the skipped transaction to {path}: {error}", retry=True) from error


def read(folder: Path) -> list[ReplayFile]:
    """Read what was kept of a skipped transaction.

    Returns:
        Its files, in the order in which they are to be applied.

    Raises:
        SkipError: It cannot be replayed; the message says why.
    """
    path = folder / FOLDER
    refused = path / REFUSED
    if not path.is_dir():
        raise SkipError(
            f"{folder} has nothing for a replay: it was written for a handler, or by an earlier version of pgbridge",
            hint="its Parquet files show the changes; apply them by hand in Spark, or copy the tables again",
        )
    if refused.exists():
        raise SkipError(
            f"the transaction cannot be replayed: {refused.read_text(encoding='utf-8').strip()}",
            hint=f"the files in {folder} show what it held; copy the tables again to have it in them",
        )
    try:
        return [_described(file) for file in sorted(path.glob("*.arrow"))]
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise SkipError(f"{path} cannot be read: {error}", hint="copy the tables again to have it in them") from error


def _write_tables(batch: Batch, path: Path, skipper: Skipper) -> None:
    for changes in batch.tables:
        if changes.target.mode == "history":
            name = changes.target.qualified_name
            _refuse(path, f'table "{name}" is a history, which has the versions of later transactions already')
            return
    for number, changes in enumerate(batch.tables):
        _write_table(changes, path / f"{number:04}.arrow", skipper)


def _refuse(path: Path, reason: str) -> None:
    (path / REFUSED).write_text(f"{reason}\n", encoding="utf-8")


def _write_table(changes: TableChanges, file: Path, skipper: Skipper) -> None:
    """Write the changes of one commit, a part at a time."""
    metadata = {_KEY: json.dumps(_description(changes, skipper)).encode()}
    writer: pa.RecordBatchFileWriter | None = None
    try:
        for part in parts_of(changes.changes):
            table = part.replace_schema_metadata(metadata)
            writer = writer or pa.ipc.new_file(file, table.schema)
            writer.write_table(table, _ROWS_AT_ONCE)
    finally:
        if writer is not None:
            writer.close()


def parts_of(changes: pa.Table) -> Iterator[pa.Table]:
    """Changes, in order, in parts that memory may hold; at least one part, which may be empty."""
    for begin in range(0, max(len(changes), 1), _ROWS_AT_ONCE):
        yield changes.slice(begin, _ROWS_AT_ONCE)


def _description(changes: TableChanges, skipper: Skipper) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "relation": [changes.target.namespace, changes.target.name],
        "columns": [{"name": column.name, "type": _type_document(column.type)} for column in changes.columns],
        "key": list(changes.key),
        "mode": changes.target.mode,
        "truncated": changes.truncated,
        "fills": _fills_text(changes.fills),
        "lost": changes.lost,
        "origin": skipper.origin,
        "relid": skipper.relids.get((changes.target.namespace, changes.target.name)),
    }


def _described(file: Path) -> ReplayFile:
    with _opened(file) as reader:
        document = json.loads(reader.schema.metadata[_KEY])
        rows = sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))
    if document["format"] != _FORMAT:
        raise ValueError(f"format {document['format']} is not known to this version of pgbridge")
    namespace, name = document["relation"]
    return ReplayFile(
        file,
        (namespace, name),
        tuple(TargetColumn(column["name"], _type_of(column["type"])) for column in document["columns"]),
        tuple(document["key"]),
        document["mode"],
        document["truncated"],
        _fills_of(document["fills"]),
        document["lost"],
        document["origin"],
        document["relid"],
        rows,
    )


def _type_document(type_: ColumnType) -> dict[str, Any]:
    return {
        "oid": type_.oid,
        "typmod": type_.typmod,
        "arrow": _text_of(pa.schema([("", type_.arrow)]).empty_table()),
        "binary": type_.binary,
        "kind": type_.kind.name,
        "element": None if type_.element is None else _type_document(type_.element),
        "delimiter": type_.delimiter,
        "over": type_.over,
    }


def _type_of(document: Mapping[str, Any]) -> ColumnType:
    return ColumnType(
        document["oid"],
        document["typmod"],
        _table_of(document["arrow"]).schema.field(0).type,
        document["binary"],
        Kind[document["kind"]],
        None if document["element"] is None else _type_of(document["element"]),
        document["delimiter"],
        document["over"],
    )


def _fills_text(fills: Mapping[str, pa.Scalar]) -> str | None:
    if not fills:
        return None
    return _text_of(pa.table({name: pa.array([value.as_py()], value.type) for name, value in fills.items()}))


def _fills_of(text: str | None) -> dict[str, pa.Scalar]:
    if text is None:
        return {}
    table = _table_of(text)
    return {name: table[name][0] for name in table.column_names}


def _text_of(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def _table_of(text: str) -> pa.Table:
    return pa.ipc.open_stream(base64.b64decode(text)).read_all()


def _as_now(table: pa.Table, columns: tuple[TargetColumn, ...]) -> pa.Table:
    """Cast values to the types that the target has now: the same, or wider ones."""
    for i, column in enumerate(columns):
        for name in (f"new_{i}", f"old_{i}"):
            if name in table.column_names and not table[name].type.equals(column.type.arrow):
                place = table.column_names.index(name)
                table = table.set_column(place, name, widened(table[name], column.type.arrow))
        if f"new_{i}" in table.column_names:
            _check_place(table[f"new_{i}"], column)
    return table.replace_schema_metadata(None)


def _check_place(values: pa.ChunkedArray, column: TargetColumn) -> None:
    """Raise a TargetError if a text changes in the Delta table, which may be another one than at the skip."""
    try:
        for chunk in values.chunks:
            held(chunk, column.type.place, "error")
    except UnheldValue as error:
        raise TargetError(f'column "{column.name}" does not hold a value: {error.reason}') from error


@contextmanager
def _opened(file: Path) -> Iterator[pa.RecordBatchFileReader]:
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
        yield reader


def _schema(file: Path) -> pa.Schema:
    with _opened(file) as reader:
        return reader.schema


def _batches(file: Path) -> Iterator[pa.RecordBatch]:
    with _opened(file) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
