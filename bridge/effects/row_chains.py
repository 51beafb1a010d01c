"""Finds the row that each effect is on, where rows move from key to key.

A row is followed from the key that it had, by the effects that moved it. An effect is in the group of

- the target's row under its key, if that key is touched for the first time;
- the row that was last put to its key, if that one is still there;
- the key itself, if it begins a row where no row is any more: the effect on the key then replaces what was there. If
  the row that was there first has moved on, and is an effect by itself, the new row is another one, of no key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

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
