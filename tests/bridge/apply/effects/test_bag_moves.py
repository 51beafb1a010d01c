"""Rows of a bag are followed through the changes: none is lost, none comes twice, and counts are a plain model's."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bridge.apply.delta.merge_bag import settle
from bridge.apply.effects.bag_moves import trace
from bridge.apply.effects.operations import DELETE, INSERT, UPDATE


def turns(*changes: tuple[int, int, int]) -> pa.Table:
    """Changes (op, old row, new row) in their halves."""
    found: dict[str, list[int]] = {"ord": [], "op": [], "id": []}
    for seq, (op, old, new) in enumerate(changes):
        for half, row in ((0, old), (1, new)):
            if (op, half) not in {(INSERT, 0), (DELETE, 1)}:
                found["ord"].append(2 * seq + half)
                found["op"].append(op)
                found["id"].append(row)
    return pa.table(found)


def test_a_row_that_becomes_another_is_followed():
    traced = trace({1: 2, 2: 0, 3: 0}, turns((UPDATE, 1, 2), (UPDATE, 2, 3), (INSERT, 0, 2), (DELETE, 1, 0)))
    assert traced.stay == {1: 0, 2: 0, 3: 0}
    assert traced.left == {(1, 2): 3, (1, 1): None}
    assert (traced.born, traced.missing) == ({2: 1}, {})


def test_an_update_of_a_missing_row_makes_none():
    traced = trace({1: 0, 2: 0}, turns((UPDATE, 1, 2), (UPDATE, 2, 1)))
    assert (traced.left, traced.born) == ({}, {})
    assert traced.missing == {"update_missing": {1: 1, 2: 1}}


@given(
    before=st.dictionaries(st.integers(0, 4), st.integers(0, 3), min_size=5, max_size=5),
    changes=st.lists(st.tuples(st.sampled_from([INSERT, UPDATE, DELETE]), st.integers(0, 4), st.integers(0, 4))),
)
def test_every_copy_is_somewhere_once_and_counts_are_those_without_following(before, changes):
    made = turns(*changes)
    traced = trace(before, made)
    copies = {(row, copy) for row, count in before.items() for copy in range(1, count + 1)}
    staying = {(row, copy) for row, count in traced.stay.items() for copy in range(1, count + 1)}
    assert staying | traced.left.keys() == copies
    assert not staying & traced.left.keys()
    after = Counter(row for row, _ in staying) + Counter(row for row in traced.left.values() if row is not None)
    settled, missing = settle(before, made)
    assert after + traced.born == Counter({row: count for row, count in settled.items() if count})
    assert traced.missing == missing
