"""The publisher's timeline is unknown at first, then the one recorded last."""

from __future__ import annotations

from contextlib import closing

from bridge.track.catalog import Catalog
from bridge.track.timeline import set_timeline, timeline


def test_noted_by_subscription(tmp_path):
    path = tmp_path / "catalog.sqlite"
    with closing(Catalog(path)) as catalog:
        for name in ("shop", "other"):
            catalog.register(name, enabled=True)
        assert timeline(catalog, "shop") is None
        set_timeline(catalog, "shop", 3)
    with closing(Catalog(path)) as catalog:
        assert (timeline(catalog, "shop"), timeline(catalog, "other")) == (3, None)
        set_timeline(catalog, "shop", None)
        assert timeline(catalog, "shop") is None
