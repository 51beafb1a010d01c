"""Changes of a target are collected until the batch ends, in memory or on a stage."""

from __future__ import annotations

import pytest

from bridge.apply.batch.table_changes import Staged
from bridge.apply.effects.operations import DELETE
from bridge.errors import TargetError
from tests.bridge.apply.batch.collected import ArrowStage, changed, collector, columns, table


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
