"""The tables of a subscription whose changes a handler gets: there is no Delta table, and no initial copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.batch.routes import Subscribed
from bridge.catalog.catalog_rows import RelRow
from bridge.targets.location import table_path
from bridge.targets.target import Target, target_schema
from protocol.lsn import INVALID
from protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bridge.catalog.catalog import Catalog
    from bridge.config.config import Subscription
    from bridge.publication.published_table import PublishedTable
    from bridge.receive.publisher import Publisher
    from bridge.receive.slot import Snapshot
    from bridge.runtime.errors import BridgeError
    from bridge.track.position import ServerHistory


@dataclass(eq=False)
class HandledTables:
    """Does for a handler what `TableSync` does for Delta tables."""

    subscription: Subscription
    catalog: Catalog

    def new_rels(self, tables: Iterable[PublishedTable], known: Iterable[RelRow] = ()) -> list[RelRow]:
        """Return catalog rows for new tables; their path is no path."""
        del known
        return [
            RelRow(table.namespace, table.name, "r", INVALID, self._path(table.namespace, table.name), table.relid)
            for table in tables
        ]

    def _path(self, namespace: str, name: str) -> str:
        return table_path(f"handler:{self.subscription.name}", namespace, name)

    def needs_copy(self, rel: RelRow) -> bool:
        """Whether the table is to be copied: never."""
        del rel
        return False

    def copy(
        self, tables: Mapping[tuple[str, str], PublishedTable], publisher: Publisher, snapshot: Snapshot
    ) -> dict[tuple[str, str], BridgeError]:
        """Copy nothing."""
        del tables, publisher, snapshot
        return {}

    def follow(
        self, tables: Mapping[tuple[str, str], PublishedTable], publisher: Publisher, server: ServerHistory
    ) -> dict[tuple[str, str], Subscribed]:
        """Return the tables that follow the stream, by (namespace, name): all that are published now.

        Any other one follows as soon as the stream has it (`other`): the server only sends what is published.
        """
        del server  # what the function has written is not known here
        name = self.subscription.name
        known = self.catalog.rels_by_name(name)
        subscribed: dict[tuple[str, str], Subscribed] = {}
        for key, table in tables.items():
            (rel,) = self.new_rels([table])
            if known.get(key) != rel:
                self.catalog.put_rel(name, rel)
            types = publisher.types(column.type_oid for column in table.columns)
            fields = [(one.name, resolve(one.type_oid, one.typmod, types).arrow) for one in table.columns]
            target = Target(*key, rel.path, target_schema(fields), "handler")
            subscribed[key] = Subscribed(target, INVALID, cut_identity=table.cut_identity)
        return subscribed

    def other(self, namespace: str, name: str) -> Subscribed:
        """Return a table that was added, or got its name, after `follow`; or had it before."""
        return Subscribed(Target(namespace, name, self._path(namespace, name), (), "handler"), INVALID)
