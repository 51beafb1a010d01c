"""Where each copy of a bag's rows goes, change by change.

A bag is a table without a key: its rows are told apart by their values only, and equal rows are copies of each other.
A change takes any of the equal copies, as PostgreSQL's subscriber does. Only targets with columns of their own need
these moves: the values in such a column stay with their copy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbridge.bridge.effects.conflicts import DELETE_MISSING, UPDATE_MISSING
from pgbridge.bridge.effects.events import UPDATE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class BagMoves:
    """Where copies are after the changes. A row is a number; a copy is (row, number from 1).

    Attributes:
        staying: How many copies of each row stay as they are: those with the lowest numbers.
        moved: The row that each of the target's other copies has become; None if it was deleted.
        inserted: How many copies of each row come from INSERTs.
        missing: How many changes of each row did not find it, by the conflict's name.
    """

    staying: dict[int, int]
    moved: dict[tuple[int, int], int | None]
    inserted: Counter[int]
    missing: dict[str, Counter[int]]


def bag_moves(copies: Mapping[int, int], halves: pa.Table) -> BagMoves:
    """Follow the copies through `ord`, `op` and `id` (the row's number) of `merge_bag.halves_of`, in order of `ord`."""
    staying = dict(copies)
    moved: dict[tuple[int, int], int | None] = {}
    arrived: dict[int, list[tuple[int, int] | None]] = {}  # by row; None: a copy from an INSERT
    missing: dict[str, Counter[int]] = {}
    taken: tuple[int, int] | None = None
    void = -1
    for half, op, row in zip(*(halves[name].to_pylist() for name in ("ord", "op", "id")), strict=True):
        if half % 2:  # the new row
            if half != void:
                arrived.setdefault(row, []).append(taken if op == UPDATE else None)
        elif arrived.get(row):
            taken = arrived[row].pop()
        elif staying[row]:
            taken = row, staying[row]
            moved[taken] = None
            staying[row] -= 1
        else:
            missing.setdefault(UPDATE_MISSING if op == UPDATE else DELETE_MISSING, Counter())[row] += 1
            void = half + 1
    moved.update((copy, row) for row, arrivals in arrived.items() for copy in arrivals if copy is not None)
    inserted = Counter({row: arrivals.count(None) for row, arrivals in arrived.items() if None in arrivals})
    return BagMoves(staying, moved, inserted, missing)
