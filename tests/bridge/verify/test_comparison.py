"""Which buckets and rows differ, by their hashes."""

from __future__ import annotations

from collections import Counter

import pytest

from pgbridge.bridge.verify.comparison import Buckets, Difference, differences, differing, explained, lone_keys


def test_buckets_that_differ():
    source: Buckets = {1: (2, 30), 2: (1, 5), 3: (1, 7)}
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


def bucket_of(hashed):
    return hashed // 100


@pytest.mark.parametrize(
    ("source", "target", "keys", "is_all"),
    [
        ([("a", 7, 101), ("b", 8, 205)], [("b", 8, 205)], [(7,)], True),
        ([("b", 8, 205)], [("a", -7, 101), ("b", 8, 205)], [(-7,)], True),
        ([("a", 7, 101)], [("a", 7, 309)], [(7,)], True),  # changed
        ([("a", 7, 101), ("b", 8, 401)], [("a", 7, 309)], [(7,), (8,)], True),
        ([("a", 7, 101)], [("a", 7, 102)], [], False),  # in one bucket
        ([("a", 7, 101), ("b", 8, 102)], [], [], False),
        ([("a", 7, 101), ("b", 8, 102), ("c", 9, 103)], [("d", 1, 104), ("e", 2, 105)], [(21,)], False),
        ([("a", 2**63 - 1, 101), ("b", 2**63 - 1, 301)], [], [(2**63 - 1,)], True),
        ([("a", -(2**63), 101)], [("b", 5, 301)], [(-(2**63),), (5,)], True),
    ],
)
def test_lone_keys(source, target, keys, is_all):
    """Rows are given as the hash of the key, the key, and the hash of the row."""

    def buckets(rows):
        found: Buckets = {}
        for _, key, hashed in rows:
            count, total, number = found.get(bucket_of(hashed), (0, 0, 0))
            found[bucket_of(hashed)] = count + 1, total + hashed, (number + key) % 2**64
        return found

    def with_keys(rows):
        return Counter((key_hash, hashed) for key_hash, key, hashed in rows if (key,) in keys)

    one, other = buckets(source), buckets(target)
    differ = differing(one, other)
    assert lone_keys(differ, one, other) == keys
    assert explained(differ, one, other, with_keys(source), with_keys(target), bucket_of) is is_all


def test_rows_that_are_no_reason():
    """Such as a row that the source has by now, in a bucket without a difference."""
    one: Buckets = {1: (1, 101)}
    assert not explained([1], one, {}, Counter({("a", 101): 1, ("b", 205): 1}), Counter(), bucket_of)
    assert explained([1], one, {}, Counter({("a", 101): 1, ("b", 205): 1}), Counter({("b", 205): 1}), bucket_of)
