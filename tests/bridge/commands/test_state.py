"""What a command opens: the configuration, its catalog, and whether a daemon runs."""

from __future__ import annotations

import pytest

from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.commands.state import opened
from pgbridge.bridge.runtime.errors import ConfigError
from tests.fix_cli import TWO, catalog_of


def test_every_subscription_is_registered(tmp_path):
    file = tmp_path / "pgbridge.toml"
    file.write_text(TWO + "enabled = false\n")
    with opened(file) as state:
        rows = [state.catalog.subscription(name) for name in ("shop", "hr")]
    assert [row.enabled for row in rows if row is not None] == [True, False]


def test_enabled_of_the_file_is_the_daemons_to_take_over(tmp_path):
    """A command that opens the state writes nothing that is there already, and waits for nobody who writes."""
    file = tmp_path / "pgbridge.toml"
    file.write_text(TWO)
    with opened(file):
        pass
    file.write_text(TWO + "enabled = false\n")
    with catalog_of(tmp_path) as writing, writing.transaction(), opened(file) as state:
        row = state.catalog.subscription("hr")
        assert row is not None
        assert row.enabled


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
