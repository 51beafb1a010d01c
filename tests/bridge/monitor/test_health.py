"""Alive while the main loop turns; ready while every enabled subscription follows."""

from __future__ import annotations

from bridge.monitor.health import TURN_LIMIT_S, is_alive, not_ready


def entry(name: str, state: str, *, enabled: bool = True, error: str | None = None):
    return {"name": name, "state": state, "enabled": enabled, "last_error": error and {"message": error}}


def test_alive():
    assert is_alive(100.0, 100.0 + TURN_LIMIT_S)
    assert not is_alive(100.0, 100.1 + TURN_LIMIT_S)


def test_ready():
    assert (
        not_ready("running", [entry("a", "streaming"), entry("b", "copying"), entry("c", "disabled", enabled=False)])
        == []
    )
    assert not_ready("running", []) == []


def test_what_keeps_it_from_being_ready():
    assert not_ready("starting", [entry("a", "streaming")]) == [{"reason": "Spark is starting"}]
    assert not_ready("running", [entry("a", "error", error="no"), entry("b", "starting")]) == [
        {"subscription": "a", "state": "error", "reason": "no"},
        {"subscription": "b", "state": "starting", "reason": ""},
    ]


def test_a_copy_that_failed_keeps_it_from_being_ready():
    """Until it is tried again: its rows are missing while everything else streams."""
    failed = {**entry("a", "streaming"), "sync_error": {"message": "permission denied"}, "tables": [{"state": "d"}]}
    assert not_ready("running", [failed]) == [
        {"subscription": "a", "state": "streaming", "reason": "permission denied"}
    ]
    assert not_ready("running", [{**failed, "tables": [{"state": "d", "copy": {}}]}]) == []
