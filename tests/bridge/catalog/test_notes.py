"""Conflict counters add up; copies are those recorded last.

A worker's state and errors are written in the end, however long the catalog cannot be written.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from pgbridge.bridge.catalog import notes
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import CopyRow
from pgbridge.bridge.catalog.notes import WorkerStatus, left_out, put_left_out
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.errors import (
    ApplyContext,
    ApplyError,
    OutcomeUnknown,
    PublicationError,
    PublisherError,
    StateError,
    StreamError,
    SyncError,
)
from pgbridge.protocol.lsn import Lsn


def test_copies_are_those_that_were_put_last(started):
    one = CopyRow("public", "t1", 1, 2, 3, None, None)
    two = CopyRow("public", "t2", 10, 20, 30, 1.5, 2.5)
    notes.put_copies(started, "shop", [two, one])
    assert notes.copies(started, "shop") == [one, two]
    assert notes.copies(started, "other") == []
    notes.put_copies(started, "shop", [two])
    assert notes.copies(started, "shop") == [two]
    assert two.qualified_name == "public.t2"


def test_conflicts_are_counted_by_name(started):
    notes.count_conflicts(started, "shop", {"update_missing": 1, "delete_missing": 2})
    notes.count_conflicts(started, "shop", {"delete_missing": 3})
    assert notes.conflicts(started, "shop") == {"delete_missing": 5, "update_missing": 1}
    assert notes.conflicts(started, "other") == {}


def test_each_is_new_once(tmp_path):
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        for name in ("shop", "other"):
            catalog.register(name, enabled=True)
        reasons = {("public", "bare"): "no column", ("public", "a"): "case"}
        assert put_left_out(catalog, "shop", reasons) == [("public", "bare"), ("public", "a")]
        assert put_left_out(catalog, "other", {("public", "x"): "case"}) == [("public", "x")]
        assert put_left_out(catalog, "shop", reasons) == []
        assert list(left_out(catalog, "shop").items()) == sorted(reasons.items())
        assert put_left_out(catalog, "shop", {("public", "bare"): "case"}) == [("public", "bare")]
        assert left_out(catalog, "shop") == {("public", "bare"): "case"}
        assert put_left_out(catalog, "shop", {}) == []
        assert (left_out(catalog, "shop"), len(left_out(catalog, "other"))) == ({}, 1)


def test_the_status_waits_for_no_writer(tmp_path):
    """Another process may hold the lock, as while the disk is slow."""
    with closing(Catalog(catalog_path(tmp_path))) as catalog, closing(Catalog(catalog_path(tmp_path))) as other:
        catalog.register("shop", enabled=True)
        put_left_out(catalog, "shop", {("public", "a"): "case"})
        with other.transaction(), ThreadPoolExecutor(1) as pool:
            assert pool.submit(left_out, catalog, "shop").result(2) == {("public", "a"): "case"}


CONTEXT = ApplyContext("pgbridge_shop", Lsn(0x20), 7, "public.t")


@pytest.fixture
def catalog(tmp_path):
    with closing(Catalog(tmp_path / "catalog.sqlite")) as opened:
        opened.register("shop", enabled=True)
        opened.set_state("shop", "streaming")
        yield opened


@pytest.fixture
def status(catalog):
    return WorkerStatus(catalog, "shop", log.get())


@pytest.fixture
def broken(catalog, monkeypatch):
    """Make the catalog fail, until the returned function is called."""
    with monkeypatch.context() as patch:

        def fail(*_, **__):
            raise StateError("database or disk is full", retry=True)

        patch.setattr(catalog, "_transaction", fail)
        yield patch.undo


def test_it_is_written_once_it_can_be(catalog, status, broken):
    status.record_error(ApplyError("first", CONTEXT), counter="apply")
    status.record_error(ApplyError("second", CONTEXT), counter="apply")
    status.set_state("error")
    broken()
    assert catalog.subscription("shop").state == "streaming", "nothing was written"
    status.write()
    row = catalog.subscription("shop")
    assert (row.state, row.apply_error_count) == ("error", 2)
    assert catalog.last_error("shop").message.startswith("second")
    assert catalog.last_error("shop").finish_lsn == 0x20
    status.write()
    assert catalog.subscription("shop").apply_error_count == 2


def test_what_is_past_is_not_written_any_more(catalog, status, broken):
    status.record_error(ApplyError("first", CONTEXT), counter="apply")
    broken()
    status.progressed()
    status.set_state("streaming")
    assert catalog.last_error("shop") is None


def test_what_a_batch_has_overtaken_is_counted_and_stands_no_more(catalog, status, broken):
    """The batch is durable, and the worker has not reported it yet."""
    broken()
    catalog.create_origin("shop", Lsn(0x10), "inc", [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "_transaction", lambda: (_ for _ in ()).throw(StateError("full", retry=True)))
        status.record_error(ApplyError("first", CONTEXT), counter="apply")
    catalog.finish_batch("shop", Lsn(0x28))
    status.write()
    assert catalog.last_error("shop") is None
    assert catalog.subscription("shop").apply_error_count == 1


def test_enabled_as_it_was_last(catalog, monkeypatch):
    status = WorkerStatus(catalog, "shop", log.get())
    catalog.set_enabled("shop", enabled=False)
    assert not status.enabled()
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "rows", lambda *_: (_ for _ in ()).throw(StateError("no", retry=True)))
        assert not status.enabled()


def test_an_unknown_outcome_is_no_transaction_to_skip(catalog, status):
    status.record_error(OutcomeUnknown("the connection to Spark is lost", CONTEXT), counter="apply")
    error = catalog.last_error("shop")
    assert (error.finish_lsn, error.relation) == (None, None)
    assert "finished at 0/20" in error.message


def test_a_state_that_has_not_changed_is_not_written_again(catalog, status, monkeypatch):
    """A daemon with hundreds of idle subscriptions has each report once a second."""
    written = []
    set_state = catalog.set_state

    def counted(name, state, *, received_lsn):
        written.append((state, received_lsn))
        set_state(name, state, received_lsn=received_lsn)

    monkeypatch.setattr(catalog, "set_state", counted)
    for lsn in (1, 1, 1, 2, 2):
        status.set_state("streaming", received_lsn=Lsn(lsn))
    status.set_state("stopped")
    status.set_state("streaming", received_lsn=Lsn(2))
    assert written == [("streaming", 1), ("streaming", 2), ("stopped", None), ("streaming", 2)]
    assert catalog.subscription("shop").state == "streaming"


@pytest.mark.parametrize(
    ("error", "over"),
    [
        (PublicationError('relation "public.nosuch" does not exist'), True),
        (PublisherError("cannot connect to the publisher", retry=True), True),
        (SyncError('cannot copy table "public.t"'), True),
        (ApplyError("conflict", CONTEXT), False),
        (ApplyError("several transactions", ApplyContext("pgbridge_shop", Lsn(0x20))), False),
        (StreamError("the publisher ended the stream: division by zero", "22012", Lsn(0x10)), False),
    ],
)
def test_an_error_of_the_start_is_over_once_the_stream_has_begun(catalog, status, error, over):
    """One of applying, or of what the stream has at its position, stays until a later transaction was applied."""
    status.record_error(error, counter=None)
    status.begun()
    assert (catalog.last_error("shop") is None) is over
