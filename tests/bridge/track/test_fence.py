"""The end of a batch that was not accepted."""

from __future__ import annotations

from contextlib import closing

from bridge.track.catalog import Catalog, catalog_path
from bridge.track.catalog_rows import BatchIntent
from bridge.track.fence import fence_lsn, give_up_batch
from protocol.lsn import INVALID, Lsn


def test_it_outlives_the_intent_and_never_goes_back(tmp_path):
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("sub", enabled=True)
        assert fence_lsn(catalog, "sub") == INVALID
        catalog.create_origin("sub", Lsn(10), "inc", [])
        assert give_up_batch(catalog, "sub") is None
        for end_lsn in (40, 30):
            catalog.begin_batch("sub", BatchIntent(Lsn(10), Lsn(end_lsn)))
            assert give_up_batch(catalog, "sub") == Lsn(end_lsn)
            assert catalog.batch("sub") is None
        assert fence_lsn(catalog, "sub") == Lsn(40)
        row = catalog.subscription("sub")
        assert row is not None
        assert row.epoch == 0, "another application id would let Delta take the batch twice"
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        assert fence_lsn(catalog, "sub") == Lsn(40)
