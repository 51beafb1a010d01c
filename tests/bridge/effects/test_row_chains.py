"""Which row each effect is on. `test_net_effect` has the same in random histories."""

from __future__ import annotations

import numpy as np

from bridge.effects.row_chains import NO_KEY, row_chains


def chains(*effects):
    """Effects as (round, key before, key after, whether it begins): groups, and the effects with each mark."""
    rounds, *keys, begins = zip(*effects, strict=True)
    before, after = (np.array([NO_KEY if key is None else key for key in some]) for some in keys)
    found = row_chains(before, after, np.array(begins), np.array(rounds))
    marks = (np.flatnonzero(mark).tolist() for mark in (found.unclear, found.needless, found.keyless))
    return found.groups.tolist(), *marks


def insert(at, key):
    return at, key, key, True


def update(at, key):
    return at, key, key, False


def delete(at, key):
    return at, key, None, False


def move(at, old, new):
    """The new key is taken, and the row moves to it."""
    return (at, new, None, True), (at, old, new, False)


def test_a_row_is_followed_from_key_to_key():
    assert chains(*move(0, 1, 2), update(1, 2), *move(2, 2, 3), delete(3, 3)) == ([0, 1, 1, 3, 1, 1], [], [], [])


def test_a_key_that_was_freed_need_not_be_looked_at_again():
    assert chains(delete(0, 2), *move(1, 1, 2)) == ([0, 0, 2], [], [1], [])


def test_a_new_row_replaces_the_one_that_was_deleted():
    assert chains(delete(0, 1), insert(1, 1), update(2, 1)) == ([0, 0, 0], [], [], [])


def test_a_new_row_has_no_key_where_a_row_has_moved_away():
    assert chains(*move(0, 1, 2), insert(1, 1), update(2, 1)) == ([0, 1, 2, 2], [], [], [2])


def test_rows_that_change_places_in_one_round():
    """As a fold has it: both leave before either comes."""
    assert chains((0, 1, 2, False), (0, 2, 1, False), update(1, 1), delete(1, 2)) == ([0, 1, 1, 0], [], [], [])


def test_what_does_not_follow():
    assert chains(insert(0, 1), insert(1, 1))[1] == [1]
    assert chains(delete(0, 1), update(1, 1))[1] == [1]
    assert chains(update(0, 2), *move(1, 1, 2))[1] == [1]


def test_no_effects():
    none = np.zeros(0, np.int64)
    assert len(row_chains(none, none, none.astype(np.bool_), none).groups) == 0
