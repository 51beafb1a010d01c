"""The names that the catalog's rows give to Delta and to people."""

from __future__ import annotations

from dataclasses import replace

from pgbridge.bridge.catalog.catalog_rows import RelRow, SubscriptionRow
from pgbridge.protocol.lsn import Lsn

ROW = SubscriptionRow("shop", True, "abc", 0, "s", "ready", "7123", None, "streaming", Lsn(0), 0, 0)


def test_an_undone_batch_has_an_application_id_of_its_own():
    """Copies keep theirs: the undo of a batch does not concern them."""
    later = replace(ROW, epoch=1)
    assert (ROW.batch_app_id, later.batch_app_id) == ("pgbridge/7123/shop/abc/0", "pgbridge/7123/shop/abc/1")
    assert later.txn_app_id == ROW.txn_app_id


def test_a_tables_name():
    assert RelRow("a b", "t", "r", Lsn(0), "/p").qualified_name == "a b.t"
