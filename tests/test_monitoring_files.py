"""The Grafana dashboard and the alert rules in docs/ use metrics that there are, and name sections that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs/grafana-dashboard.json").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = yaml.safe_load((ROOT / "docs/prometheus-alerts.yml").read_text(encoding="utf-8"))[
    "groups"
][0]["rules"]

METRICS: dict[str, set[str]] = {
    "pgbridge_up": set(),
    "pgbridge_lag_bytes": {"subscription"},
    "pgbridge_lag_seconds": {"subscription"},
    "pgbridge_received_lsn_bytes": {"subscription"},
    "pgbridge_remote_lsn_bytes": {"subscription"},
    "pgbridge_confirmed_flush_lsn_bytes": {"subscription"},
    "pgbridge_transactions_applied_total": {"subscription"},
    "pgbridge_rows_applied_total": {"subscription"},
    "pgbridge_batches_applied_total": {"subscription"},
    "pgbridge_batch_seconds_bucket": {"subscription", "phase"},
    "pgbridge_batch_seconds_sum": {"subscription", "phase"},
    "pgbridge_batch_seconds_count": {"subscription", "phase"},
    "pgbridge_subscription_state": {"subscription", "state"},
    "pgbridge_subscription_enabled": {"subscription"},
    "pgbridge_tables": {"subscription", "state"},
    "pgbridge_copy_rows": {"subscription", "table"},
    "pgbridge_copy_bytes": {"subscription", "table"},
    "pgbridge_copy_total_bytes_estimate": {"subscription", "table"},
    "pgbridge_catalog_differences": {"subscription", "kind"},
    "pgbridge_tables_waiting": {"subscription"},
    "pgbridge_tables_differing": {"subscription"},
    "pgbridge_conflicts_total": {"subscription", "kind"},
    "pgbridge_errors_total": {"subscription", "kind"},
    "pgbridge_slot_retained_bytes": {"subscription"},
    "pgbridge_slot_safe_wal_bytes": {"subscription"},
    "pgbridge_slot_seconds_left": {"subscription"},
    "pgbridge_slot_wal_status": {"subscription", "status"},
    "pgbridge_spool_bytes": {"subscription"},
    "pgbridge_jvm_heap_used_bytes": set(),
    "pgbridge_jvm_heap_max_bytes": set(),
    "pgbridge_jvm_restarts_total": set(),
}
"""The daemon's metrics, each with the labels that it has."""

EXPRESSIONS = [rule["expr"] for rule in RULES] + [
    target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_metrics_and_their_labels_are_there(expression):
    for metric, selector in re.findall(r"(pgbridge_\w+)(\{[^}]*\})?", expression):
        assert set(re.findall(r"(\w+)=", selector)) <= METRICS[metric]


def test_dashboard_shows_every_metric():
    used = {metric for expression in EXPRESSIONS for metric in re.findall(r"pgbridge_\w+", expression)}
    assert METRICS.keys() == used


def test_dashboard_can_be_imported_anywhere():
    """No panel names a data source but the variable, and no two lie on each other."""
    sources = re.findall(r'"uid": "([^"]*)"', json.dumps(DASHBOARD["panels"]))
    assert set(sources) == {"${datasource}"}
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "subscription"]
    cells = [
        (place["x"] + column, place["y"] + line)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for column in range(place["w"])
        for line in range(place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < 24


def test_there_are_eight_alerts():
    assert len({rule["alert"] for rule in RULES}) == len(RULES) == 8


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_leads_to_the_runbook(rule):
    """It waits before it fires, says how bad it is, and ends with pages of docs/ and their sections."""
    assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"]
    places = re.findall(r'(docs/[\w-]+\.md), "([^"]*)"', rule["annotations"]["description"])
    assert places
    for page, section in places:
        assert section in re.findall(r"^#+ (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
