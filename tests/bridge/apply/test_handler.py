"""What a handler is given and what becomes of its errors; `test_embedded` has it on a stream."""

from __future__ import annotations

import datetime as dt
from contextlib import closing
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from pgbridge.bridge.apply import handler as module
from pgbridge.bridge.apply.handler import HandlerApplier
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.held import fence_lsn
from pgbridge.bridge.runtime.errors import ApplyError, OutcomeUnknown
from pgbridge.protocol.lsn import Lsn
from tests.bridge.apply.made_batches import batch, context
from tests.bridge.apply.made_worker import changes_of


@pytest.fixture
def catalog(tmp_path):
    with closing(Catalog(catalog_path(tmp_path))) as made:
        made.register("sub", enabled=True)
        made.create_origin("sub", Lsn(0x10), "inc", [])
        yield made


@pytest.fixture
def applier(catalog, monkeypatch):
    """Makes the applier of a handler, whose DataFrames are texts."""
    monkeypatch.setattr(module, "change_frame", lambda *arguments: f"changes of {arguments[1].target.name}")

    def make(handler, fences: list[Lsn] | None = None):
        fence = (fences if fences is not None else []).append
        return HandlerApplier(context(None, catalog), handler, fence=fence)

    return make


def test_the_batch_and_its_record(catalog, applier):
    given: list[Any] = []
    made = batch(changes_of([1]))
    made.commit_time_us = 1
    applier(given.append).apply(made)
    (one,) = given
    assert dict(one.tables) == {"public.t": "changes of t"}
    with pytest.raises(KeyError, match='no changes of a table "t"; there are of public.t'):
        one.tables["t"]
    assert one.tables.get("t") is None
    assert (one.start_lsn, one.end_lsn, one.version, one.transactions) == (0x10, 0x20, 0x20, 1)
    assert one.delta_options == {"txnAppId": one.app_id, "txnVersion": "32"}
    assert one.commit_time == dt.datetime(2000, 1, 1, microsecond=1, tzinfo=dt.UTC)
    assert (catalog.remote_lsn("sub"), catalog.batch("sub")) == (Lsn(0x20), None)


def test_nothing_of_the_tables_is_nothing_for_the_handler(catalog, applier):
    given: list[Any] = []
    applier(given.append).apply(batch())
    assert given == []
    assert catalog.remote_lsn("sub") == Lsn(0x20)


def test_an_error_gives_the_batch_up_and_leaves_a_fence(catalog, applier):
    def fail(_):
        raise ValueError("too large")

    fences: list[Lsn] = []
    with pytest.raises(ApplyError, match="the handler raised ValueError: too large") as caught:
        applier(fail, fences).apply(batch(changes_of([1])))
    assert (caught.value.context.finish_lsn, caught.value.context.xid) == (Lsn(0x18), 7)
    assert (catalog.remote_lsn("sub"), catalog.batch("sub")) == (Lsn(0x10), None)
    assert fences == [fence_lsn(catalog, "sub")] == [Lsn(0x20)]


def test_when_spark_is_gone_the_intent_stands(catalog, applier):
    def fail(_):
        raise Py4JNetworkError("no answer")

    with pytest.raises(OutcomeUnknown):
        applier(fail).apply(batch(changes_of([1])))
    assert catalog.batch("sub") is not None
    assert fence_lsn(catalog, "sub") == 0
