"""Computes the net effect of a table's changes: what one MERGE has to do, whatever happened in between.

Changes become effects of one event each; effects on a row fold into one, and folds fold again. So a batch needs memory
for the rows that it touches, not for all changes of them. An effect has the columns

    match_<k>      for each position k of the key: the key of the target's row that the effect is on; no two effects
                   have the same one. NULL for a new row whose key another effect has: it is inserted
    born           bool: the row came into being within the batch, so it is inserted if nothing matches; an effect that
                   is not born and matches nothing is on a row that the target does not have
    ended          bool: the row's last event ended it; else the values in `new_<i>` are to be put
    first          int8: the first event; if it is one of `BEGINS` and the effect matches a row, that is insert_exists
                   or update_exists
    updates        int32: the number of UPDATEs, and
    deletes        int32: the number of DELETEs, of a row that existed before the batch: they are missing if nothing
                   matches
    leaves         bool: a key change moved that row, so it existed under other keys only if it existed here
    moved          bool: the values that are put have another key than `match_<k>`
    unclear        bool: the events do not follow from each other, so the result depends on each one in turn
    new_<i>        the values to put; of an ended row they have no meaning
    unchanged_<i>  bool: keep the target's value; only for columns with an unchanged TOAST value in the batch

A key change moves its row, and needs the other key to be free. So it is two effects: one on the row, and one on the
other key, which begins a row there and ends it, unless other changes have freed that key before. An unchanged TOAST
value is the row's last value in the batch, else the target's. `bridge.effects.fold` handles unclear events. Keys
are equal as Spark has it: 0.0 is -0.0, and NaN is NaN.

Where rows move from key to key, a row is followed from the key that it had, by the effects that moved it. An effect is
in the group of

- the target's row under its key, if that key is touched for the first time;
- the row that was last put to its key, if that one is still there;
- the key itself, if it begins a row where no row is any more: the effect on the key then replaces what was there. If
  the row that was there first has moved on, and is an effect by itself, the new row is another one, of no key.

`bridge.effects.divided` computes the net effect of changes that memory shall not hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.effects.events import BEGINS, INSERTED, events, key_codes, with_marks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

COLUMNS: Final = {
    "born": pa.bool_(),
    "ended": pa.bool_(),
    "first": pa.int8(),
    "updates": pa.int32(),
    "deletes": pa.int32(),
    "leaves": pa.bool_(),
    "moved": pa.bool_(),
    "unclear": pa.bool_(),
}
"""The columns that every effect has beside those of the key and of values, and their types."""

_COUNTS: Final = ("updates", "deletes")
_FLAGS: Final = ("leaves", "moved", "unclear")


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of effects of each kind.

    Attributes:
        unclear: Their events do not follow from each other.
        leaves: A key change moves a row of the target.
        moved: A row is put that has another key than the effect.
        puts, deletes: On a row of the target.
        reborn: Those `puts` whose row ended, after which another began.
        new: The row begins in the batch.
        brief: The row begins and ends in the batch.
    """

    unclear: int
    leaves: int
    moved: int
    puts: int
    deletes: int
    reborn: int
    new: int
    brief: int

    @property
    def begins_only(self) -> bool:
        """Whether each row began in the batch, and is there after it."""
        return not (self.unclear or self.puts or self.deletes or self.brief)


@dataclass(frozen=True, slots=True)
class NetEffect:
    """The net effect of changes, in the columns that the module describes; each row once."""

    table: pa.Table
    shape: Shape

    @property
    def clear(self) -> bool:
        """Whether the effects say it all: the events follow from each other."""
        return not self.shape.unclear


def net_effect(changes: pa.Table, key: Sequence[int]) -> NetEffect:
    """Compute the net effect of changes."""
    table, rounds = events(changes, key)
    return _fold(table, rounds, key)


def fold(effects: Sequence[pa.Table]) -> NetEffect:
    """Fold effects, and effects that were folded before, into one for each row; the earlier ones come first."""
    table = pa.concat_tables(effects, promote_options="default") if len(effects) > 1 else effects[0]
    table = with_marks(table)
    if len(effects) == 1:
        return NetEffect(table, shape_of(table))
    rounds = np.repeat(np.arange(len(effects)), [len(part) for part in effects])
    return _fold(table, rounds, [int(name.removeprefix("match_")) for name in _matches(table)])


def reborn_apart(effect: NetEffect) -> NetEffect:
    """The same effects, where a row that ends, and one that then begins with its key, are an effect each.

    So a MERGE deletes the one and inserts the other, which gets none of the values of the first.
    """
    table = effect.table
    first = _numpy(table["first"])
    reborn = _numpy(table["born"]) & ~_numpy(table["ended"]) & ~np.isin(first, BEGINS)
    if not reborn.any():
        return effect
    rows, number = table.filter(pa.array(reborn)), int(np.count_nonzero(reborn))
    ended = _with(rows, {"born": False, "ended": True, "moved": False}, number)
    nothing = {name: pa.nulls(number, table[name].type) for name in _matches(table)}
    fresh = {"first": INSERTED, **dict.fromkeys(_COUNTS, 0), "leaves": False, "moved": True}
    begun = _with(rows, nothing | fresh, number)
    parted = pa.concat_tables([table.filter(pa.array(~reborn)), ended, begun]).combine_chunks()
    return NetEffect(parted, shape_of(parted))


def _with(table: pa.Table, columns: dict[str, Any], number: int) -> pa.Table:
    """The table with other columns: a constant each, or an array."""
    for name, value in columns.items():
        made = value if isinstance(value, pa.Array) else pa.repeat(pa.scalar(value, table[name].type), number)
        table = table.set_column(table.column_names.index(name), name, made)
    return table


def shape_of(effects: pa.Table) -> Shape:
    """Count effects by kind."""
    born, ended = _numpy(effects["born"]), _numpy(effects["ended"])
    new = np.isin(_numpy(effects["first"]), BEGINS)

    def count(flags: Bools) -> int:
        return int(np.count_nonzero(flags))

    return Shape(
        unclear=count(_numpy(effects["unclear"])),
        leaves=count(_numpy(effects["leaves"])),
        moved=count(_numpy(effects["moved"])),
        puts=count(~new & ~ended),
        deletes=count(~new & ended),
        reborn=count(~new & ~ended & born),
        new=count(new & ~ended),
        brief=count(new & ended),
    )


def _matches(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name.startswith("match_")]


def _fold(table: pa.Table, rounds: Ints, key: Sequence[int]) -> NetEffect:
    if _numpy(table["moved"]).any():
        table = _fold_moved(table, rounds, key)
        return NetEffect(table, shape_of(table))
    codes = key_codes([table[f"match_{k}"] for k in key])
    order, starts = _grouped(codes)
    if len(starts) < len(order):
        columns = _flags(table)
        begins, sorted_ = np.isin(columns["first"], BEGINS), codes[order]
        follows = begins[order][1:] == columns["ended"][order][:-1]
        columns["unclear"][order[1:]] |= ~follows & (sorted_[1:] == sorted_[:-1])
        table = _folded(table, columns, order, starts)
    return NetEffect(table, shape_of(table))


def _fold_moved(table: pa.Table, rounds: Ints, key: Sequence[int]) -> pa.Table:
    """Fold effects of which some move their row."""
    columns = _flags(table)
    pairs = [(table[f"match_{k}"], table[f"new_{k}"]) for k in key]
    codes = key_codes([pa.chunked_array([*match.chunks, *new.chunks], match.type) for match, new in pairs])
    codes = np.unique(codes, return_inverse=True)[1]  # a whole number is its own code, and may be that of no key
    before, after = codes[: len(table)].copy(), codes[len(table) :].copy()
    before[_numpy(pc.is_null(table[f"match_{key[0]}"]))] = NO_KEY
    after[columns["ended"]] = NO_KEY
    chains = row_chains(before, after, np.isin(columns["first"], BEGINS), rounds)
    columns["unclear"] |= chains.unclear
    before[chains.keyless] = NO_KEY
    order, starts = _grouped(chains.groups, np.flatnonzero(~chains.needless | columns["unclear"]))
    firsts, lasts = order[starts], order[_ends(starts, len(order))]
    columns["moved"][lasts] = (after[lasts] != NO_KEY) & (after[lasts] != before[firsts])
    folded = _folded(table, columns, order, starts)
    # the key that the row had; if it is there again, as it was put: -0.0 may follow 0.0
    had = pa.array(firsts, mask=chains.keyless[firsts])
    first_key = pc.or_(folded["ended"], folded["moved"])
    for name in _matches(table):
        match = pc.if_else(first_key, table[name].take(had), folded[name.replace("match", "new")])
        folded = folded.set_column(folded.column_names.index(name), name, match)
    # a new row that has no key, and has ended, was never there
    kept = (before[firsts] != NO_KEY) | (after[lasts] != NO_KEY) | _numpy(folded["unclear"])
    return folded.filter(pa.array(kept))


def _flags(table: pa.Table) -> dict[str, Any]:
    return {name: _numpy(table[name]).copy() for name in ("born", "ended", "first", *_COUNTS, *_FLAGS)}


def _grouped(groups: Ints, rows: Ints | None = None) -> tuple[Ints, Ints]:
    """Rows by group and then in order, and where each group begins."""
    order = np.argsort(groups, kind="stable") if rows is None else rows[np.argsort(groups[rows], kind="stable")]
    starts = np.flatnonzero(np.concatenate([[True], np.diff(groups[order]) != 0])) if len(order) else order
    return order, starts


def _ends(starts: Ints, number: int) -> Ints:
    return np.append(starts[1:], number) - 1


def _folded(table: pa.Table, columns: dict[str, Any], order: Ints, starts: Ints) -> pa.Table:
    """Fold the effects of each group; `match_<k>` is the last one's, and `columns` count instead of the table's."""
    columns = {name: column[order] for name, column in columns.items()}
    lasts = _ends(starts, len(order))
    group = np.repeat(np.arange(len(starts)), lasts - starts + 1)
    place = np.arange(len(order))
    # where the key's row has begun before, updates and deletes are of that row, not of the target's
    begun = np.cumsum(columns["born"]) - columns["born"]
    of_target = begun == begun[starts][group]
    columns["leaves"] &= of_target
    began = np.maximum.reduceat(np.where(columns["born"], place, -1), starts)
    last = order[lasts]
    fold_: dict[str, Any] = {
        "born": began >= 0,
        "ended": columns["ended"][lasts],
        "first": columns["first"][starts],
        **{name: np.add.reduceat(np.where(of_target, columns[name], 0), starts).astype(np.int32) for name in _COUNTS},
        **{name: np.logical_or.reduceat(columns[name], starts) for name in ("leaves", "unclear")},
        "moved": columns["moved"][lasts],
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
            new_values = table[value].take(pa.array(order[np.where(is_known, known, lasts)]))
            taken = taken.set_column(index, name, pa.array(~is_known))
            taken = taken.set_column(taken.column_names.index(value), value, new_values)
    return taken


def _numpy(column: pa.ChunkedArray) -> Any:
    return column.to_numpy()


NO_KEY = -1
"""The code of no key: of a new row whose key belongs to another effect, or of a row that ended."""


@dataclass(frozen=True, slots=True)
class RowChains:
    """The groups of effects.

    Attributes:
        groups: For each effect the first one of its group.
        unclear: The effect does not follow from those before it: a row is put where one is, or none is where one
            should be.
        needless: The effect only says that no row is at its key, which follows from those before it.
        keyless: The effect begins a row, and another one has its key.
    """

    groups: Ints
    unclear: Bools
    needless: Bools
    keyless: Bools


def row_chains(before: Ints, after: Ints, begins: Bools, rounds: Ints) -> RowChains:
    """Follow rows through effects.

    Args:
        before: The codes of the keys that effects are on, `NO_KEY` for none.
        after: The codes of the keys that rows have after them, `NO_KEY` for a row that ended.
        begins: No row has the key before the effect; else one has.
        rounds: When each effect happens, ascending. In a round each key is in `before` at most once, so is it in
            `after`, and those in `after` are in `before`. Rows leave their keys before others come to them.
    """
    number = len(before)
    keyed, put = np.flatnonzero(before != NO_KEY), np.flatnonzero(after != NO_KEY)
    effects = np.concatenate([keyed, put])
    keys = np.concatenate([before[keyed], after[put]])
    comes = np.repeat([False, True], [len(keyed), len(put)])
    order = np.lexsort((comes, rounds[effects], keys))
    effects, keys, comes = effects[order], keys[order], comes[order]

    first = np.append(True, keys[1:] != keys[:-1]) if len(keys) else np.zeros(0, np.bool_)
    there = np.append(False, comes[:-1]) & ~first
    # the first effect on each key, and whether its row, or a later one, has left that key for another one
    starts = np.flatnonzero(first)
    owner = np.repeat(effects[starts], np.diff(np.append(starts, len(keys))))
    leaves = ~comes & (after[effects] != NO_KEY) & (after[effects] != keys)
    left = np.cumsum(leaves) - leaves
    left = left > np.repeat(left[starts], np.diff(np.append(starts, len(keys))))

    at = np.flatnonzero(~comes)  # one for each effect that has a key
    effect, row_there, is_first = effects[at], there[at], first[at]
    begin, has_row = begins[effect], after[effect] != NO_KEY
    previous = effects[at - 1]  # has no meaning where there is no row
    nothing = ~is_first & ~row_there

    parents = np.arange(number)
    parents[effect[row_there]] = previous[row_there]
    apart = nothing & begin & has_row & left[at]
    stays = nothing & ~apart
    parents[effect[stays]] = owner[at][stays]
    unclear, needless, keyless = (np.zeros(number, np.bool_) for _ in range(3))
    unclear[effect] = ~is_first & (row_there == begin)
    needless[effect] = nothing & begin & ~has_row
    keyless[effect] = apart
    while ((further := parents[parents]) != parents).any():
        parents = further
    return RowChains(parents, unclear, needless, keyless)
