"""The view puts together what the catalog, the streams and the slots have.

The metrics parse, have the values of the daemon's state, and names stay data.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pgbridge.bridge.monitor.view import View, exposition
from pgbridge.bridge.receive.slot_status import SlotHealth, SlotHistory
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.runtime.observer import BatchReport
from pgbridge.protocol.lsn import Lsn
from tests.bridge.monitor.fixtures import NAMES, SECRET


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


DOCS = Path(__file__).parents[3] / "docs"


def samples(view) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(exposition(view).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(found: dict[Any, float], name: str, **labels: str) -> float:
    return found[f"pgbridge_{name}", frozenset(labels.items())]


def test_values(view):
    found = samples(view)
    assert value(found, "up") == 1
    assert value(found, "jvm_heap_used_bytes") == 700 << 20
    assert value(found, "jvm_restarts_total") == 1
    assert value(found, "lag_bytes", subscription="shop") == 0x4000
    assert value(found, "remote_lsn_bytes", subscription="shop") == 0x5_0000_0000
    assert value(found, "transactions_applied_total", subscription="shop") == 30 * 120
    assert value(found, "batch_seconds_count", subscription="shop", phase="commit") == 30
    assert value(found, "batch_seconds_bucket", subscription="shop", phase="form", le="0.1") == 30
    assert value(found, "batch_rows_bucket", subscription="shop", le="1000.0") == 0
    assert value(found, "batch_rows_sum", subscription="shop") == 30 * 4_800
    assert value(found, "subscription_state", subscription="crm", state="error") == 1
    assert value(found, "subscription_state", subscription="crm", state="streaming") == 0
    assert value(found, "tables", subscription="shop", state="r") == len(NAMES)
    assert value(found, "copy_rows", subscription="shop", table="hr.people") == 120_000
    assert value(found, "conflicts_total", subscription="crm", kind="update_missing") == 3
    assert value(found, "errors_total", subscription="crm", kind="apply") == 1
    assert value(found, "slot_seconds_left", subscription="crm") == 1500
    assert [value(found, "slot_active", subscription=name) for name in ("shop", "crm")] == [1, 0]
    assert value(found, "slot_wal_status", subscription="crm", status="extended") == 1
    assert value(found, "spool_bytes", subscription="shop") == 1000
    assert value(found, "catalog_readable") == 1
    assert SECRET not in exposition(view).decode()


def test_what_is_not_known_is_not_there(view):
    names = {(name, labels) for name, labels in samples(view)}
    assert ("pgbridge_slot_safe_wal_bytes", frozenset({("subscription", "shop")})) not in names
    assert ("pgbridge_lag_seconds", frozenset({("subscription", "crm")})) not in names


def test_a_catalog_that_cannot_be_read(view, monkeypatch):
    """The process is still seen, and so is why there is no more."""

    def fails(*_):
        raise StateError("the disk is full", retry=True)

    monkeypatch.setattr(view.catalog, "subscription", fails)
    found = samples(view)
    assert value(found, "catalog_readable") == 0
    assert value(found, "up") == 1


def test_names_in_labels_stay_data(view):
    """A table under copy with a hostile name is one sample with just this label."""
    from pgbridge.bridge.catalog import notes
    from pgbridge.bridge.catalog.catalog_rows import CopyRow

    notes.put_copies(view.catalog, "shop", [CopyRow("public", name, 1, 1, 1, None, None) for name in NAMES])
    tables = {dict(labels).get("table") for name, labels in samples(view) if name == "pgbridge_copy_rows"}
    assert tables == {f"public.{name}" for name in NAMES}


def exposed(view) -> set[str]:
    return {name for name, _ in samples(view)}


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "prometheus-alerts.yml", "monitoring.md"])
def test_documents_name_metrics_that_exist(view, file):
    """And the list of metrics is whole."""
    names = set(re.findall(r"pgbridge_[a-z_]+[a-z]", (DOCS / file).read_text(encoding="utf-8")))
    histograms = {name.removesuffix("_bucket") for name in exposed(view) if name.endswith("_bucket")}
    known = exposed(view) | histograms | {"pgbridge_slot_safe_wal_bytes", "pgbridge_build_info"}
    assert names <= known
    if file == "monitoring.md":
        parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
        missing = {name for name in known - names - parts if not name.endswith("_created")}
        assert missing == set()
