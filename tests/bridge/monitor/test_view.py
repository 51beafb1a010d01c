"""The view puts together what the catalog, the streams and the slots have."""

from __future__ import annotations

from dataclasses import replace

from bridge.monitor.view import View
from bridge.receive.slot_status import SlotHealth, SlotHistory
from bridge.runtime.observer import BatchReport
from protocol.lsn import Lsn
from tests.bridge.monitor.fixtures import SECRET


def test_document(view):
    document = view.document()
    shop, crm = document["subscriptions"]
    assert document["spark"] == {
        "state": "running",
        "heap_used_bytes": 700 << 20,
        "heap_max_bytes": 2 << 30,
        "restarts": 1,
    }
    told = shop["told"]
    assert (shop["state"], shop["lag_bytes"]) == ("streaming", 0x4000)
    assert (len(told["lag_history"]), len(told["batches"]), told["rows_total"]) == (360, 30, 30 * 4_800)
    assert told["batches"][-1]["seconds"].keys() == {"form", "commit", "flush", "record"}
    error, running_out = crm["problems"]
    assert error["hint"] == "to skip the transaction, run: pgbridge skip crm --lsn 4/800"
    assert running_out["message"].startswith('at this rate replication slot "crm" is lost in 0:25:00')
    assert (crm["slot"]["seconds_left"], crm["slot"]["synchronous"]) == (1500, False)
    assert SECRET not in str(document)


def test_a_batch_of_a_message_that_nobody_committed_has_no_commit_time(view):
    view.observations("shop").applied(BatchReport(Lsn(9), 0, 1, 0, 0, {}))
    assert view.document()["subscriptions"][0]["told"]["batches"][-1]["commit_time"] is None


def test_a_lost_slot_has_its_remedy(view):
    health = SlotHealth("lost", None, None, None, Lsn(1), False, "wal_removed", None)
    view.sources = replace(view.sources, slots=lambda: {"crm": health})
    shop, crm = view.document()["subscriptions"]
    assert crm["problems"][1]["hint"] == "to copy all tables again, run: pgbridge resync crm"
    assert shop["slot"] is None
    assert shop["lag_bytes"] is None, "nobody knows what the server has written since"


def test_a_slot_that_does_not_exist_is_shown_as_missing(view):
    missing = SlotHistory().add(0.0, None, Lsn(1))
    view.sources = replace(view.sources, slots=lambda: {"crm": missing})
    _, crm = view.document()["subscriptions"]
    assert crm["slot"]["wal_status"] == "missing"
    assert "does not exist" in crm["problems"][1]["message"]


def test_before_the_catalog_is_opened(view):
    empty = View(view.sources)
    assert empty.document()["subscriptions"] == []
    empty.sample()
    assert empty.spool_bytes("shop") == 0


def test_spool(view):
    assert view.spool_bytes("shop") == 1000
    assert view.spool_bytes("crm") == 0


def test_samples(view, monkeypatch):
    told = view.observations("shop")
    before = len(told.as_json()["lag_history"])
    told._now_s = lambda: 9e9
    view.sample()
    lags = told.as_json()["lag_history"]
    assert lags[-1][1] == 0x4000
    assert len(lags) == before


def test_a_lag_of_minutes_is_told(view):
    told = view.observations("shop")
    told.received(1, Lsn(0x6_0000_0000))
    told._now_s = lambda: 9e9
    shop, _ = view.document()["subscriptions"]
    assert [one["kind"] for one in shop["problems"]] == ["lag"]
