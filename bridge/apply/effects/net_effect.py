"""Computes the net effect of a table's changes on each key: what one MERGE has to do, whatever happened in between.

Changes become effects of one event each; effects of a key fold into one, and folds fold again. So a batch needs memory
for the rows that it touches, not for all changes of them. An effect has the columns

    match_<k>      for each position k of the key: the key of the target's row that the effect is on
    born           bool: the row came into being within the batch, so it is inserted if nothing matches; an effect that
                   is not born and matches nothing is on a row that the target does not have
    ended          bool: the row's last event ended it; else the values in `new_<i>` are to be put
    first          int8: the key's first event; if it is one of `BEGINS` and the effect matches a row, that is
                   insert_exists or update_exists
    updates        int32: the number of UPDATEs, and
    deletes        int32: the number of DELETEs, of a row that existed before the batch: they are missing if nothing
                   matches
    leaves         bool: a key change moved that row to another key, where it exists only if it existed here
    unclear        bool: the events do not follow from each other, so the result depends on each one in turn
    new_<i>        the values to put; of an ended row they have no meaning
    unchanged_<i>  bool: keep the target's value; only for columns with an unchanged TOAST value in the batch

A key change ends the old key and begins the new one. An unchanged TOAST value is the row's last value in the batch,
else the target's. `bridge.apply.effects.fold` handles unclear events, and key changes that carry an unchanged TOAST
value, because they move the target's row. Keys are equal as Spark has it: 0.0 is -0.0, and NaN is NaN.

`bridge.apply.delta.net_effect` computes the same of changes that Spark holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.effects.key_codes import key_codes
from bridge.apply.effects.operations import DELETE, INSERT, NO_OLD, UPDATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

INSERTED, ARRIVED, UPDATED, LEFT, DELETED = range(5)
"""Events of a key; a key change is LEFT for the old key and ARRIVED for the new one."""

BEGINS, ENDS = (INSERTED, ARRIVED), (LEFT, DELETED)

_COUNTS: Final = ("updates", "deletes")
_FLAGS: Final = ("leaves", "unclear")


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of effects of each kind.

    Attributes:
        unclear: Their events do not follow from each other.
        leaves: A row of the target leaves its key.
        puts, deletes: On a row of the target.
        reborn: Those `puts` whose row ended, after which another began.
        new: The row begins in the batch.
        brief: The row begins and ends in the batch.
    """

    unclear: int
    leaves: int
    puts: int
    deletes: int
    reborn: int
    new: int
    brief: int

    @property
    def begins_only(self) -> bool:
        """Whether each row began in the batch, and is there after it."""
        return not (self.unclear or self.leaves or self.puts or self.deletes or self.brief)


@dataclass(frozen=True, slots=True)
class NetEffect:
    """The net effect of changes.

    Attributes:
        table: Effects, in the columns that the module describes; each key once.
        shape: How many there are of each kind.
    """

    table: pa.Table
    shape: Shape

    @property
    def clear(self) -> bool:
        """Whether the effects say it all: the events of each key follow from each other."""
        return not self.shape.unclear


def net_effect(changes: pa.Table, key: Sequence[int]) -> NetEffect:
    """Compute the net effect of changes.

    Args:
        changes: In the columns of `TableChanges.changes`, in order. No key change may carry an unchanged TOAST value
            (see `bridge.apply.batch.table_changes.needs_fold`).
        key: Positions of the key's columns; at least one.
    """
    return fold([_events(changes, key)])


def fold(effects: Sequence[pa.Table]) -> NetEffect:
    """Fold effects, and effects that were folded before, into one for each key.

    Args:
        effects: Tables of effects, the earlier ones first; at least one.
    """
    table = pa.concat_tables(effects, promote_options="default") if len(effects) > 1 else effects[0]
    for index, name in enumerate(table.column_names):
        if name.startswith("unchanged_") and table[name].null_count:
            table = table.set_column(index, name, pc.fill_null(table[name], fill_value=False))
    codes = key_codes([table[name] for name in table.column_names if name.startswith("match_")])
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(codes[order]) != 0])) if len(order) else order
    if len(starts) < len(order):
        table = _folded(table, order, starts)
    return NetEffect(table, shape_of(table))


def shape_of(effects: pa.Table) -> Shape:
    """Count effects by kind."""
    born, ended = _numpy(effects["born"]), _numpy(effects["ended"])
    new = np.isin(_numpy(effects["first"]), BEGINS)

    def count(flags: Bools) -> int:
        return int(np.count_nonzero(flags))

    return Shape(
        unclear=count(_numpy(effects["unclear"])),
        leaves=count(_numpy(effects["leaves"])),
        puts=count(~new & ~ended),
        deletes=count(~new & ended),
        reborn=count(~new & ~ended & born),
        new=count(new & ~ended),
        brief=count(new & ended),
    )


def _events(changes: pa.Table, key: Sequence[int]) -> pa.Table:
    """Turn changes into effects of one event each; a key change becomes two."""
    operations = _numpy(changes["op"])
    moved = _moved(changes, operations, key)
    left = np.zeros(len(operations), np.bool_)
    if moved is not None:
        # The old key ends before the new one begins: a row may move to the key that the same change leaves.
        rows = np.repeat(np.arange(len(operations)), 1 + moved)
        left = np.append(rows[1:] == rows[:-1], [False])
        changes, operations, moved = changes.take(pa.array(rows)), operations[rows], moved[rows]
    first = np.full(len(operations), UPDATED, np.int8)
    first[operations == INSERT] = INSERTED
    first[operations == DELETE] = DELETED
    if moved is not None:
        first[moved] = ARRIVED
        first[left] = LEFT
    ended = np.isin(first, ENDS)
    events: dict[str, Any] = {f"match_{k}": _matched(changes, k, ended) for k in key}
    events |= {
        "born": np.isin(first, BEGINS),
        "ended": ended,
        "first": first,
        "updates": np.isin(first, (UPDATED, LEFT)).astype(np.int32),
        "deletes": (first == DELETED).astype(np.int32),
        "leaves": left,
        "unclear": np.zeros(len(first), np.bool_),
    }
    values = [name for name in changes.column_names if name.startswith(("new_", "unchanged_"))]
    return pa.table(events | {name: changes[name] for name in values})


def _moved(changes: pa.Table, operations: Ints, key: Sequence[int]) -> Bools | None:
    """Mark the key changes; None if there are none."""
    if f"old_{key[0]}" not in changes.column_names:
        return None
    moved: Bools = (operations == UPDATE) & (_numpy(changes["old"]) != NO_OLD)
    if not moved.any():
        return None
    rows = np.flatnonzero(moved)
    some = changes.take(pa.array(rows))
    pairs = [pa.chunked_array([*some[f"old_{k}"].chunks, *some[f"new_{k}"].chunks]) for k in key]
    codes = key_codes(pairs)
    moved[rows] = codes[: len(rows)] != codes[len(rows) :]
    return moved if moved.any() else None


def _matched(changes: pa.Table, k: int, ended: Bools) -> pa.ChunkedArray:
    """The key of each event: the old one where the row ends."""
    if f"old_{k}" not in changes.column_names or not ended.any():
        return changes[f"new_{k}"]
    if ended.all():
        return changes[f"old_{k}"]
    return pc.if_else(pa.array(ended), changes[f"old_{k}"], changes[f"new_{k}"])


def _folded(table: pa.Table, order: Ints, starts: Ints) -> pa.Table:
    """Fold the effects of each key.

    Args:
        table: The effects.
        order: Their rows, by key and then in order.
        starts: Where each key begins in `order`.
    """
    columns = {name: _numpy(table[name])[order] for name in ("born", "ended", "first", *_COUNTS, *_FLAGS)}
    lasts = np.append(starts[1:], len(order)) - 1
    group = np.repeat(np.arange(len(starts)), lasts - starts + 1)
    place = np.arange(len(order))
    # where the key's row has begun before, updates and deletes are of that row, not of the target's
    begun = np.cumsum(columns["born"]) - columns["born"]
    of_target = begun == begun[starts][group]
    follows = np.isin(columns["first"], BEGINS)[1:] == columns["ended"][:-1]
    columns["unclear"][1:] |= ~follows & (group[1:] == group[:-1])
    columns["leaves"] &= of_target
    began = np.maximum.reduceat(np.where(columns["born"], place, -1), starts)
    last = order[lasts]
    fold_: dict[str, Any] = {
        "born": began >= 0,
        "ended": columns["ended"][lasts],
        "first": columns["first"][starts],
        **{name: np.add.reduceat(np.where(of_target, columns[name], 0), starts).astype(np.int32) for name in _COUNTS},
        **{name: np.logical_or.reduceat(columns[name], starts) for name in _FLAGS},
    }
    taken = table.take(pa.array(last))
    for index, name in enumerate(table.column_names):
        if name in fold_:
            taken = taken.set_column(index, name, pa.array(fold_[name]))
        elif name.startswith("unchanged_"):
            place_known = np.where(columns["ended"] | _numpy(table[name])[order], -1, place)
            known = np.maximum.reduceat(place_known, starts)
            is_known = (known >= 0) & (known >= began)
            value = name.replace("unchanged", "new")
            found = table[value].take(pa.array(order[np.where(is_known, known, lasts)]))
            taken = taken.set_column(index, name, pa.array(~is_known))
            taken = taken.set_column(taken.column_names.index(value), value, found)
    return taken


def _numpy(column: pa.ChunkedArray) -> Any:
    return column.to_numpy()
