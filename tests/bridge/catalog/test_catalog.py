"""A subscription's row and its errors: what is set is read, and never mixed up with another subscription's."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from pgbridge.bridge.catalog import catalog as catalog_module
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, ErrorRow, RelRow, SubscriptionRow
from pgbridge.protocol.lsn import Lsn
from tests.bridge.track.made_catalog import everything


def test_what_is_not_there(catalog):
    assert everything(catalog, "other") == (None, None, None, [], None)


def test_new_subscription(catalog):
    assert catalog.subscription("shop") == SubscriptionRow(
        name="shop",
        enabled=True,
        incarnation=None,
        epoch=0,
        slot_name=None,
        slot_state=None,
        system_identifier=None,
        skip_lsn=None,
        state="stopped",
        received_lsn=Lsn(0),
        apply_error_count=0,
        sync_error_count=0,
    )
    assert everything(catalog)[1:] == (None, None, [], None)


@pytest.mark.parametrize("configured", [True, False])
def test_disable_and_enable_outlast_restarts(catalog, configured):
    """A command holds until the file changes, a change of the file until the next command."""

    def restart(*, enabled: bool) -> bool:
        catalog.register("other", enabled=enabled)
        return bool(catalog.subscription("other").enabled)

    assert restart(enabled=configured) is configured
    catalog.set_enabled("other", enabled=not configured)
    assert restart(enabled=configured) is not configured
    catalog.set_enabled("other", enabled=configured)
    assert restart(enabled=not configured) is not configured
    assert restart(enabled=not configured) is not configured
    assert restart(enabled=configured) is configured


def test_register_keeps_everything_else(started):
    started.set_state("shop", "streaming", received_lsn=Lsn(0x500))
    before = everything(started)
    started.register("shop", enabled=True)
    assert everything(started) == before


def test_slot(catalog):
    for state in ("creating", "ready"):
        catalog.set_slot("shop", slot_name="shop_1", slot_state=state, system_identifier="7123")
        row = catalog.subscription("shop")
        assert (row.slot_name, row.slot_state, row.system_identifier) == ("shop_1", state, "7123")


def test_state_and_received_lsn(catalog):
    """The LSN is kept where none is given. It goes back with a stream of a server that has lost what came after it."""
    for lsn, kept in [(0x500, 0x500), (None, 0x500), (0x400, 0x400), (0x600, 0x600)]:
        catalog.set_state("shop", f"at {lsn}", received_lsn=None if lsn is None else Lsn(lsn))
        row = catalog.subscription("shop")
        assert (row.state, row.received_lsn) == (f"at {lsn}", kept)
        assert isinstance(row.received_lsn, Lsn)


def test_subscriptions_are_apart(started):
    """Nothing that is done to one is seen in another."""
    started.register("other", enabled=True)
    started.create_origin("other", Lsn(0x900), "def", [RelRow("public", "t1", "r", Lsn(1), "/lake2/public/t1")])
    started.begin_batch("other", BatchIntent(Lsn(0x900), Lsn(0x950)))
    started.record_error("other", "no", counter="apply", finish_lsn=Lsn(0x940))
    other = everything(started, "other")
    started.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
    started.finish_batch("shop", Lsn(0x250))
    started.advance_origin("shop", Lsn(0x300))
    started.set_enabled("shop", enabled=False)
    started.set_state("shop", "streaming", received_lsn=Lsn(0x1000))
    started.set_slot("shop", slot_name="s", slot_state="ready", system_identifier="1")
    started.record_error("shop", "no", counter="sync")
    started.put_rel("shop", RelRow("public", "t1", "d", Lsn(2), "/lake/public/t1"))
    assert everything(started, "other") == other


def test_errors(catalog):
    """The last one with all it carries; each counted where it belongs, or nowhere."""
    before_s = time.time()
    catalog.record_error("shop", "first", counter="apply", finish_lsn=Lsn(0x140), relation="public.t1")
    first = catalog.last_error("shop")
    assert first == ErrorRow("first", Lsn(0x140), "public.t1", first.time_s)
    assert isinstance(first.finish_lsn, Lsn)
    assert before_s <= first.time_s <= time.time()
    catalog.record_error("shop", "second\nHINT:  два", counter="sync")
    catalog.record_error("shop", "third", counter=None)
    catalog.record_error("shop", "fourth", counter="sync")
    last = catalog.last_error("shop")
    assert (last.message, last.finish_lsn, last.relation) == ("fourth", None, None)
    row = catalog.subscription("shop")
    assert (row.apply_error_count, row.sync_error_count) == (1, 2)


def test_its_version_is_another_one_after_each_change(tmp_path, monkeypatch):
    """Of this process at once; of another one at the next look, which costs SQLite something, and so comes seldom."""
    now_s = 100.0
    monkeypatch.setattr(catalog_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    with closing(Catalog(catalog_path(tmp_path))) as catalog, closing(Catalog(catalog_path(tmp_path))) as other:
        before = catalog.version()
        assert catalog.version() == before
        catalog.register("sub", enabled=True)
        own = catalog.version()
        assert own != before
        now_s += 1
        seen = catalog.version()  # it is another connection that writes
        assert catalog.version() == seen
        other.set_enabled("sub", enabled=False)
        assert catalog.version() == seen, "not looked at again yet"
        now_s += 1
        assert catalog.version() != seen
        row = catalog.subscription("sub")
        assert row is not None
        assert not row.enabled
        assert catalog.subscriptions() == {"sub": row}


def test_who_sees_its_version_reads_what_was_committed(tmp_path):
    """Whoever asks within a transaction of another thread sees neither."""
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        before = catalog.version()
        seen = []
        with catalog.transaction():
            catalog.register("sub", enabled=True)
            thread = threading.Thread(target=lambda: seen.append((catalog.version()[0], catalog.subscription("sub"))))
            thread.start()
            thread.join()
        assert seen == [(before[0], None)]
        assert catalog.version()[0] != before[0]
