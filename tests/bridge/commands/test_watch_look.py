"""A look, and the rate between two of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from bridge.catalog.lock import locked
from bridge.commands.watch import Look, Looker, Rates
from bridge.runtime.errors import ConfigError
from tests.fix_cli import TWO, catalog_of

NOON = datetime(2026, 1, 2, 12, 0, 0, 250_000, UTC)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pgbridge.toml"
    path.write_text(TWO)
    (tmp_path / "state").mkdir()
    return path


def test_with_and_without_a_daemon(file):
    with catalog_of(file.parent) as catalog:
        catalog.register("shop", enabled=True)
        catalog.set_state("shop", "streaming")
    looker = Looker(file)
    seen = looker.look()
    assert not seen.running
    assert [(one["name"], one["state"]) for one in seen.document["subscriptions"]] == [
        ("shop", "stopped"),
        ("hr", "stopped"),
    ]
    with locked(file.parent / "state"):
        seen = looker.look()
    assert seen.running
    assert seen.document["subscriptions"][0]["state"] == "streaming"


def test_a_file_that_is_being_edited(file):
    looker = Looker(file)
    looker.look()
    file.write_text("[subscription")
    with pytest.raises(ConfigError):
        looker.look()
    file.write_text(TWO)
    assert looker.look().document["subscriptions"]


def test_no_file(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        Looker(tmp_path / "none.toml").look()


def test_as_json():
    assert Look(NOON, {"subscriptions": []}, running=True).as_json() == {
        "time": "2026-01-02T12:00:00.250+00:00",
        "running": True,
        "subscriptions": [],
    }
    failed = Look(NOON, None, problem="no file").as_json()
    assert json.dumps(failed) == '{"time": "2026-01-02T12:00:00.250+00:00", "error": "no file"}'


# --- the rate ---------------------------------------------------------------------------------------------------------


def rates(*looks: tuple[float, dict[str, str | None]]) -> list[dict[str, int | None]]:
    """The rates that each look has, given the positions by subscription."""
    kept, found = Rates(), []
    for now_s, positions in looks:
        document = {"subscriptions": [{"name": name, "remote_lsn": lsn} for name, lsn in positions.items()]}
        kept.add(document, now_s)
        found.append({str(one["name"]): one["applied_bytes_per_s"] for one in document["subscriptions"]})
    return found  # type: ignore[return-value]  # the entries have strings and numbers


def test_rate_since_the_look_before():
    found = rates((10.0, {"a": "0/100"}), (12.0, {"a": "0/300"}), (12.5, {"a": "0/300"}), (16.5, {"a": "1/300"}))
    assert [one["a"] for one in found] == [None, 256, 0, 2**30]


def test_rate_is_unknown_where_a_position_is():
    """Before the first one; where it has gone back, as after a resync; and for a subscription that was away."""
    found = rates(
        (1.0, {"a": None, "b": "0/900"}),
        (2.0, {"a": "0/100", "b": "0/800"}),
        (3.0, {"a": "0/180"}),
        (3.0, {"a": "0/190", "b": "0/900"}),
        (4.0, {"a": "0/190", "b": "0/901"}),
    )
    assert found == [
        {"a": None, "b": None},
        {"a": None, "b": None},
        {"a": 128},
        {"a": None, "b": None},
        {"a": 0, "b": 1},
    ]
