"""What the documentation says is not allowed: the server and the definitions refuse the same text.

Without Spark. tests/bridge/publication has what the server refuses in its own words: by the statement alone
(`test_definitions`), by its tables (`test_membership`), by the replica identity and by a second publication. Here is
the rest, and the reason where the words are not the server's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psycopg
import pytest

from pgbridge.bridge.batch.reapplied_routes import ReappliedRoutes
from pgbridge.bridge.lake.changes.verdicts import EntryFilterCompiler
from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.publication.routing import Routing
from pgbridge.bridge.receive.publications import read_relations
from pgbridge.bridge.receive.publisher import Publisher as Server
from pgbridge.bridge.runtime.errors import BridgeError
from pgbridge.protocol.values.types import resolve
from tests.fix_postgres import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pgbridge.protocol.values.types import ColumnType
    from tests.fix_postgres import Server as PostgresServer

SCHEMA = """
    CREATE TABLE t (a int PRIMARY KEY, b text);
    CREATE FUNCTION own(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1';
    CREATE FUNCTION abs(text) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
    CREATE FUNCTION own_equal(int, int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 = $2';
    CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = own_equal);
    CREATE COLLATION own_collation (locale = 'C');
    CREATE TYPE mood AS ENUM ('sad', 'ok');
    CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE TYPE pair AS (x int, y int);
    CREATE TABLE of_own (a int PRIMARY KEY, m mood, p positive, q pair, c text COLLATE own_collation);
    CREATE TEMPORARY TABLE passing (a int);
"""
SIMPLE = (
    "Only columns, constants, built-in operators, built-in data types, built-in collations, and immutable built-in "
    "functions are allowed."
)

IN_THE_SERVERS_WORDS = [
    "FOR ALL TABLES WHERE (a > 1)",
    "FOR TABLE t WHERE a > 1",
    "FOR TABLE t WHERE (a > 1) AND (a < 9)",
    "FOR TABLE t (a + 1)",
    "FOR TABLE t (lower(b))",
    "FOR TABLE t WHERE (public.own(a) > 1)",
    "FOR TABLE t WHERE (random() < 0.5)",
    "FOR TABLE t WHERE (a = (SELECT 1))",
    "FOR TABLE t WHERE (tableoid = 1)",
    "FOR TABLE t WHERE (b COLLATE public.own_collation > 'x')",
    "FOR TABLE of_own WHERE (c = 'x')",
    "FOR TABLE of_own WHERE (c IS NULL)",
    "FOR TABLE of_own WHERE (c COLLATE \"C\" > 'x')",
    "FOR TABLE of_own WHERE (m = 'sad')",
    "FOR TABLE of_own WHERE (p > 1)",
    "FOR TABLE of_own WHERE (q IS NULL)",
    "FOR TABLE of_own WHERE ((q).x > 1)",
    "FOR TABLE t WHERE ('sad'::mood = 'ok')",
]
"""Objects of CREATE PUBLICATION."""

IN_OTHER_WORDS = [
    # a file does not know which names are the server's own, only which are translated
    (
        "FOR TABLE t WHERE (own(a) > 1)",
        "User-defined or built-in mutable functions",
        "the function own is not translated",
    ),
    (
        "FOR TABLE t WHERE (abs(b) > 1)",
        "User-defined or built-in mutable functions",
        "function abs(text) does not exist",
    ),
    ("FOR TABLE t WHERE (a === 1)", "User-defined operators", "the operator === is not translated"),
    ("FOR TABLE t WHERE (a OPERATOR(public.===) 1)", "User-defined operators", "OPERATOR is not translated"),
    (
        "FOR TABLE t WHERE (b COLLATE own_collation > 'x')",
        "User-defined collations",
        'COLLATE "own_collation" is not translated',
    ),
    # the server sees a check of the domain first
    ("FOR TABLE t WHERE (a::positive > 1)", SIMPLE, "User-defined types are not allowed."),
    # PostgreSQL says so where several schemas are listed
    (
        "FOR TABLES IN SCHEMA public WHERE (a > 1)",
        'syntax error at or near "WHERE"',
        "WHERE clause not allowed for schema",
    ),
    ("FOR TABLES IN SCHEMA public (a)", 'syntax error at or near "("', "column specification not allowed for schema"),
    # a temporary table is its session's: nobody else sees it
    ("FOR TABLE passing", "not supported for temporary tables", 'relation "public.passing" does not exist'),
]
"""Objects, a part of the server's message, a part of ours."""


@pytest.fixture(scope="module")
def server(postgresql_server: PostgresServer) -> Iterator[Publisher]:
    """A database with things of its own in it."""
    publisher = Publisher(postgresql_server, f"refusals_{os.getpid()}")
    try:
        publisher.execute(SCHEMA)
        yield publisher
    finally:
        publisher.drop()


def refused_by(server: Publisher, text: str) -> str:
    """The server's message and detail."""
    with pytest.raises(psycopg.Error) as error:
        server.execute(text)
    return "\n".join(filter(None, (error.value.diag.message_primary, error.value.diag.message_detail)))


def refused_here(server: Publisher, text: str) -> str:
    """The message of what happens before there is a slot."""
    with Server(server.conninfo, application_name="test") as publisher:

        def types(wanted: Sequence[tuple[int, int]]) -> list[ColumnType]:
            catalog = publisher.types({oid for oid, _ in wanted})
            return [resolve(oid, typmod, catalog) for oid, typmod in wanted]

        def start() -> None:
            routing = Routing(parse(text, "f.sql"), read_relations(publisher))
            ReappliedRoutes({}, routing, EntryFilterCompiler(types, None, routing.relations.encoding), lambda: routing)

        with pytest.raises(BridgeError) as error:
            start()
    return str(error.value)


@pytest.mark.parametrize("objects", IN_THE_SERVERS_WORDS)
def test_in_the_servers_words(server, objects):
    """Ours has the place before it, or the expression after it."""
    text = f"CREATE PUBLICATION p {objects}"
    message, _, detail = refused_by(server, text).partition("\n")
    ours = refused_here(server, text)
    assert message in ours
    assert detail in ours


@pytest.mark.parametrize(("objects", "said", "says"), IN_OTHER_WORDS)
def test_in_other_words(server, objects, said, says):
    text = f"CREATE PUBLICATION p {objects}"
    assert said in refused_by(server, text)
    assert says in refused_here(server, text)
