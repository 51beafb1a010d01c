"""Which row of a bag became which, change by change: for columns that only the target has, which stay with their row.

A row of a bag is known by its values alone; of equal rows a change takes any, as PostgreSQL's subscriber does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.apply.effects.conflicts import DELETE_MISSING, UPDATE_MISSING
from bridge.apply.effects.operations import UPDATE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Traced:
    """Where copies of rows are after the changes; rows are numbers.

    Attributes:
        stay: Copies that are where they were, by row: those from 1 to this.
        left: The other copies that the target had, by (row, copy): the row that they are now; None for none.
        born: Copies that came, by the row that they are now.
        missing: Of the changes that found no row, by the conflict's name, how many of each row.
    """

    stay: dict[int, int]
    left: dict[tuple[int, int], int | None]
    born: Counter[int]
    missing: dict[str, Counter[int]]


def trace(before: Mapping[int, int], turns: pa.Table) -> Traced:
    """Make changes in their turn.

    Args:
        before: Copies of each row, by the row's number.
        turns: `ord`, `op` and `id` (the row's number) of `bag.halves_of`, by `ord`.
    """
    stay = dict(before)
    left: dict[tuple[int, int], int | None] = {}
    came: dict[int, list[tuple[int, int] | None]] = {}  # None: one that was not there before
    missing: dict[str, Counter[int]] = {}
    taken: tuple[int, int] | None = None
    void = -1
    for turn, op, row in zip(*(turns[name].to_pylist() for name in ("ord", "op", "id")), strict=True):
        if turn % 2:
            if turn != void:
                came.setdefault(row, []).append(taken if op == UPDATE else None)
        elif came.get(row):
            taken = came[row].pop()
        elif stay[row]:
            taken = row, stay[row]
            left[taken] = None
            stay[row] -= 1
        else:
            missing.setdefault(UPDATE_MISSING if op == UPDATE else DELETE_MISSING, Counter())[row] += 1
            void = turn + 1
    left.update((copy, row) for row, copies in came.items() for copy in copies if copy is not None)
    born = Counter({row: copies.count(None) for row, copies in came.items() if None in copies})
    return Traced(stay, left, born, missing)
