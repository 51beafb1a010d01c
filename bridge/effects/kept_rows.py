"""The rows of tiny tables, kept with the version that has them, and what a net effect makes of them.

A commit to a table of some rows costs Spark more to read and join them than to write them. The writer's last rows are
the table's as long as nobody else commits, and Delta's transaction tells the version that it replaces.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.effects.events import BEGINS, key_codes

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_ROWS: Final = 5_000
MOST_BYTES: Final = 1 << 20
"""Of one table. Spark computes more rows on several cores, and reads of them what it needs."""

_ALL_BYTES: Final = 32 << 20
"""Of all tables together; those that were used least recently are dropped."""


class TableVersion(NamedTuple):
    """A version of a Delta table.

    Attributes:
        table_id: The table's own id: another table at its path has another one.
        version: The version's number.
        entry: The inode and the time in nanoseconds of the version's entry in the log: a table that is put back from a
            backup may have the number once more.
    """

    table_id: str
    version: int
    entry: tuple[int, int]


@dataclass(slots=True)
class KeptRows:
    """Rows of tables at a version, for threads that commit to different tables."""

    _tables: OrderedDict[str, tuple[TableVersion, pa.Table]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _size_bytes: int = 0
    too_many: set[str] = field(default_factory=set)
    """Ids of tables with more rows, or larger ones, than are kept."""

    def get(self, version: TableVersion) -> pa.Table | None:
        """The rows of this version, under the table's column names; None if they are not kept."""
        with self._lock:
            kept, rows = self._tables.get(version.table_id, (None, None))
            return rows if kept == version else None

    def put(self, version: TableVersion, rows: pa.Table) -> None:
        """Keep the rows of a version in place of the table's earlier ones, if they are few."""
        with self._lock:
            _, earlier = self._tables.pop(version.table_id, (None, None))
            self._size_bytes -= earlier.nbytes if earlier is not None else 0
            if not are_few(rows):
                self.too_many.add(version.table_id)
                return
            self._tables[version.table_id] = version, rows
            self._size_bytes += rows.nbytes
            while self._size_bytes > _ALL_BYTES:
                _, (_, dropped) = self._tables.popitem(last=False)
                self._size_bytes -= dropped.nbytes


def are_few(rows: pa.Table) -> bool:
    """Whether a table's rows may be kept."""
    return len(rows) <= MOST_ROWS and bool(rows.nbytes <= MOST_BYTES)


def rows_after(
    rows: pa.Table, effects: pa.Table, key: Sequence[int], names: Sequence[str], values: Sequence[str]
) -> pa.Table | None:
    """A table's rows after a net effect on their keys.

    Args:
        rows: The rows before, under the table's column names.
        effects: As `NetEffect.table`; clear.
        key: Positions of the key's columns.
        names: The table's columns.
        values: The columns of `effects` with their new values.

    Returns:
        The rows; None if an effect is on a row that is not there, or begins one that is, or a key is there twice.
    """
    pairs = [(rows[names[k]], effects[f"match_{k}"].cast(rows.schema.field(names[k]).type)) for k in key]
    codes = key_codes([pa.chunked_array([*ours.chunks, *theirs.chunks], ours.type) for ours, theirs in pairs])
    ours, theirs = codes[: len(rows)], codes[len(rows) :]
    order = np.argsort(ours, kind="stable")
    if len(ours) and (np.diff(ours[order]) == 0).any():
        return None
    if len(ours):
        at = order[np.minimum(np.searchsorted(ours, theirs, sorter=order), len(ours) - 1)]
        is_there = ours[at] == theirs
    else:
        at, is_there = np.zeros(len(theirs), np.int64), np.zeros(len(theirs), np.bool_)
    if (is_there == np.isin(effects["first"].to_numpy(), BEGINS)).any():
        return None
    untouched = np.ones(len(rows), np.bool_)
    untouched[at[is_there]] = False
    before = pa.array(at, mask=~is_there)
    columns: dict[str, Any] = {}
    for i, (name, value_name) in enumerate(zip(names, values, strict=True)):
        value = effects[value_name].cast(rows.schema.field(name).type)
        if f"unchanged_{i}" in effects.column_names:
            stays = pc.and_(pc.fill_null(effects[f"unchanged_{i}"], fill_value=False), pa.array(is_there))
            value = pc.if_else(stays, rows[name].take(before), value)
        columns[name] = value
    put = pa.table(columns, rows.schema).filter(pa.array(~effects["ended"].to_numpy()))
    # in one chunk, or each commit would add one
    return pa.concat_tables([rows.filter(pa.array(untouched)), put]).combine_chunks()
