"""Folds a batch into its net effect on each key, change by change, knowing which keys the target has.

It is for batches whose net effect cannot be told from the batch alone:

- A key change, of a row that the target does not have, to a key that another row has: nothing comes to that key.
- Changes do not follow from each other, because some actions are not published: an INSERT of a key that the batch has
  inserted before, an UPDATE after a DELETE.

The changes are folded one by one, in Python. Such batches are rare, and the batch limits bound them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pgbridge.bridge.effects.conflicts import DELETE_MISSING, INSERT_EXISTS, UPDATE_EXISTS, UPDATE_MISSING, Tally
from pgbridge.bridge.effects.events import DELETE, DELETED, INSERT, INSERTED, NO_OLD, UPDATED
from pgbridge.bridge.effects.net_effect import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

Key = tuple[Any, ...]


@dataclass(slots=True)
class _Row:
    """A row that exists at this point of the batch.

    Attributes:
        target_key: The key under which the target has it; None if the batch has inserted it.
        values: The values that the batch has for it, by position; a position that is missing keeps the target's.
    """

    target_key: Key | None
    values: dict[int, Any]


class Exists(Exception):
    """A row already has the key of an INSERT or a key change, and is not to be overwritten."""

    def __init__(self, name: str, key: Key) -> None:
        super().__init__(name, key)
        self.name = name
        self.key = key


@dataclass(slots=True)
class _Table:
    """The target's rows as far as the batch touches them.

    Attributes:
        present: The keys that the target had before.
        touched: The keys of all changes so far; one that is not in `live` has no row.
        deleted: The keys under which the target has rows that are deleted.
    """

    present: Collection[Key]
    live: dict[Key, _Row] = field(default_factory=dict)
    touched: set[Key] = field(default_factory=set)
    deleted: set[Key] = field(default_factory=set)

    def take(self, key: Key) -> _Row | None:
        """Take the row away from a key; None if there is no row."""
        if key in self.touched:
            return self.live.pop(key, None)
        self.touched.add(key)
        return _Row(key, {}) if key in self.present else None

    def put(self, key: Key, row: _Row) -> None:
        """Put a row at a key that has none."""
        self.touched.add(key)
        self.live[key] = row

    def delete(self, row: _Row) -> None:
        """Delete a row that was taken."""
        if row.target_key is not None:
            self.deleted.add(row.target_key)


def fold(
    changes: pa.Table,
    key: Sequence[int],
    types: Sequence[pa.DataType],
    present: Collection[Key],
    tally: Tally,
    *,
    overwrite: bool,
    apart: bool = False,
) -> pa.Table:
    """Fold a table's changes into effects.

    Args:
        present: The keys of the changes that the target has (see `key_of_values`).
        overwrite: Whether an INSERT or a key change overwrites a row that already has its key.
        apart: Whether a row that is deleted, and one that is inserted with its key, are an effect each.

    Returns:
        Effects in the columns that `bridge.effects.net_effect` describes, with every `unchanged_<i>` that may be true.
        A new row whose key a moved row has left, or a deleted one has (`apart`), has NULL in `match_<k>`: it is
        inserted.

    Raises:
        Exists: A row already has the key of an INSERT or a key change, and is not to be overwritten.
    """
    table = _Table(present)
    for change in (row for batch in changes.to_batches() for row in batch.to_pylist()):
        new_key = key_of_values(change.get(f"new_{k}") for k in key)
        old_key = key_of_values(change.get(f"old_{k}") for k in key) if change["old"] != NO_OLD else new_key
        values = {i: change[f"new_{i}"] for i in range(len(types)) if not change.get(f"unchanged_{i}")}
        if change["op"] == INSERT:
            row = table.take(new_key)
            if row is not None:
                _check_overwrite(INSERT_EXISTS, new_key, tally, overwrite=overwrite)
            table.put(new_key, _Row(row.target_key if row else None, values))
            continue
        row = table.take(old_key)
        if row is None:
            tally.add(DELETE_MISSING if change["op"] == DELETE else UPDATE_MISSING, old_key)
        elif change["op"] == DELETE:
            table.delete(row)
        else:
            other = table.take(new_key) if new_key != old_key else None
            if other is not None:
                _check_overwrite(UPDATE_EXISTS, new_key, tally, overwrite=overwrite)
                table.delete(other)
            row.values.update(values)
            table.put(new_key, row)
    return _effects(table.live, table.deleted, key, types, apart=apart)


def key_of_values(values: Iterable[Any]) -> Key:
    """A key that can be looked up: arrays are tuples, and all NaNs are the same object."""
    return tuple(map(_hashable, values))


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def _check_overwrite(name: str, key: Key, tally: Tally, *, overwrite: bool) -> None:
    if not overwrite:
        raise Exists(name, key)
    tally.add(name, key)


def _effects(
    live: dict[Key, _Row], deleted: set[Key], key: Sequence[int], types: Sequence[pa.DataType], *, apart: bool
) -> pa.Table:
    target_keys = {row.target_key for row in live.values() if row.target_key is not None}
    toast = sorted({i for row in live.values() for i in range(len(types)) if i not in row.values})
    effects: list[dict[str, Any]] = []

    def effect(
        match: Key | None, first: int, values: dict[int, Any], *, moved: bool = False, born: bool = False
    ) -> None:
        effects.append(
            {
                **{f"match_{k}": match[at] if match is not None else None for at, k in enumerate(key)},
                "born": born,
                "ended": first == DELETED and not born,
                "first": first,
                "updates": int(first == UPDATED),
                "deletes": int(first == DELETED),
                "leaves": False,
                "moved": moved,
                "unclear": False,
                **{f"new_{i}": values.get(i) for i in range(len(types))},
                **{f"unchanged_{i}": first == UPDATED and i not in values for i in toast},
            }
        )

    for at, row in live.items():
        if row.target_key is not None:
            effect(row.target_key, UPDATED, row.values, moved=row.target_key != at)
        else:
            taken = at in target_keys or (apart and at in deleted)
            # where a row of the target was deleted, the new one is no conflict with it
            first = DELETED if at in deleted and not taken else INSERTED
            effect(None if taken else at, first, row.values, moved=taken, born=True)
            if not apart:
                deleted.discard(at)
    for target_key in deleted - target_keys:
        effect(target_key, DELETED, {})
    schema = pa.schema(
        [
            *((f"match_{k}", types[k]) for k in key),
            *COLUMNS.items(),
            *((f"new_{i}", arrow) for i, arrow in enumerate(types)),
            *((f"unchanged_{i}", pa.bool_()) for i in toast),
        ]
    )
    return pa.Table.from_pylist(effects, schema=schema)
