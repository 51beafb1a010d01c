"""Changes of a target are collected until the batch ends, in memory or on a stage."""

from __future__ import annotations

import pytest

from bridge.apply.batch.table_changes import Staged
from bridge.apply.effects.operations import DELETE, INSERT
from bridge.errors import TargetError
from tests.bridge.apply.batch.collected import ArrowStage, changed, collector, columns, rows_of, table


def test_nothing():
    assert collector(columns("a")).changes() == []


def test_truncate_drops_the_changes_before_it():
    made = collector(columns("a"), table(0, new_0=1))
    made.truncate()
    (changes,) = made.changes()
    assert (changes.truncated, changes.empty, changes.inserts_only) == (True, True, True)


def test_staging_leaves_nothing_in_memory_and_puts_like_with_like():
    stage = ArrowStage()
    made = collector(columns("a"), *(table(n, new_0=n) for n in range(5)))
    assert made.memory_bytes > 0
    made.stage(stage)
    assert made.memory_bytes == 0
    made.add(table(5, new_0=5))
    (changes,) = made.changes(stage)
    assert isinstance(changes.changes, Staged)
    assert stage.put_rows == [5, 1]
    assert changes.changes.frame["new_0"].to_pylist() == list(range(6))


def test_partitions_with_different_identities_must_not_come_by_turns():
    made = collector(columns("a", "b"))
    made.add(changed(5, DELETE, new_0=None, old_0=1))
    made.key = (1,)
    with pytest.raises(TargetError, match='partitions of table "public.t" have different replica identities'):
        made.add(changed(3, DELETE, new_1=None, old_1=1))


def test_changes_that_the_last_part_takes_must_not_begin_before_an_earlier_part_ends():
    """A row moved from z to x (DELETE 60, INSERT 61) would be deleted after its INSERT, by y's commit."""
    made = collector(columns("a", "b"))
    made.key = (0, 1)
    made.add(changed(50, DELETE, new_0=None, new_1=None, old_0=1, old_1=1))
    made.add(changed(61, INSERT, new_0=7, new_1=1))  # x; the first part ends here
    made.key = (0,)
    made.add(changed(101, DELETE, new_0=None, new_1=None, old_0=2))  # y
    with pytest.raises(TargetError, match="different replica identities, and their changes come by turns"):
        made.add(changed(60, DELETE, new_0=None, new_1=None, old_0=7))  # z
    made.add(changed(102, DELETE, new_0=None, new_1=None, old_0=8))
    assert [len(rows_of(part)) for part in made.changes()] == [2, 2]
