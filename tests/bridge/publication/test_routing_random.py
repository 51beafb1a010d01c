"""Random publications: the server sends exactly what is worked out."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.publication.publication import ACTIONS, Publication, PublicationTable, render
from pgbridge.bridge.runtime.errors import PublicationError, PublisherError
from tests.bridge.publication.server_publications import Decoder, Sent, own_tables, relation, routing, without_filters

if TYPE_CHECKING:
    from pgbridge.bridge.publication.routing import Routing

TREE = """
    CREATE SCHEMA s1; CREATE SCHEMA s2;
    CREATE TABLE s1.plain (id int PRIMARY KEY, a int, b int);
    CREATE TABLE s2.child (c int, PRIMARY KEY (id)) INHERITS (s1.plain);
    CREATE TABLE s1.root (id int PRIMARY KEY, a int, b int) PARTITION BY RANGE (id);
    CREATE TABLE s2.mid PARTITION OF s1.root FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (id);
    CREATE TABLE s1.low (b int, id int NOT NULL PRIMARY KEY, a int);
    ALTER TABLE s2.mid ATTACH PARTITION s1.low FOR VALUES FROM (0) TO (100);
    CREATE TABLE s2.high PARTITION OF s2.mid FOR VALUES FROM (100) TO (1000);
    CREATE TABLE s1.rest PARTITION OF s1.root DEFAULT;
"""


KEYS = {"s1.plain": (1, 200), "s2.child": (2, 201), "s1.low": (3, 40), "s2.high": (150, 250), "s1.rest": (1200, 1300)}


FILTERS = (None, None, "id > 100", "id < 50", "id <> 40")


def random_publication(draw: random.Random, name: str) -> Publication:
    """A publication of TREE's tables that CREATE PUBLICATION accepts."""
    via_root = draw.random() < 0.5
    actions = frozenset(action for action in ACTIONS if draw.random() < 0.75)
    if draw.random() < 0.3:
        roots = [("s1", "plain"), ("s2", "child"), ("s1", "root")]
        excepted = draw.sample(roots, draw.choice([0, 1, 1, 2, 3]))
        tables = [PublicationTable(namespace, table, draw.random() < 0.5) for namespace, table in excepted]
        return Publication(name, all_tables=True, except_tables=tuple(tables), actions=actions, via_root=via_root)
    schemas = tuple(draw.sample(["s1", "s2"], draw.choice([0, 0, 0, 1])))
    tables = []
    for table in draw.sample([*KEYS, "s1.root", "s2.mid"], draw.randint(0, 4)):
        namespace, _, short = table.partition(".")
        plain = table in KEYS or via_root
        columns = ("a", "id") if plain and not schemas and draw.random() < 0.15 else None
        row_filter = draw.choice(FILTERS) if plain else None
        tables.append(PublicationTable(namespace, short, True, columns, row_filter))
    return Publication(name, tuple(tables), schemas, actions=actions, via_root=via_root)


def without_except(publication: Publication) -> Publication:
    """The same publication in words that every server knows: FOR TABLE of what EXCEPT leaves, by PostgreSQL 19's rules.

    A partition is published unless its root is excluded, and one that inherits unless ONLY spares it.
    """
    if not publication.except_tables:
        return publication
    excluded = {table.qualified_name for table in publication.except_tables}
    if PublicationTable("s1", "plain") in publication.except_tables:
        excluded.add("s2.child")
    every = [PublicationTable("s1", "plain", True), PublicationTable("s2", "child"), PublicationTable("s1", "root")]
    left = tuple(table for table in every if table.qualified_name not in excluded)
    return replace(publication, all_tables=False, except_tables=(), tables=left)


def expected(routed: Routing, name: str, action: str, key: int) -> list[Sent]:
    entry = routed.entry(relation(routed, name))
    if entry is None or action not in entry.actions:
        return []
    filters = entry.filters[action]
    if filters and not any(eval(text.replace("<>", "!="), {"id": key}) for text in filters):
        return []
    return [Sent(action, entry.target.qualified_name, entry.column_names)]


def test_any_publications_send_what_is_worked_out(publisher):
    """Random publications on a tree of partitions and an inheritor: every statement's changes, and the targets."""
    publisher.execute(TREE)
    decoder = Decoder(publisher)
    draw = random.Random(20_05)
    conflicts = 0
    for _ in range(25):
        publications = [random_publication(draw, name) for name in ("p", "q", "r")[: draw.randint(1, 3)]]
        names = [publication.name for publication in publications]
        text = render(publications)
        publisher.execute(render(map(without_except, publications)))
        try:
            routed = routing(publisher, text)
        except PublicationError:
            conflicts += 1
            with pytest.raises(PublisherError, match="cannot use different column lists"):
                own_tables(publisher, *names)
        else:
            assert [without_filters(table) for table in routed.tables()] == [
                without_filters(table) for table in own_tables(publisher, *names)
            ]
            check_changes(decoder, routed, names)
        publisher.execute("TRUNCATE s1.root, s1.plain; DROP PUBLICATION " + ", ".join(names))
        decoder.skip()
    assert conflicts < 10


def check_changes(decoder: Decoder, routed: Routing, names: list[str]) -> None:
    statements = {}
    for name, keys in KEYS.items():
        for key in keys:
            statements[f"INSERT INTO {name} (id) VALUES ({key})"] = (name, "insert", key)
            statements[f"UPDATE ONLY {name} SET a = 1 WHERE id = {key}"] = (name, "update", key)
        statements[f"DELETE FROM ONLY {name} WHERE id = {keys[0]}"] = (name, "delete", keys[0])
    truncates = [*KEYS, "s2.mid", "s1.root"]
    sent = decoder.sent(names, *statements, *(f"TRUNCATE {name}" for name in truncates))
    for (statement, change), found in zip(statements.items(), sent, strict=False):
        assert found == expected(routed, *change), statement
    for name, found in zip(truncates, sent[len(statements) :], strict=True):
        # A broad publication of partitions sends the leaves, and of an inheritance parent also the children.
        table = relation(routed, name)
        named = [item for item in (table, *routed.relations.inheritors(table)) if item.relkind == "r"]
        emptied = {item.qualified_name for item in routed.truncated(named)}
        assert emptied == {item.relation for item in found}, f"TRUNCATE {name}"
