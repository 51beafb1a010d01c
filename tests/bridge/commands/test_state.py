"""What a command opens: the configuration, its catalog, and whether a daemon runs.

One subscription's failure does not keep a command from the others.
"""

from __future__ import annotations

import pytest

from bridge.catalog.lock import locked
from bridge.commands.state import each, opened
from bridge.config.config import Subscription
from bridge.runtime.errors import ConfigError, PublisherError, SparkLost
from tests.fix_cli import TWO


def test_every_subscription_is_registered(tmp_path):
    file = tmp_path / "pgbridge.toml"
    file.write_text(TWO + "enabled = false\n")
    with opened(file) as state:
        rows = [state.catalog.subscription(name) for name in ("shop", "hr")]
    assert [row.enabled for row in rows if row is not None] == [True, False]


def test_a_daemon_takes_changes_at_once(tmp_path):
    file = tmp_path / "pgbridge.toml"
    file.write_text(TWO)
    with opened(file) as state:
        assert (state.running, state.when) == (False, "at the daemon's next start")
    with locked(tmp_path / "state"), opened(file) as state:
        assert (state.running, state.when) == (True, "now")


def test_without_a_configuration_nothing_is_made(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"), opened(tmp_path / "pgbridge.toml"):
        pass
    assert list(tmp_path.iterdir()) == []


A, B = (Subscription(name=name, connection="", publications=("p",), warehouse="/lake") for name in "ab")


def do(subscription):
    if subscription is A:
        raise PublisherError("it is away")
    return subscription.name


def test_several():
    assert each([A, B], do, lambda one, error: f"{one.name}: {error}") == ["a: it is away", "b"]


def test_the_only_one_raises():
    with pytest.raises(PublisherError):
        each([A], do, lambda *_: "")


def test_without_spark_there_are_none():
    def lost(_):
        raise SparkLost("it has died")

    with pytest.raises(SparkLost):
        each([A, B], lost, lambda *_: "")
