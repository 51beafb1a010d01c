"""Only published columns are left of changes, and their positions in the stream stay."""

from __future__ import annotations

from dataclasses import replace

from bridge.apply.delta.published_changes import published_changes
from bridge.changes.schema import POSITION_NAMES
from tests.bridge.apply.delta.test_change_frame import ROWS, changes


def test_columns_that_only_filters_look_at_go(spark):
    made = replace(changes("/t", *ROWS), published=frozenset({"id"}))
    frame, columns, key = published_changes(spark, made)
    assert [column.name for column in columns] == ["id"]
    assert key == (0,)
    assert frame.columns == ["seq", "op", "old", *POSITION_NAMES, "new_0", "old_0"]
    assert frame.count() == len(ROWS)


def test_all_of_them(spark):
    frame, columns, _ = published_changes(spark, changes("/t", *ROWS))
    assert len(columns) == 2
    assert "unchanged_1" in frame.columns
