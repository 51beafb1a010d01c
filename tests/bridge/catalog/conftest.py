"""Catalogs: one with a subscription, and one whose subscription has started."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.protocol.lsn import Lsn
from tests.bridge.track.made_catalog import T1, T2

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path) -> Path:
    return catalog_path(tmp_path / "state")


@pytest.fixture
def catalog(path) -> Iterator[Catalog]:
    """A catalog with the subscription `shop`."""
    with closing(Catalog(path)) as opened:
        opened.register("shop", enabled=True)
        yield opened


@pytest.fixture
def started(catalog):
    """The same, with an origin at 0/100."""
    catalog.create_origin("shop", Lsn(0x100), "abc", [T1, T2])
    return catalog
