"""Publications of a test server, what the server says of them, and what its own pgoutput sends by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.publication.routing import Routing
from pgbridge.bridge.receive.publications import read_publications, read_relations
from pgbridge.bridge.receive.publisher import Publisher as Server
from pgbridge.protocol.codec.messages import Delete, Insert, LogicalMessage, Relation, Truncate, Update
from pgbridge.protocol.codec.pgoutput import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbridge.bridge.publication.publication import Publication, PublicationTable
    from pgbridge.bridge.publication.published_table import Entry, PublishedTable
    from pgbridge.bridge.publication.tables import CatalogRelation
    from tests.fix_postgres import Publisher

_ACTIONS = {Insert: "insert", Update: "update", Delete: "delete"}


PARTITIONS = """
    CREATE TABLE root (a int, b text, c int, PRIMARY KEY (a)) PARTITION BY RANGE (a);
    CREATE TABLE mid PARTITION OF root FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (a);
    CREATE TABLE low (c int, gone int, b text, a int NOT NULL PRIMARY KEY);
    ALTER TABLE low DROP COLUMN gone;
    ALTER TABLE mid ATTACH PARTITION low FOR VALUES FROM (0) TO (10);
    CREATE TABLE high PARTITION OF mid FOR VALUES FROM (10) TO (100);
    CREATE TABLE rest PARTITION OF root DEFAULT;
    CREATE TABLE plain (a int PRIMARY KEY, b text, c int);
"""


class Sent(NamedTuple):
    """A change as pgoutput sent it."""

    action: str
    relation: str
    columns: tuple[str, ...] = ()


def routing(publisher: Publisher, text: str) -> Routing:
    """Statements re-applied to the server's tables."""
    with Server(publisher.conninfo, application_name="test") as server:
        return Routing(parse(text, "f.sql"), read_relations(server))


def own_routing(publisher: Publisher, *names: str) -> Routing:
    """The server's own publications, by the same rules."""
    with Server(publisher.conninfo, application_name="test") as server:
        return Routing(read_publications(server, names), read_relations(server))


def own_tables(publisher: Publisher, *names: str) -> list[PublishedTable]:
    """The published tables as the server lists them.

    Before PostgreSQL 16 it lists partitions beside a root that another publication publishes in their place; those
    are left out here.
    """
    with Server(publisher.conninfo, application_name="test") as server:
        tables, relations = server.tables(names), read_relations(server)
    listed = {table.relid for table in tables}
    above = {table.relid: relations.ancestors(relations.by_relid[table.relid]) for table in tables}
    return [table for table in tables if not any(ancestor.relid in listed for ancestor in above[table.relid])]


def own_publications(publisher: Publisher, *names: str) -> tuple[Publication, ...]:
    """The server's own publications."""
    with Server(publisher.conninfo, application_name="test") as server:
        return read_publications(server, names)


def relation(routed: Routing, name: str) -> CatalogRelation:
    """A table by `namespace.name`, or by a name in public."""
    namespace, _, table = name.rpartition(".")
    return routed.relations.by_name[namespace or "public", table]


def members(publication: Publication) -> dict[str, PublicationTable]:
    return {table.qualified_name: table for table in publication.tables}


def entry_of(routed: Routing, name: str) -> Entry:
    entry = routed.entry(relation(routed, name))
    assert entry is not None
    return entry


def targets(routed: Routing) -> list[str]:
    return [entry.target.qualified_name for entry in routed.targets.values()]


def tables_of(publisher: Publisher, text: str, *names: str) -> Routing:
    """The same statements here and on the server: what the server says of its own must be what is worked out."""
    publisher.execute(text)
    routed, own = routing(publisher, text), own_routing(publisher, *names)
    assert own.tables() == own_tables(publisher, *names)
    assert [without_filters(table) for table in routed.tables()] == [without_filters(table) for table in own.tables()]
    for source in routed.relations.publishable:
        assert without_filters(routed.entry(source)) == without_filters(own.entry(source))
    return routed


def without_filters(item) -> object:
    """All but the filters' texts, which the server spells its own way."""
    if item is None:
        return None
    if hasattr(item, "row_filters"):
        return (item.qualified_name, item.relkind, item.columns, len(item.row_filters))
    counts = {action: len(filters) for action, filters in item.filters.items()}
    return (item.source, item.target, item.publications, item.actions, counts, item.columns)


class Decoder:
    """A slot of the publisher, read through pgoutput in SQL."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._slot = publisher.name
        publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self._slot,))

    def sent(self, publications: Sequence[str], *statements: str) -> list[list[Sent]]:
        """Run statements; what is sent for each."""
        for statement in statements:
            marked = f"BEGIN; SELECT pg_logical_emit_message(true, 'mark', ''); {statement}; COMMIT"
            self._publisher.execute(marked)
        names = ",".join('"' + name.replace('"', '""') + '"' for name in publications)
        rows = self._publisher.query(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
            " 'messages', 'true', 'publication_names', %s)",
            (self._slot, names),
        )
        found: list[list[Sent]] = []
        relations: dict[int, Relation] = {}
        for (data,) in rows:
            message: Any = decode(bytes(data))
            if isinstance(message, LogicalMessage):
                found.append([])
            elif isinstance(message, Relation):
                relations[message.relation_id] = message
            elif isinstance(message, Truncate):
                found[-1] += [Sent("truncate", _name(relations[item])) for item in message.relation_ids]
            elif type(message) in _ACTIONS:
                described = relations[message.relation_id]
                columns = tuple(column.name for column in described.columns)
                found[-1].append(Sent(_ACTIONS[type(message)], _name(described), columns))
        assert len(found) == len(statements)
        return found

    def skip(self) -> None:
        """Go on from here."""
        self._publisher.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (self._slot,))


def _name(described: Relation) -> str:
    return f"{described.namespace}.{described.name}"
