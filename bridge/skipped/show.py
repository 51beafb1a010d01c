"""Shows what a skipped transaction held: each change as it came, before row filters and column lists.

It needs neither Spark nor the server. Values are read as for a subscription, and one that its type in Delta cannot hold
is shown as PostgreSQL's text.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bridge.batch.batcher import Batcher
from bridge.batch.routes import Routes, Subscribed
from bridge.batch.row_filters import MARKS
from bridge.effects.events import COMMANDS, DELETE, NO_OLD, OLD_TUPLE, TRUNCATE
from bridge.targets.target import Target
from protocol.bulk.message_array import ChunkedMessages
from protocol.lsn import INVALID, utc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from bridge.batch.batch import TableChanges
    from bridge.skipped.kept_transaction import KeptTransaction
    from protocol.values.types import ColumnType


def show(kept: KeptTransaction, types: Callable[[Sequence[tuple[int, int]]], list[ColumnType]]) -> Iterator[str]:
    """Yield a line for the transaction, and one for each change, in order: JSON documents.

    Args:
        types: How values of these (type oid, typmod) are decoded.

    Raises:
        ApplyError: A value cannot be read. The lines before it are of earlier changes.
        StateError: The file is damaged.
    """
    transaction, first = kept.transaction, True
    yield _json(
        {
            "finish_lsn": str(transaction.commit_lsn),
            "xid": transaction.xid,
            "commit_time": utc(transaction.commit_time_us).isoformat(),
            "replay": f"not possible: {kept.refused}" if kept.refused else "possible",
        }
    )
    batcher = Batcher("", Routes({}, others=_shown), types, unrepresentable="show")
    for rows, events in kept.file.chunks(in_stream=transaction.in_stream):
        messages = ChunkedMessages()
        messages.extend(rows)
        relations = transaction.relations if first else ()
        chunk = replace(transaction, rows=messages, events=events, relations=relations, spooled=None)
        batch, first = batcher.form([chunk], INVALID), False
        yield from (line for _, line in sorted(line for table in batch.tables for line in _lines(table)))


def _shown(namespace: str, name: str) -> Subscribed:
    return Subscribed(Target(namespace, name, f"{namespace}.{name}", (), "handler"), INVALID)


def _lines(changes: TableChanges) -> Iterator[tuple[tuple[int, bool], str]]:
    """The changes of a table, each with its position: a TRUNCATE has that of the row after it."""
    columns = [(i, column.name) for i, column in enumerate(changes.columns)]
    table: pa.Table = changes.changes
    for row in table.to_pylist():
        document: dict[str, Any] = {"table": changes.target.qualified_name, "command": COMMANDS[row["op"]]}
        if row["old"] != NO_OLD:
            whole = row["old"] == OLD_TUPLE
            document["old"] = _image(row, [(i, name) for i, name in columns if whole or i in changes.key], "old")
        if row["op"] not in {DELETE, TRUNCATE}:
            document["new"] = _image(row, [(i, name) for i, name in columns if not row.get(f"unchanged_{i}")], "new")
        yield (row["seq"], row["op"] != TRUNCATE), _json(document)


def _image(row: dict[str, Any], columns: Sequence[tuple[int, str]], kind: str) -> dict[str, Any]:
    """A row; a new one has no values that the stream does not carry, because the UPDATE left them as they were."""
    texts = {name: row.get(f"{MARKS[kind]}_{i}") for i, name in columns}
    return {name: row.get(f"{kind}_{i}") if texts[name] is None else texts[name] for i, name in columns}


def _json(document: dict[str, Any]) -> str:
    """One line; what a terminal would not print as it is, is escaped."""
    line = json.dumps(document, ensure_ascii=False, default=_text)
    return line if line.isprintable() else json.dumps(document, default=_text)


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
