"""Types and attributes as the server's catalog has them."""

from __future__ import annotations

import psycopg
import pytest

from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.protocol.values.pg_type import BUILTIN, TypeInfo
from tests.bridge.receive.published_tables import published

INT4, TEXT = 23, 25


def test_builtin_types_are_not_asked_for(asked):
    asked.connection.close()
    assert asked.types([INT4, TEXT]) == dict(BUILTIN)


def test_types_with_all_they_are_made_of(asked, publisher):
    """Enums, domains over domains, composites, ranges, and arrays of each; names of schemas as they are."""
    publisher.execute(
        'CREATE SCHEMA "S x"; CREATE TYPE "S x".mood AS ENUM (\'sad\'); CREATE DOMAIN price AS numeric(12,2);'
        "CREATE DOMAIN cheap AS price CHECK (VALUE < 5); CREATE TYPE pair AS (a int, b text);"
        "CREATE TYPE span AS RANGE (subtype = float8);"
        'CREATE TABLE t (m "S x".mood, c cheap, p pair, s span, ms "S x".mood[], cs cheap[], ps pair[])'
        "; CREATE PUBLICATION p FOR TABLE t"
    )
    table = published(asked, "p")["public.t"]
    types = asked.types({column.type_oid for column in table.columns})
    by_name = {info.name: info for oid, info in types.items() if oid not in BUILTIN}
    oids = {name: info.oid for name, info in by_name.items()}
    assert all(types[info.oid] is info for info in by_name.values())
    assert by_name.keys() >= {"mood", "_mood", "cheap", "_cheap", "price", "pair", "_pair", "span"}
    assert by_name["mood"] == TypeInfo(oids["mood"], "mood", "S x", "e")
    assert by_name["cheap"].basetype == oids["price"]
    assert (by_name["price"].basetype, by_name["price"].typmod) == (1700, (12 << 16) + 2 + 4)
    assert (by_name["pair"].typtype, by_name["span"].subtype) == ("c", 701)
    assert [by_name[f"_{name}"].element for name in ("mood", "cheap", "pair")] == [
        oids["mood"],
        oids["cheap"],
        oids["pair"],
    ]
    assert [column.type_oid for column in table.columns] == [
        oids[name] for name in ("mood", "cheap", "pair", "span", "_mood", "_cheap", "_pair")
    ]


def test_type_that_is_gone(asked):
    """It was dropped since: no entry, and no error."""
    assert 4_000_000_000 not in asked.types([4_000_000_000])


def test_attributes(asked, publisher):
    """The value that rows from before ADD COLUMN have, and where they may have others."""
    publisher.execute("""
        CREATE TABLE t (id int PRIMARY KEY, gone int);
        CREATE DOMAIN filled_in AS int DEFAULT 9;
        INSERT INTO t VALUES (1, 1);
        ALTER TABLE t DROP gone, ADD plain text, ADD constant text DEFAULT 'a "b", c\\d',
            ADD list int[] DEFAULT '{1,NULL}', ADD at timestamptz DEFAULT '2024-01-02 03:04:05+01',
            ADD of_domain filled_in, ADD null_too int DEFAULT NULL,
            ADD area box DEFAULT '((1,1),(0,0))', ADD areas box[] DEFAULT '{((1,1),(0,0));((2,2),(1,1))}',
            ADD empty text DEFAULT '';
        ALTER TABLE t ALTER at DROP DEFAULT
    """)
    ((relid,),) = publisher.query("SELECT 't'::regclass::oid::int")
    found = {attribute.name: attribute for attribute in asked.attributes(relid)}
    assert [attribute.attnum for attribute in asked.attributes(relid)] == list(range(1, 12))
    assert found[None].attnum == 2
    filled = {name: attribute.fill for name, attribute in found.items() if attribute.fill is not None}
    assert filled == {
        "constant": b'a "b", c\\d',
        "list": b"{1,NULL}",
        "at": b"2024-01-02 02:04:05+00",
        "of_domain": b"9",
        "area": b"(1,1),(0,0)",
        "areas": b"{(1,1),(0,0);(2,2),(1,1)}",
        "empty": b"",
    }
    assert all(attribute.fill_known for attribute in found.values())
    publisher.execute("ALTER TABLE t ADD volatile float DEFAULT random()")  # rewrites the table
    again = {attribute.name: attribute for attribute in asked.attributes(relid)}
    assert {name for name, attribute in again.items() if not attribute.fill_known} == {"at", "volatile"}
    # `at` has no default any more, but it had one
    assert all(again[name].fill == filled[name] for name in filled if name != "at")
    assert asked.attributes(0) == ()


@pytest.mark.parametrize(("encoding", "fill"), [("LATIN1", "caf\u00e9".encode()), ("SQL_ASCII", b"caf\xe9")])
def test_defaults_in_another_encoding(postgresql_server, publisher, encoding, fill):
    """In UTF-8, as the stream has them; of a SQL_ASCII database the bytes that there are, also in an expression."""
    name = f"{publisher.name}_other"
    publisher.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING {encoding} LOCALE 'C'")
    with (
        psycopg.connect(postgresql_server.conninfo(name), client_encoding=encoding, autocommit=True) as connection,
        Publisher(postgresql_server.conninfo(name), application_name="test") as opened,
    ):
        connection.execute(
            b"CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE DOMAIN word AS text CHECK (true);"
            b"ALTER TABLE t ADD c text DEFAULT 'caf\xe9', ADD d text DEFAULT 'd'"
        )
        ((relid,),) = connection.execute("SELECT 't'::regclass::oid::int")
        assert [each.fill for each in opened.attributes(relid)] == [None, fill, b"d"]
        connection.execute(b"ALTER TABLE t ADD e word DEFAULT 'caf\xe9'")  # which may rewrite it
        (column,) = [each for each in opened.attributes(relid) if each.name == "e"]
        known = encoding == "LATIN1" or column.fill is not None
        assert (column.fill, column.fill_known) == (fill if known else None, known)


def test_columns_that_a_column_list_leaves_out(asked, publisher):
    """Also the list of a table that it is a partition of, whose columns have other numbers."""
    publisher.needs(15)
    publisher.execute("""
        CREATE TABLE root (gone int, id int, a int, b int) PARTITION BY LIST (id);
        ALTER TABLE root DROP gone;
        CREATE TABLE leaf PARTITION OF root FOR VALUES IN (1);
        CREATE TABLE t (id int, a int);
        CREATE PUBLICATION listed FOR TABLE root (id, b) WITH (publish_via_partition_root);
        CREATE PUBLICATION whole FOR TABLE t;
    """)
    unlisted = {}
    for name in ("root", "leaf", "t"):
        ((relid,),) = publisher.query(f"SELECT '{name}'::regclass::oid::int")
        unlisted[name] = [a.name for a in asked.attributes(relid) if a.name is not None and a.unlisted]
    assert unlisted == {"root": ["a"], "leaf": ["a"], "t": []}


def test_attributes_of_a_partitioned_table(asked, publisher):
    """It has no rows, so its partitions have what their rows have."""
    publisher.execute("""
        CREATE TABLE root (id int) PARTITION BY LIST (id);
        CREATE TABLE leaf PARTITION OF root FOR VALUES IN (1);
        INSERT INTO root VALUES (1);
        ALTER TABLE root ADD c int DEFAULT 5
    """)
    ((relid,),) = publisher.query("SELECT 'root'::regclass::oid::int")
    assert [(a.name, a.fill) for a in asked.attributes(relid)] == [("id", None), ("c", b"5")]
