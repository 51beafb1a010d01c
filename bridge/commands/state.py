"""The state directory as a command finds it, with a running daemon or without."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.lock import is_running
from pgbridge.bridge.config import config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class State:
    """A configuration with its catalog.

    Attributes:
        catalog: Its catalog, in which every subscription of the configuration is registered.
        running: Whether a daemon holds the state directory.
    """

    config: config.Config
    catalog: Catalog
    running: bool

    @property
    def when(self) -> str:
        """When a change in the catalog takes effect, for messages."""
        return "now" if self.running else "at the daemon's next start"


@contextmanager
def opened(config_file: Path) -> Iterator[State]:
    """Load a configuration and open its catalog, which a running daemon may use at the same time.

    Raises:
        ConfigError: The configuration cannot be used.
        StateError: The state directory cannot be used.
    """
    settings = config.load(config_file)
    with closing(Catalog(catalog_path(settings.state_dir))) as catalog:
        known = catalog.subscriptions()
        for subscription in settings.subscription.values():
            if subscription.name not in known:  # the daemon takes over a changed `enabled` at its start, or by a reload
                catalog.register(subscription.name, enabled=subscription.enabled)
        yield State(settings, catalog, is_running(settings.state_dir))


@contextmanager
def opened_for(config_file: Path, name: str) -> Iterator[tuple[config.Subscription, State]]:
    """The same for a command on one subscription.

    Raises:
        ConfigError: The configuration cannot be used, or has no such subscription.
        StateError: The state directory cannot be used.
    """
    with opened(config_file) as state:
        (subscription,) = state.config.choose(name)
        yield subscription, state
