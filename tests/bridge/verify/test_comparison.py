"""Which buckets and rows differ, by their hashes."""

from __future__ import annotations

from collections import Counter

from bridge.verify.comparison import Difference, differences, differing


def test_buckets_that_differ():
    source = {1: (2, 30), 2: (1, 5), 3: (1, 7)}
    assert differing(source, dict(source)) == []
    assert differing(source, {1: (2, 30), 2: (1, 6), 4: (1, 1)}) == [2, 3, 4]
    assert differing({}, {9: (1, 0)}) == [9]


def test_rows_with_keys():
    source = Counter({("a", 1): 1, ("b", 2): 1, ("c", 3): 1})
    target = Counter({("a", 1): 1, ("b", 9): 1, ("d", 4): 1})
    assert differences(source, target, keyed=True) == [
        Difference("changed", "b"),
        Difference("missing", "c"),
        Difference("extra", "d"),
    ]
    assert differences(source, source, keyed=True) == []


def test_a_second_row_with_the_same_key_is_extra():
    source, target = Counter({("a", 1): 1}), Counter({("a", 1): 2})
    assert differences(source, target, keyed=True) == [Difference("extra", "a")]
    assert differences(source, Counter({("a", 1): 1, ("a", 2): 1}), keyed=True) == [Difference("extra", "a")]


def test_rows_without_keys_are_counted():
    source, target = Counter({("a", 1): 3}), Counter({("a", 1): 1, ("b", 2): 2})
    assert differences(source, target, keyed=False) == [
        Difference("missing", "a", 2),
        Difference("extra", "b", 2),
    ]
