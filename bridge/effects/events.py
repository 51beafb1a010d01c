"""Turns a table's changes into effects of one event each, in the columns of `bridge.effects.net_effect`.

Keys are compared by numbers: equal keys have equal ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

# --- The values of `op` and `old` in a table of changes: the operation, and the kind of the old tuple. pgoutput's tags.
#

INSERT, UPDATE, DELETE = b"IUD"
TRUNCATE = ord("T")
"""Only where every change is kept; else a TRUNCATE voids the changes before it."""
COMMANDS: Final = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE", TRUNCATE: "TRUNCATE"}
"""The operations as PostgreSQL's errors name them."""
NO_OLD, KEY_TUPLE, OLD_TUPLE = 0, ord("K"), ord("O")

_TAGS: Final = {command: tag for tag, command in COMMANDS.items()}


def kinds_of(commands: Iterable[str], old: pa.Array | pa.ChunkedArray) -> dict[str, Ints]:
    """The columns `op` and `old` of changes.

    Args:
        commands: Their operations' names.
        old: Their old images; NULL where there is none. Of one that is there, the kind is that of a key.
    """
    valid = old.is_valid().to_numpy(zero_copy_only=False)
    return {
        "op": np.array([_TAGS[command] for command in commands], np.int64),
        "old": np.where(valid, KEY_TUPLE, NO_OLD).astype(np.int64),
    }


# --- Effects of one event each ----------------------------------------------------------------------------------------

INSERTED, ARRIVED, UPDATED, DELETED = range(4)
"""Events. A key change is ARRIVED for the new key, and UPDATED for the row."""

BEGINS: Final = (INSERTED, ARRIVED)


def events(changes: pa.Table, key: Sequence[int]) -> tuple[pa.Table, Ints]:
    """Turn changes, in their order, into effects of one event each, two for a key change, and each one's change."""
    operations = changes["op"].to_numpy()
    moved = moved_rows(changes, operations, key)
    rounds = np.arange(len(operations))
    arrives = np.zeros(len(operations), np.bool_)
    values = changes.select([name for name in changes.column_names if name.startswith(("new_", "unchanged_"))])
    if moved.any():
        rounds = np.repeat(rounds, 1 + moved)
        arrives = np.append(rounds[1:] == rounds[:-1], [False])
        values = with_marks(values.take(pa.array(rounds, mask=arrives)))  # not twice: they may be large
        keys = [name for name in changes.column_names if name.partition("_")[2] in map(str, key)]
        changes, operations, moved = changes.select(keys).take(pa.array(rounds)), operations[rounds], moved[rounds]
        moved = moved & ~arrives
    first = np.full(len(operations), UPDATED, np.int8)
    first[operations == INSERT] = INSERTED
    first[operations == DELETE] = DELETED
    first[arrives] = ARRIVED
    deleted = first == DELETED
    columns: dict[str, Any] = {f"match_{k}": _matched(changes, k, deleted | moved) for k in key}
    columns |= {
        "born": np.isin(first, BEGINS),
        "ended": deleted | arrives,
        "first": first,
        "updates": (first == UPDATED).astype(np.int32),
        "deletes": deleted.astype(np.int32),
        "leaves": moved,
        "moved": moved,
        "unclear": np.zeros(len(first), np.bool_),
    }
    return pa.table(columns | {name: values[name] for name in values.column_names}), rounds


def with_marks(table: pa.Table) -> pa.Table:
    """The table with `unchanged_<i>` false where it is NULL: in rows that had no such column, or have no values."""
    for index, name in enumerate(table.column_names):
        if name.startswith("unchanged_") and table[name].null_count:
            table = table.set_column(index, name, pc.fill_null(table[name], fill_value=False))
    return table


def moved_rows(changes: pa.Table, operations: Ints, key: Sequence[int]) -> Bools:
    """Mark the key changes."""
    if f"old_{key[0]}" not in changes.column_names:
        return np.zeros(len(operations), np.bool_)
    moved: Bools = (operations == UPDATE) & (changes["old"].to_numpy() != NO_OLD)
    if not moved.any():
        return moved
    rows = np.flatnonzero(moved)
    updates = changes.take(pa.array(rows))
    pairs = [pa.chunked_array([*updates[f"old_{k}"].chunks, *updates[f"new_{k}"].chunks]) for k in key]
    codes = key_codes(pairs)
    moved[rows] = codes[: len(rows)] != codes[len(rows) :]
    return moved


def _matched(changes: pa.Table, k: int, old: Bools) -> pa.ChunkedArray:
    """The key that each event is on: the old one of rows that are deleted or moved."""
    if f"old_{k}" not in changes.column_names or not old.any():
        return changes[f"new_{k}"]
    if old.all():
        return changes[f"old_{k}"]
    return pc.if_else(pa.array(old), changes[f"old_{k}"], changes[f"new_{k}"])


_MOST = 1 << 62


def key_codes(columns: Sequence[pa.ChunkedArray]) -> Ints:
    """Return a number for each row, the same for equal keys only.

    Values are equal as Spark has it: 0.0 is -0.0, NaN is NaN; a NULL, which no key has, is NULL.
    """
    if len(columns) == 1 and pa.types.is_integer(columns[0].type) and not columns[0].null_count:
        return np.asarray(columns[0].to_numpy()).astype(np.int64, copy=False)
    codes, number = _codes(columns[0])
    for column in columns[1:]:
        more, count = _codes(column)
        if number * count > _MOST:
            codes = np.unique(codes, return_inverse=True)[1]
            number = len(codes)
        codes, number = codes * count + more, number * count
    return codes


def _codes(column: pa.ChunkedArray) -> tuple[Ints, int]:
    """Numbers from 0 for one column, and how many there may be."""
    if pa.types.is_nested(column.type):
        numbers: dict[Any, int] = {}
        codes = [numbers.setdefault(_hashable(value), len(numbers)) for value in column.to_pylist()]
        return np.array(codes, np.int64), len(numbers) + 1
    if pa.types.is_floating(column.type):
        nan = pa.scalar(float("nan"), column.type)
        column = pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0.0, column.type)))
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):  # no chunks: no rows
        return np.zeros(0, np.int64), 1
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary) + 1


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, float):
        return "NaN" if np.isnan(value) else value + 0.0
    return value
