"""An OPTIMIZE is recorded before it is begun, and never within a batch; a table has one row."""

from __future__ import annotations

import pytest

from pgbridge.bridge.catalog import catalog as catalog_module, maintenance
from pgbridge.bridge.catalog.catalog_rows import BatchIntent
from pgbridge.bridge.catalog.maintenance import MaintainedRow, OptimizeIntent
from pgbridge.protocol.lsn import Lsn


def test_the_last_row_of_each_table_is_kept(started):
    maintenance.put(started, "shop", "/lake/t1", MaintainedRow(1.5, 40))
    maintenance.put(started, "shop", "/lake/t1", MaintainedRow(1.5, 1, 12.5, None, "refused"))
    maintenance.put(started, "shop", "/lake/t2", MaintainedRow(2.5, 2))
    assert maintenance.rows(started, "shop") == {
        "/lake/t1": MaintainedRow(1.5, 1, 12.5, None, "refused"),
        "/lake/t2": MaintainedRow(2.5, 2),
    }
    assert maintenance.rows(started, "other") == {}


def test_an_optimize_stands_until_it_has_ended(started):
    intent = OptimizeIntent("/lake/t1", 7)
    assert maintenance.begin(started, "shop", intent)
    assert maintenance.standing(started, "shop") == intent
    maintenance.end(started, "shop")
    assert maintenance.standing(started, "shop") is None


@pytest.mark.parametrize("what", ["nothing", "flush", "reboot"])
def test_what_an_optimize_wrote_is_doubtful_after_a_flush_or_a_reboot(started, tmp_path, monkeypatch, what):
    maintenance.begin(started, "shop", OptimizeIntent("/lake/t1", 7))
    if what == "flush":
        maintenance.begin_flush(started, "shop")
    elif what == "reboot":
        (tmp_path / "boot_id").write_text("another\n")
        monkeypatch.setattr(catalog_module, "_BOOT_ID", tmp_path / "boot_id")
    standing = maintenance.standing(started, "shop")
    assert standing is not None
    assert standing.doubtful is (what != "nothing")


def test_no_optimize_begins_within_a_batch(started):
    started.begin_batch("shop", BatchIntent(Lsn(0), Lsn(100)))
    assert not maintenance.begin(started, "shop", OptimizeIntent("/lake/t1", 7))
    assert maintenance.standing(started, "shop") is None
