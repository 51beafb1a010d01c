"""A batch is recorded as durable: the origin moves, and what it has planned counts only where targets follow it."""

from __future__ import annotations

from contextlib import closing

import pytest

from bridge.apply.batch.batch import Batch
from bridge.apply.record import finish_batch, skip_batch
from bridge.track.catalog import Catalog, catalog_path
from bridge.track.catalog_rows import BatchIntent, ColumnRow
from protocol.lsn import Lsn


@pytest.fixture
def catalog(tmp_path):
    with closing(Catalog(catalog_path(tmp_path))) as made:
        made.register("sub", enabled=True)
        made.create_origin("sub", Lsn(16), "inc", [])
        yield made


def batch():
    made = Batch(Lsn(16), Lsn(32), Lsn(24), 7, 1, 0, [])
    made.columns = {5: (ColumnRow(1, "id", 23, -1),)}
    return made


@pytest.mark.parametrize("planned", [False, True])
def test_the_origin_moves(catalog, planned):
    catalog.begin_batch("sub", BatchIntent(Lsn(16), Lsn(32)))
    catalog.set_skip_lsn("sub", Lsn(99))
    finish_batch(catalog, "sub", batch(), Lsn(99), planned=planned)
    assert catalog.remote_lsn("sub") == Lsn(32)
    assert catalog.batch("sub") is None
    assert catalog.skip_lsn("sub") is None
    assert bool(catalog.columns("sub")) is planned


def test_a_skipped_transaction_is_kept(catalog, tmp_path):
    path = skip_batch(catalog, "sub", batch(), Lsn(24), tmp_path / "skipped")
    assert path.is_dir()
    assert catalog.remote_lsn("sub") == Lsn(32)
    assert catalog.columns("sub") == {}
