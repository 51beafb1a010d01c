"""Subscriptions whose servers do not answer, and their catalog."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.config.config import Config, Subscription

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOBODY = "host=/nonexistent dbname=x"


def configuration(folder: Path, **connections: str) -> Config:
    """A configuration with a subscription for each connection, by its name."""
    subscriptions = {
        name: Subscription(name=name, connection=connection, publications=("p",), warehouse=str(folder / "lake"))
        for name, connection in connections.items()
    }
    return Config(state_dir=folder / "state", subscription=subscriptions)


@contextmanager
def registered(folder: Path) -> Iterator[tuple[Config, Catalog]]:
    """The configuration and catalog of the subscription "shop"."""
    settings = configuration(folder, shop=NOBODY)
    with closing(Catalog(catalog_path(settings.state_dir))) as catalog:
        catalog.register("shop", enabled=True)
        yield settings, catalog
