"""What is published of a table: filters for Spark, or a server's, of real tables."""

from __future__ import annotations

import pytest

from bridge.batch.row_filters import RowFilters, ServerFilters
from bridge.config.config import Subscription
from bridge.lake.changes.entry_filters import AnyOf, EntryFilterCompiler
from bridge.publication.definitions import parse
from bridge.publication.routing import Routing
from bridge.receive.filter_server import FilterServer
from bridge.receive.publications import read_relations
from bridge.receive.publisher import Publisher as Server
from bridge.rowfilter.row_filter import RowFilterError
from protocol.values.types import resolve
from tests.bridge.publication.server_publications import routing


@pytest.fixture
def entry_of(publisher):
    """The entry of a table by a text of definitions."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, n int, note text)")
    publisher.execute("CREATE TABLE other (id int PRIMARY KEY)")

    def made(text, name="t"):
        return {entry.target.name: entry for entry in routing(publisher, text).targets.values()}[name]

    return made


def types(wanted):
    return [resolve(oid, typmod, {}) for oid, typmod in wanted]


def test_any_of_several_filters(spark, entry_of):
    """NULL in one does not hide that another is true."""
    text = "CREATE PUBLICATION p FOR TABLE t WHERE (n > 5); CREATE PUBLICATION q FOR TABLE t WHERE (id = 1)"
    found = EntryFilterCompiler(types, None).compile(entry_of(text))
    assert isinstance(found, RowFilters)
    either = found.insert
    assert isinstance(either, AnyOf)
    assert either.columns == {"n", "id"}
    from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

    frame = spark.sql("VALUES (1, NULL), (2, 6), (3, 1), (4, NULL) AS t(id, n)")
    matching = frame.filter(F.coalesce(either.to_spark(F.col), F.lit(False)))
    assert sorted(row.id for row in matching.collect()) == [1, 2]


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("note ILIKE 'a%'", 'filter_server = "publisher" has the PostgreSQL server compute it'),
        ("now() > '2020-01-01'", ""),  # which no server does
    ],
)
def test_what_is_not_translated_is_refused_with_the_way_out(entry_of, expression, hint):
    entry = entry_of(f"CREATE PUBLICATION p FOR TABLE t WHERE ({expression})")
    with pytest.raises(RowFilterError) as caught:
        EntryFilterCompiler(types, None).compile(entry)
    assert caught.value.hint == hint


@pytest.mark.parametrize(("locale", "translated"), [("C", True), ("C.UTF-8", False)])
def test_case_by_the_builtin_provider(postgresql_server, publisher, locale, translated):
    """Of "C" it is ASCII's; the others have the tables of the server's Unicode."""
    name = f"{publisher.name}_builtin"
    with postgresql_server.connect() as admin:
        if admin.info.server_version < 170000:
            pytest.skip("needs PostgreSQL 17")
        admin.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE '{locale}'".encode()
        )
    with postgresql_server.connect(name) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        assert connection.execute("SELECT lower('Ä' COLLATE \"default\") = 'Ä'").fetchone() == (translated,)
    text = "CREATE PUBLICATION p FOR TABLE t WHERE (lower(note) = 'a') WITH (publish = 'insert')"
    with Server(postgresql_server.conninfo(name), application_name="test") as server:
        (entry,) = Routing(parse(text, "f.sql"), read_relations(server)).targets.values()
    compiler = EntryFilterCompiler(types, None)
    if translated:
        assert isinstance(compiler.compile(entry), RowFilters)
    else:
        with pytest.raises(RowFilterError, match="only the server knows"):
            compiler.compile(entry)


def test_what_is_not_translated_is_the_servers(publisher, entry_of):
    """Of a table of which one filter is, all are; what they look at is known exactly, for the identity's sake."""
    of_server = "lpad('note', id, 'n') ILIKE 'note%'"
    text = (
        "CREATE PUBLICATION p FOR TABLE t WHERE (id > 3), other WHERE (id > 7);"
        f"CREATE PUBLICATION q FOR TABLE t WHERE ({of_server});"
    )
    subscription = Subscription(
        name="s",
        connection=publisher.conninfo,
        publications=("x",),
        warehouse="lake",
        filter_server="publisher",
    )
    with FilterServer(subscription) as server:
        compiler = EntryFilterCompiler(types, server)
        assert isinstance(compiler.compile(entry_of(text, "other")), RowFilters)
        found = compiler.compile(entry_of(text))
        with pytest.raises(RowFilterError, match=r"mutable functions are not allowed"):
            compiler.compile(entry_of("CREATE PUBLICATION p FOR TABLE t WHERE (now() > '2020-01-01')"))
    assert isinstance(found, ServerFilters)
    assert found.columns == {"id"}
    assert found.update == found.insert == found.delete
    assert compiler.columns_of(of_server) == {"id"}
