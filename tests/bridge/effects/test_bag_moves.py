"""Every copy of a bag's rows is followed through the changes, and the counts agree with a plain model."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given, strategies as st

from pgbridge.bridge.effects.bag_moves import bag_moves
from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.lake.commit.merge_bag import settle


def halves(*changes: tuple[int, int, int]) -> pa.Table:
    """Changes (op, old row, new row) in their halves."""
    found: dict[str, list[int]] = {"ord": [], "op": [], "id": []}
    for seq, (op, old, new) in enumerate(changes):
        for half, row in ((0, old), (1, new)):
            if (op, half) not in {(INSERT, 0), (DELETE, 1)}:
                found["ord"].append(2 * seq + half)
                found["op"].append(op)
                found["id"].append(row)
    return pa.table(found)


def test_an_updated_copy_is_followed():
    moves = bag_moves({1: 2, 2: 0, 3: 0}, halves((UPDATE, 1, 2), (UPDATE, 2, 3), (INSERT, 0, 2), (DELETE, 1, 0)))
    assert moves.staying == {1: 0, 2: 0, 3: 0}
    assert moves.moved == {(1, 2): 3, (1, 1): None}
    assert (moves.inserted, moves.missing) == ({2: 1}, {})


def test_an_update_of_a_missing_row_adds_no_row():
    moves = bag_moves({1: 0, 2: 0}, halves((UPDATE, 1, 2), (UPDATE, 2, 1)))
    assert (moves.moved, moves.inserted) == ({}, {})
    assert moves.missing == {"update_missing": {1: 1, 2: 1}}


@given(
    before=st.dictionaries(st.integers(0, 4), st.integers(0, 3), min_size=5, max_size=5),
    changes=st.lists(st.tuples(st.sampled_from([INSERT, UPDATE, DELETE]), st.integers(0, 4), st.integers(0, 4))),
)
def test_every_copy_ends_in_one_place_and_counts_are_those_of_settle(before, changes):
    made = halves(*changes)
    moves = bag_moves(before, made)
    copies = {(row, copy) for row, count in before.items() for copy in range(1, count + 1)}
    staying = {(row, copy) for row, count in moves.staying.items() for copy in range(1, count + 1)}
    assert staying | moves.moved.keys() == copies
    assert not staying & moves.moved.keys()
    after = Counter(row for row, _ in staying) + Counter(row for row in moves.moved.values() if row is not None)
    settled, missing = settle(before, made)
    assert after + moves.inserted == Counter({row: count for row, count in settled.items() if count})
    assert moves.missing == missing
