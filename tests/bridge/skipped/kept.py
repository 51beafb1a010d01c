"""Transactions that are skipped: formed as a stream forms them, and kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.skipped.kept_transaction import KeptTransaction, read, write
from pgbridge.protocol.codec.messages import Column, Delete, Insert, Relation, Update
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.values.types import resolve
from tests.bridge.batch.streamed import NULL, text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pgbridge.bridge.batch.batch import Batch
    from pgbridge.protocol.values.types import ColumnType

FINISH = Lsn(0x18)
ORIGIN = "pgbridge/1/sub/x"
RELS = {("public", name): RelRow("public", name, "r", INVALID, f"/{name}", 700) for name in "tu"}
NO_SPARK: Any = None


def relation(name: str, relation_id: int, *, replica_identity: str = "d") -> Relation:
    """A table of an id, its key, and a note."""
    id_, note = Column("id", 20, -1, is_key=True), Column("note", 25, -1, is_key=False)
    return Relation(relation_id, "public", name, replica_identity, (id_, note))


def message(relation_id: int, operation: int, old_key: int | None, key: int | None, note: str | None) -> Any:
    """A row message, from a change as `made_targets.changes` takes it."""
    old = None if old_key is None else (text(old_key), NULL)
    new = (text(key), NULL if note is None else text(note))
    if chr(operation) == "D":
        return Delete(relation_id, key_tuple=old)
    return Insert(relation_id, new) if chr(operation) == "I" else Update(relation_id, new, key_tuple=old)


def types(wanted: Sequence[tuple[int, int]]) -> list[ColumnType]:
    """The built-in types."""
    return [resolve(*one) for one in wanted]


def kept(batch: Batch, folder: Path, origin: str = ORIGIN) -> KeptTransaction:
    """A batch's only transaction as it is read again."""
    return read(write(batch, folder, "sub", origin=origin, rels=RELS))
