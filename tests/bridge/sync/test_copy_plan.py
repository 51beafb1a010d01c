"""The COPY statement of a range, with the table's row filters and column list."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from bridge.publication.published_table import PublishedColumn, PublishedTable
from bridge.sync.copy_plan import RANGE_BYTES, BlockRange, block_ranges, copy_select, copy_statement
from protocol.values.pg_type import BUILTIN

BLOCK = 8192
PER_RANGE = RANGE_BYTES // BLOCK


def within(found: BlockRange, blocks: int) -> int:
    """How many of a relation's blocks are in a range."""
    return max(0, min(blocks, blocks if found.end is None else found.end) - found.first)


@pytest.mark.parametrize(
    ("found", "conditions"),
    [
        (BlockRange(), []),
        (BlockRange(0, 7), ["ctid < '(7,0)'::tid"]),
        (BlockRange(7, 9), ["ctid >= '(7,0)'::tid", "ctid < '(9,0)'::tid"]),
        (BlockRange(9), ["ctid >= '(9,0)'::tid"]),
    ],
)
def test_conditions(found, conditions):
    assert found.conditions == conditions


@pytest.mark.parametrize("blocks", [[], [0], [1], [PER_RANGE], [10] * (2 * PER_RANGE)])
def test_what_is_small_is_read_at_once(blocks):
    assert block_ranges(blocks, BLOCK) == [BlockRange()]


def test_a_large_table():
    assert block_ranges([2 * PER_RANGE + 2], BLOCK) == [
        BlockRange(0, (2 * PER_RANGE + 2) // 3),
        BlockRange((2 * PER_RANGE + 2) // 3, (4 * PER_RANGE + 4) // 3),
        BlockRange((4 * PER_RANGE + 4) // 3, None),
    ]


def test_partitions_of_unlike_sizes_divide_evenly():
    blocks = [PER_RANGE // 4] * 4 + [4 * PER_RANGE]
    sizes = [sum(within(found, one) for one in blocks) for found in block_ranges(blocks, BLOCK)]
    assert len(sizes) == 5
    assert max(sizes) - min(sizes) <= 2 * len(blocks)


@given(st.lists(st.integers(0, 40 * PER_RANGE), max_size=12))
def test_every_block_is_in_one_range(blocks):
    found = block_ranges(blocks, BLOCK)
    assert (found[0].first, found[-1].end) == (0, None)
    assert all(one.end == other.first and one.first < one.end for one, other in pairwise(found))
    assert [sum(within(one, count) for one in found) for count in blocks] == blocks
    sizes = [sum(within(one, count) for count in blocks) for one in found]
    if len(found) > 1:
        assert max(sizes) <= 2 * PER_RANGE + len(blocks)


A = PublishedColumn("a", 23, -1, in_primary_key=True, in_replica_identity_index=False)
POINT = PublishedColumn('p"q', 600, -1, in_primary_key=False, in_replica_identity_index=False)


def table(relkind="r", columns=(A,), row_filters=()):
    return PublishedTable(1, "public", "My t", relkind, "d", tuple(columns), tuple(row_filters))


@pytest.mark.parametrize(
    ("published", "blocks", "statement"),
    [
        (table(), BlockRange(), 'SELECT "a" FROM ONLY "public"."My t"'),
        (table("p"), BlockRange(), 'SELECT "a" FROM "public"."My t"'),
        (
            table(row_filters=["(a > 1)", "(a < 0)"]),
            BlockRange(),
            'SELECT "a" FROM ONLY "public"."My t" WHERE ((a > 1)) OR ((a < 0))',
        ),
        (
            table(row_filters=["(a > 1)", "(a < 0)"]),
            BlockRange(7, 9),
            (
                """SELECT "a" FROM ONLY "public"."My t" WHERE (((a > 1)) OR ((a < 0))) """
                """AND ctid >= '(7,0)'::tid AND ctid < '(9,0)'::tid"""
            ),
        ),
    ],
)
def test_copy_statement(published, blocks, statement):
    found = copy_statement(copy_select(published, BUILTIN), published.row_filters, blocks)
    assert found == f"COPY ({statement}) TO STDOUT (FORMAT binary)"


def test_types_without_a_binary_reader_are_copied_as_text():
    assert 'pg_catalog.concat("p""q")' in copy_select(table(columns=[POINT]), BUILTIN)
