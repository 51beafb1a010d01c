"""The condition by which Spark, Delta and Parquet look for keys has each key, in lists that are short enough."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from bridge.apply.delta.key_condition import LIST_VALUES, PUSHED_LISTS, key_condition


def test_few_values_are_one_list():
    assert key_condition("`k`", pa.chunked_array([["b", "a"], ["it's"]])) == (
        "`k` >= 'a' AND `k` <= 'it\\'s' AND `k` IN ('a', 'b', 'it\\'s')"
    )
    assert key_condition("k", pa.chunked_array([[7]])) == "k >= 7L AND k <= 7L AND k IN (7L)"


@pytest.mark.parametrize("number", [LIST_VALUES, LIST_VALUES + 1, 7 * LIST_VALUES, 5_000])
def test_many_values_are_a_tree_of_short_lists_after_one_of_all(number):
    values = [f"{i * 7919 % number:05}" for i in range(number)]
    condition = key_condition("k", pa.chunked_array([values]))
    assert condition is not None
    lists = [listed.split(", ") for listed in re.findall(r"k IN \(([^)]*)\)", condition)]
    assert lists[0] == [f"'{value}'" for value in sorted(values)]
    short = lists[1:]
    assert [one for listed in short for one in listed] == (lists[0] if number > LIST_VALUES else [])
    assert all(len(listed) <= LIST_VALUES == int(*PUSHED_LISTS.values()) for listed in short)
    depth = deepest = 0
    for character in condition:
        depth += {"(": 1, ")": -1}.get(character, 0)
        deepest = max(deepest, depth)
    assert depth == 0
    assert deepest <= len(short).bit_length() + 2


def test_a_type_or_a_value_without_a_literal_has_none():
    assert key_condition("k", pa.chunked_array([[1.5]])) is None
    assert key_condition("k", pa.chunked_array([[-(1 << 63)]])) is None
