"""Tables of a subscription, and all that a catalog tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.track.position import ServerHistory
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from pgbridge.bridge.catalog.catalog import Catalog

T1 = RelRow("public", "t1", "i", Lsn(0), "/lake/public/t1")
T2 = RelRow("public", "t2", "s", Lsn(0x200), "/lake/public/t2")


def server_on(timeline: int, begin: int = 0) -> ServerHistory:
    """A server on a timeline, which left the one before where this one begins."""
    return ServerHistory("7", timeline, Lsn(0x900), left={timeline - 1: Lsn(begin)} if begin else {})


def everything(catalog: Catalog, name: str = "shop") -> tuple[object, ...]:
    """All that can be read of a subscription."""
    return (
        catalog.subscription(name),
        catalog.remote_lsn(name),
        catalog.batch(name),
        catalog.rels(name),
        catalog.last_error(name),
    )
