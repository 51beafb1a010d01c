"""A batch is recorded as durable: the origin moves, and what it has planned counts only where targets follow it."""

from __future__ import annotations

from contextlib import closing

import pytest

from pgbridge.bridge.apply.record import finish_batch, hold_batch, skip_batch
from pgbridge.bridge.batch.batch import Batch
from pgbridge.bridge.catalog import commits
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, ColumnRow, RelRow
from pgbridge.bridge.skipped.kept_transaction import read
from pgbridge.bridge.track.spool import SpoolFile
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Transaction
from tests.bridge.apply.made_worker import TARGET, changes_of


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
    finish_batch(catalog, "sub", [batch()], Lsn(99), planned=planned)
    assert catalog.remote_lsn("sub") == Lsn(32)
    assert catalog.batch("sub") is None
    assert catalog.skip_lsn("sub") is None
    assert bool(catalog.columns("sub")) is planned


def test_the_origin_passes_held_batches_with_the_last_one(catalog, tmp_path):
    """They are recorded as one; what they have spooled is kept until then."""
    kept = RelRow("public", "kept", "s", Lsn(0), "/kept", position=Lsn(48))
    catalog.put_rel("sub", kept)
    catalog.put_rel("sub", RelRow("public", "t", "r", Lsn(0), TARGET.path))
    held, last = batch(), Batch(Lsn(32), Lsn(48), Lsn(40), 8, 2, 1, [changes_of([1])])
    (tmp_path / "7.1").write_text("")
    held.spools = [SpoolFile(tmp_path / "7.1", rows=1)]
    held.tables, held.items, held.commit_time_us = [changes_of([1])], [Transaction(7)], 5
    catalog.begin_batch("sub", BatchIntent(Lsn(16), Lsn(32)))
    without = hold_batch(catalog, "sub", held, None)
    assert (catalog.remote_lsn("sub"), catalog.batch("sub")) == (16, None)
    assert {rel.name: rel.position for rel in catalog.rels("sub")} == {"kept": 48, "t": 32}
    assert catalog.columns("sub") == held.columns
    assert (without.items, [changes.commits for changes in without.tables]) == ([], [False])
    assert held.spools[0].path.exists()
    finish_batch(catalog, "sub", [without, last], None, planned=True, kept=[kept])
    assert catalog.remote_lsn("sub") == 48
    assert {rel.name: rel.position for rel in catalog.rels("sub")} == {"kept": 48, "t": 48}
    assert not held.spools[0].path.exists()
    (record,) = (record for record in commits.pending(catalog, "sub") if record.kind == "batch")
    assert (record.start_lsn, record.end_lsn, record.transactions) == (16, 48, 3)
    assert [name for _, name, _ in record.tables] == ["kept", "t"]


def test_a_skipped_transaction_is_kept(catalog, tmp_path):
    one = batch()
    one.items = [Transaction(7, Lsn(24), 0, Lsn(32))]
    path = skip_batch(catalog, "sub", one, Lsn(24), tmp_path / "skipped")
    assert read(path).transaction.commit_lsn == Lsn(24)
    assert catalog.remote_lsn("sub") == Lsn(32)
    assert catalog.columns("sub") == {}
