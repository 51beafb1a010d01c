"""A look: the daemon's answer, else the catalog; and the rate between two of them."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime

import pytest

from bridge import quick_status
from bridge.commands import look as module
from bridge.commands.look import Look, Looker, Rates, Seen
from bridge.errors import ConfigError
from bridge.quick_status import SOCKET
from bridge.status_socket import StatusSocket
from bridge.track.lock import locked
from tests.fix_cli import TWO, catalog_of

NOON = datetime(2026, 1, 2, 12, 0, 0, 250_000, UTC)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pgbridge.toml"
    path.write_text(TWO)
    (tmp_path / "state").mkdir()
    return path


def test_the_daemon_answers(file):
    with StatusSocket(file.parent / "state", lambda: {"subscriptions": []}) as served:
        served.start()
        assert Looker(file).look() == Seen({"subscriptions": []}, running=True, answered=True)


def test_the_catalog_while_no_daemon_runs(file):
    with catalog_of(file.parent) as catalog:
        catalog.register("shop", enabled=True)
        catalog.set_state("shop", "streaming")
    looker = Looker(file)
    seen = looker.look()
    assert (seen.running, seen.answered) == (False, False)
    assert [(one["name"], one["state"]) for one in seen.document["subscriptions"]] == [
        ("shop", "stopped"),
        ("hr", "stopped"),
    ]
    with locked(file.parent / "state"):  # and one that does not listen yet
        seen = looker.look()
    assert (seen.running, seen.answered) == (True, False)
    assert seen.document["subscriptions"][0]["state"] == "streaming"


def test_a_daemon_that_comes_and_goes(file):
    looker = Looker(file)
    for _ in range(2):
        assert not looker.look().answered
        with StatusSocket(file.parent / "state", lambda: {"subscriptions": []}) as served:
            served.start()
            assert looker.look().answered


def test_a_daemon_that_does_not_answer(file, monkeypatch):
    """It is stopped, or hangs: the catalog is read after a while."""
    monkeypatch.setattr(module, "_DAEMON_S", 0.2)
    hangs = threading.Event()
    with StatusSocket(file.parent / "state", lambda: {"waited": hangs.wait(60)}) as served:
        served.start()
        begun_s = time.monotonic()
        assert not Looker(file).look().answered
        assert time.monotonic() - begun_s < 5
        hangs.set()


def test_an_answer_that_is_no_document(file, monkeypatch):
    monkeypatch.setattr(quick_status, "ask", lambda *_: b'{"subscr')
    (file.parent / "state" / SOCKET).touch()
    assert not Looker(file).look().answered


def test_a_file_that_is_being_edited(file):
    """The daemon has read it before; without a daemon there is nothing to look at."""
    looker = Looker(file)
    looker.look()
    file.write_text("[subscription")
    with StatusSocket(file.parent / "state", lambda: {"subscriptions": []}) as served:
        served.start()
        assert looker.look().answered
    with pytest.raises(ConfigError):
        looker.look()
    file.write_text(TWO)
    assert not looker.look().answered


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
