"""The view puts together what the catalog, the streams and the slots have."""

from __future__ import annotations

from dataclasses import replace

from bridge.monitor.view import View, lag_bytes
from bridge.receive.slot_health import SlotHealth, SlotHistory
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
    assert (shop["state"], shop["lag_bytes"], len(shop["lag_history"]), len(shop["batches"])) == (
        "streaming",
        0x4000,
        360,
        30,
    )
    assert shop["batches"][-1]["seconds"].keys() == {"form", "commit", "flush", "record"}
    assert crm["remedies"] == {"skip": "pgbridge skip crm --lsn 4/800", "enable": None, "resync": None}
    assert (crm["slot"]["seconds_left"], crm["slot"]["synchronous"]) == (1500, False)
    assert SECRET not in str(document)


def test_a_batch_of_a_message_that_nobody_committed_has_no_commit_time(view):
    view.observations("shop").applied(BatchReport(Lsn(9), 0, 1, 0, 0, {}))
    assert view.document()["subscriptions"][0]["batches"][-1]["commit_time"] is None


def test_a_lost_slot_has_its_remedy(view):
    health = SlotHealth("lost", None, None, None, Lsn(1), False, "wal_removed", None)
    view.sources = replace(view.sources, slots=lambda: {"crm": health})
    shop, crm = view.document()["subscriptions"]
    assert crm["remedies"]["resync"] == "pgbridge resync crm"
    assert shop["slot"] is None
    assert shop["lag_bytes"] is None, "nobody knows what the server has written since"


def test_a_slot_that_does_not_exist_is_shown_as_missing(view):
    missing = SlotHistory().add(0.0, None, Lsn(1))
    view.sources = replace(view.sources, slots=lambda: {"crm": missing})
    _, crm = view.document()["subscriptions"]
    assert (crm["slot"]["wal_status"], crm["remedies"]["resync"]) == ("missing", "pgbridge resync crm")


def test_before_the_catalog_is_opened(view):
    empty = View(view.sources)
    assert empty.document()["subscriptions"] == []
    empty.sample()
    assert empty.spool_bytes("shop") == 0


def test_spool(view):
    assert view.spool_bytes("shop") == 1000
    assert view.spool_bytes("crm") == 0


def test_a_lag_is_not_known_before_the_first_position():
    health = SlotHistory().add(0.0, None, Lsn(0x9))
    assert lag_bytes({"remote_lsn": None, "received_lsn": None}, health) is None
    assert lag_bytes({"remote_lsn": "0/10", "received_lsn": "0/18"}, None) is None
    assert lag_bytes({"remote_lsn": "0/10", "received_lsn": None}, health) == 0
    assert lag_bytes({"remote_lsn": "0/10", "received_lsn": "0/18"}, health) == 8


def test_samples(view, monkeypatch):
    told = view.observations("shop")
    before = len(told.lags())
    told._now_s = lambda: 9e9
    view.sample()
    assert told.lags()[-1].lag_bytes == 0x4000
    assert len(told.lags()) == before
