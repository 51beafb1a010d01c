"""A handler's tables: all that are published, whatever was known before; none is copied."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from bridge.catalog.catalog import Catalog, catalog_path
from bridge.config.config import Subscription
from bridge.publication.published_table import PublishedColumn, PublishedTable
from bridge.sync.handled_tables import HandledTables
from bridge.track.position import ServerHistory
from protocol.lsn import Lsn

TABLE = PublishedTable(5, "public", "t", "r", "d", (PublishedColumn("id", 23, -1, True, True),), ())


def test_every_published_table_follows(tmp_path):
    subscription = Subscription(name="sub", connection="", publications=("pub",), warehouse="handler")
    publisher: Any = SimpleNamespace(types=lambda _: {})
    server = ServerHistory("7", 1, Lsn(0))
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("sub", enabled=True)
        tables = HandledTables(subscription, catalog)
        (found,) = tables.follow({("public", "t"): TABLE}, publisher, server).values()
        (rel,) = catalog.rels("sub")
        assert (rel.qualified_name, rel.state, tables.needs_copy(rel)) == ("public.t", "r", False)
        assert tables.copy({}, publisher, None) == {}  # type: ignore[arg-type]
    assert (found.target.mode, found.lsn) == ("handler", 0)
    assert [(field.name, field.arrow) for field in found.target.schema] == [("id", pa.int32())]
    other = tables.other("public", "new")
    assert (other.target.qualified_name, other.target.every_change) == ("public.new", True)
    assert other.target.path != found.target.path
