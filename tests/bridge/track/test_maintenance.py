"""An OPTIMIZE is recorded before it is begun, and never within a batch; a table has one row."""

from __future__ import annotations

from bridge.track import maintenance
from bridge.track.catalog_rows import BatchIntent
from bridge.track.maintenance import MaintainedRow, OptimizeIntent
from protocol.lsn import Lsn


def test_the_last_row_of_each_table_is_kept(started):
    maintenance.put(started, "shop", "/lake/t1", MaintainedRow(40))
    maintenance.put(started, "shop", "/lake/t1", MaintainedRow(1, 12.5, None, "refused"))
    maintenance.put(started, "shop", "/lake/t2", MaintainedRow(2))
    assert maintenance.rows(started, "shop") == {
        "/lake/t1": MaintainedRow(1, 12.5, None, "refused"),
        "/lake/t2": MaintainedRow(2),
    }
    assert maintenance.rows(started, "other") == {}


def test_an_optimize_stands_until_it_has_ended(started):
    intent = OptimizeIntent("/lake/t1", 7)
    assert maintenance.begin(started, "shop", intent)
    assert maintenance.standing(started, "shop") == intent
    maintenance.end(started, "shop")
    assert maintenance.standing(started, "shop") is None


def test_no_optimize_begins_within_a_batch(started):
    started.begin_batch("shop", BatchIntent(Lsn(0), Lsn(100)))
    assert not maintenance.begin(started, "shop", OptimizeIntent("/lake/t1", 7))
    assert maintenance.standing(started, "shop") is None
