"""The net effect of a batch on keys, change by change, knowing which of them the target has.

For what `bridge.apply.delta.net_effect` cannot tell from the batch alone:

- A key change that carries an unchanged TOAST value. The value stands only in the target, under the old key: its row
  must be moved, not deleted and inserted, and which row ends up where depends on the order of all changes.
- A key change of a row that the target has not: its new row does not come into being, for later changes neither.
- Changes that do not follow from each other, because not all kinds of them are published: an INSERT of a key that an
  earlier one brought, an UPDATE after a DELETE.

They are folded here one by one, in Python. It is rare, and the batch limits bound it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bridge.apply.effects.conflicts import DELETE_MISSING, INSERT_EXISTS, UPDATE_EXISTS, UPDATE_MISSING
from bridge.apply.effects.operations import DELETE, INSERT, NO_OLD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from bridge.apply.effects.conflicts import Tally

Key = tuple[Any, ...]


@dataclass(slots=True)
class _Row:
    """A row that is alive at this point of the batch.

    Attributes:
        root: The key under which the target has it; None when it began within the batch.
        values: The values the batch has for it, by position; a position that is missing keeps the target's.
    """

    root: Key | None
    values: dict[int, Any]


class Exists(Exception):
    """A row is in the way, and that is an error.

    Attributes:
        name: The conflict's name.
        key: The key.
    """

    def __init__(self, name: str, key: Key) -> None:
        super().__init__(name, key)
        self.name = name
        self.key = key


@dataclass(slots=True)
class _Table:
    """The target's rows as far as the batch touches them.

    Attributes:
        present: The keys that the target had before.
        live: Rows by key.
        seen: Keys that the batch has touched: those of them that are not live are not there.
        ended: Keys of rows of the target that are gone.
    """

    present: Collection[Key]
    live: dict[Key, _Row] = field(default_factory=dict)
    seen: set[Key] = field(default_factory=set)
    ended: set[Key] = field(default_factory=set)

    def take(self, key: Key) -> _Row | None:
        """The row at a key, which is there no more."""
        if key in self.seen:
            return self.live.pop(key, None)
        self.seen.add(key)
        return _Row(key, {}) if key in self.present else None

    def put(self, key: Key, row: _Row) -> None:
        """The row is at the key now, where there is none."""
        self.seen.add(key)
        self.live[key] = row

    def end(self, row: _Row) -> None:
        """A row that was taken is gone."""
        if row.root is not None:
            self.ended.add(row.root)


def fold(
    changes: pa.Table,
    key: Sequence[int],
    types: Sequence[pa.DataType],
    present: Collection[Key],
    tally: Tally,
    *,
    overwrite: bool,
) -> pa.Table:
    """Fold a table's changes into effects.

    Args:
        changes: In the columns of `TableChanges.changes`, in order.
        key: Positions of the key's columns.
        types: The columns' types, by position.
        present: Which of the keys in the changes the target has (see `key_of_values`).
        tally: Counts the conflicts.
        overwrite: A row that is in the way of another is overwritten.

    Returns:
        Effects in the columns that `bridge.apply.delta.net_effect` describes, up to `first`, with every `unchanged_<i>`
        that may be true. A row that took a key away from one that moved has NULL in `match_<k>`: it is inserted.

    Raises:
        Exists: A row is in the way, and not to be overwritten.
    """
    table = _Table(present)
    for change in changes.to_pylist():
        new_key = key_of_values(change.get(f"new_{k}") for k in key)
        old_key = key_of_values(change.get(f"old_{k}") for k in key) if change["old"] != NO_OLD else new_key
        values = {i: change[f"new_{i}"] for i in range(len(types)) if not change.get(f"unchanged_{i}")}
        if change["op"] == INSERT:
            row = table.take(new_key)
            if row is not None:
                _in_the_way(INSERT_EXISTS, new_key, tally, overwrite=overwrite)
            table.put(new_key, _Row(row.root if row else None, values))
            continue
        row = table.take(old_key)
        if row is None:
            tally.add(DELETE_MISSING if change["op"] == DELETE else UPDATE_MISSING, old_key)
        elif change["op"] == DELETE:
            table.end(row)
        else:
            other = table.take(new_key) if new_key != old_key else None
            if other is not None:
                _in_the_way(UPDATE_EXISTS, new_key, tally, overwrite=overwrite)
                table.end(other)
            row.values.update(values)
            table.put(new_key, row)
    return _effects(table.live, table.ended, key, types)


def key_of_values(values: Iterable[Any]) -> Key:
    """A key that can be looked up: arrays as tuples, and NaN the same as NaN."""
    return tuple(map(_hashable, values))


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def _in_the_way(name: str, key: Key, tally: Tally, *, overwrite: bool) -> None:
    if not overwrite:
        raise Exists(name, key)
    tally.add(name, key)


def _effects(live: dict[Key, _Row], ended: set[Key], key: Sequence[int], types: Sequence[pa.DataType]) -> pa.Table:
    claimed = {row.root for row in live.values() if row.root is not None}
    toast = sorted({i for row in live.values() for i in range(len(types)) if i not in row.values})
    effects: list[dict[str, Any]] = []

    def effect(match: Key, action: str, row: _Row, *, born: bool) -> None:
        effects.append(
            {
                **{f"match_{k}": value for k, value in zip(key, match, strict=True)},
                "action": action,
                "born": born,
                **{f"new_{i}": row.values.get(i) for i in range(len(types))},
                **{f"unchanged_{i}": i not in row.values for i in toast},
                "first": None,
            }
        )

    for at, row in live.items():
        if row.root is not None:
            effect(row.root, "put", row, born=False)
        else:
            effect((None,) * len(key) if at in claimed else at, "put", row, born=True)
            ended.discard(at)
    for root in ended - claimed:
        effect(root, "delete", _Row(root, {}), born=False)
    schema = pa.schema(
        [
            *((f"match_{k}", types[k]) for k in key),
            ("action", pa.string()),
            ("born", pa.bool_()),
            *((f"new_{i}", arrow) for i, arrow in enumerate(types)),
            *((f"unchanged_{i}", pa.bool_()) for i in toast),
            ("first", pa.string()),
        ]
    )
    return pa.Table.from_pylist(effects, schema=schema)
