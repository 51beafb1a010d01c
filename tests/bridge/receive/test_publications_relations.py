"""The catalog's facts, as the server has them."""

from __future__ import annotations

import psycopg
import pytest

from pgbridge.bridge.publication.tables import Collation, Relations
from pgbridge.bridge.receive.publications import read_relations
from pgbridge.bridge.receive.publisher import Publisher as Server


def relations(publisher) -> Relations:
    with Server(publisher.conninfo, application_name="test") as server:
        return read_relations(server)


def names(found) -> list[str]:
    return [relation.name for relation in found]


def test_what_is_publishable(publisher):
    """Permanent tables outside the system's schemas, and partitioned ones; the rest is known by its name."""
    publisher.execute(
        "CREATE TABLE t (a int); CREATE UNLOGGED TABLE u (a int); CREATE VIEW v AS SELECT 1;"
        "CREATE TABLE p (a int) PARTITION BY RANGE (a); CREATE SEQUENCE s"
    )
    found = relations(publisher)
    assert names(found.publishable) == ["p", "t"]
    assert {relation.name: relation.relkind for relation in found.by_relid.values()} == {
        "p": "p", "s": "S", "t": "r", "u": "r", "v": "v"
    }  # fmt: skip
    assert {"public", "pg_catalog"} <= found.schemas
    assert found.by_name["public", "t"].qualified_name == "public.t"


@pytest.mark.parametrize(
    ("identity", "columns"),
    [
        ("DEFAULT", {"a", "b"}),
        ("FULL", {"a", "b", "c", "d"}),
        ("NOTHING", set()),
        ("USING INDEX unique_c", {"c"}),
    ],
)
def test_replica_identity(publisher, identity, columns):
    publisher.execute("CREATE TABLE t (a int, b int, c int NOT NULL, d int, PRIMARY KEY (a, b) INCLUDE (d))")
    publisher.execute("CREATE UNIQUE INDEX unique_c ON t (c) INCLUDE (d)")
    publisher.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    assert relations(publisher).by_name["public", "t"].identity_columns == columns


def test_deferrable_key_is_no_identity(publisher):
    publisher.execute("CREATE TABLE t (a int PRIMARY KEY DEFERRABLE)")
    assert relations(publisher).by_name["public", "t"].identity_columns == set()


def test_columns(publisher):
    publisher.execute("CREATE TABLE t (a numeric(5,2), gone int, b text, s int GENERATED ALWAYS AS (1) STORED)")
    publisher.execute("ALTER TABLE t DROP COLUMN gone")
    columns = relations(publisher).by_name["public", "t"].columns
    assert [(column.attnum, column.name, column.generated) for column in columns] == [
        (1, "a", ""),
        (3, "b", ""),
        (4, "s", "s"),
    ]
    assert (columns[0].type_oid, columns[0].typmod) == (1700, (5 << 16 | 2) + 4)


def test_collations(publisher):
    """Collations tell whether text is compared as its bytes are."""
    publisher.execute('CREATE TABLE t (a int, b text, c text COLLATE "C", d text COLLATE "POSIX")')
    found = {column.name: column.collation for column in relations(publisher).by_name["public", "t"].columns}
    assert found["a"] is None
    assert found["c"] == Collation("pg_catalog.C", True, "c", "C", True)
    assert found["d"] == Collation("pg_catalog.POSIX", True, "c", "POSIX", True)
    default = found["b"]
    assert default is not None
    (collate,) = publisher.query("SELECT datcollate FROM pg_database WHERE datname = current_database()")
    assert default.name == "pg_catalog.default"
    if default.provider == "c":
        assert default.bytewise == (collate[0] in {"C", "POSIX"})


def test_icu_collations(publisher):
    try:
        publisher.execute("CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("needs a server with ICU")
    publisher.execute('CREATE TABLE t (a text COLLATE "und-x-icu", b text COLLATE blind)')
    columns = relations(publisher).by_name["public", "t"].columns
    assert [(item.name, item.deterministic, item.bytewise) for column in columns if (item := column.collation)] == [
        ("pg_catalog.und-x-icu", True, False),
        ("public.blind", False, False),
    ]
