"""Conflict counters add up; copies are those recorded last."""

from __future__ import annotations

from bridge.track import stats
from bridge.track.catalog_rows import CopyRow


def test_copies_are_those_that_were_put_last(started):
    one = CopyRow("public", "t1", 1, 2, 3, None, None)
    two = CopyRow("public", "t2", 10, 20, 30, 1.5, 2.5)
    stats.put_copies(started, "shop", [two, one])
    assert stats.copies(started, "shop") == [one, two]
    assert stats.copies(started, "other") == []
    stats.put_copies(started, "shop", [two])
    assert stats.copies(started, "shop") == [two]
    assert two.qualified_name == "public.t2"


def test_conflicts_are_counted_by_name(started):
    stats.count_conflicts(started, "shop", {"update_missing": 1, "delete_missing": 2})
    stats.count_conflicts(started, "shop", {"delete_missing": 3})
    assert stats.conflicts(started, "shop") == {"delete_missing": 5, "update_missing": 1}
    assert stats.conflicts(started, "other") == {}
