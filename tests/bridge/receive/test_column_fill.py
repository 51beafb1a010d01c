"""What rows from before ADD COLUMN have: whatever is called known is what the server's rows have."""

from __future__ import annotations

from typing import Final

import pytest
from psycopg import sql

from pgbridge.bridge.receive.publisher import Publisher

TYPES: Final = """
CREATE TYPE mood AS ENUM ('ok', 'it''s'); CREATE DOMAIN checked AS int CHECK (VALUE < 100);
CREATE DOMAIN money2 AS numeric(6,2) DEFAULT 1.555; CREATE DOMAIN word AS text DEFAULT 'd' CHECK (VALUE <> '');
CREATE DOMAIN moody AS mood CHECK (VALUE <> 'ok'); CREATE DOMAIN altered AS int DEFAULT 1 CHECK (VALUE > 0);
CREATE FUNCTION own() RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1';
"""
CONSTANTS: Final = (
    *("a int DEFAULT 5", """b text DEFAULT 'it''s \\ and "'""", "c numeric(6,2) DEFAULT 1.555", "d float DEFAULT 1e30"),
    *("e int[] DEFAULT '{1,NULL}'", "f char(4) DEFAULT 'x'", "g varchar(3) DEFAULT 'abc'", "h bool DEFAULT true"),
    *("i timestamp DEFAULT '2024-1-2'", "j mood DEFAULT 'it''s'", "k int DEFAULT -7", "l int DEFAULT NULL", "m int"),
    *("n jsonb DEFAULT '{\"a\": 1}'", "o timestamptz DEFAULT '2024-01-02 03:04+01'", "p bytea DEFAULT '\\x00ff'"),
    *("q bigint DEFAULT 3", "r checked DEFAULT 3", "s moody DEFAULT 'it''s'", "t checked", "u text DEFAULT ''"),
    *("v money2", "w word", "x money2 DEFAULT 2", "y interval DEFAULT '1 day'", "z checked DEFAULT NULL"),
)
ADDED: Final = "ALTER TABLE t " + ", ".join(f"ADD {column}" for column in CONSTANTS)
VACUUMED: Final = "VACUUM FULL t"
SET_AT_ONCE: Final = (
    "ALTER TABLE t ADD a int, ALTER a SET DEFAULT 5, ADD b checked DEFAULT 1, ADD c checked, ALTER c SET DEFAULT 1"
)
HISTORIES: Final = (
    # statements, and the columns that are not known after them
    ((ADDED,), ""),
    ((VACUUMED, ADDED), ""),
    (("ALTER TABLE t ADD a int DEFAULT 5, ADD b int", VACUUMED), ""),
    (("ALTER TABLE t ADD a int DEFAULT 5, ADD b int", "ALTER TABLE t ALTER id TYPE bigint"), "a"),
    (("ALTER TABLE t ADD a int, ADD b checked; ALTER TABLE t ALTER a SET DEFAULT 5, ALTER b SET DEFAULT 5",), "a b"),
    (("ALTER TABLE t ADD a int", "ALTER TABLE t ALTER a SET DEFAULT 5"), ""),
    (("BEGIN; ALTER TABLE t ADD a int; ALTER TABLE t ALTER a SET DEFAULT 5; COMMIT",), ""),
    (("ALTER TABLE t ADD a int, ALTER a SET DEFAULT 5",), ""),
    ((SET_AT_ONCE,), "a c"),
    (("ALTER TABLE t ADD a int DEFAULT 5", "ALTER TABLE t ALTER a SET DEFAULT 6"), ""),
    (("ALTER TABLE t ADD a int DEFAULT 5", "ALTER TABLE t ALTER a DROP DEFAULT", VACUUMED), "a"),
    (("ALTER TABLE t ADD a int DEFAULT 5", VACUUMED, "ALTER TABLE t ALTER a SET DEFAULT 6"), "a"),
    (("ALTER TABLE t ADD a int DEFAULT 5, ADD b uuid DEFAULT gen_random_uuid()",), "b"),
    (("ALTER TABLE t ADD a int DEFAULT own() + 0, ADD b checked DEFAULT 2 + 3, ADD c checked DEFAULT own()",), "a b c"),
    (("ALTER TABLE t ADD a int GENERATED ALWAYS AS IDENTITY",), "a"),
    (("ALTER TABLE t ADD a int GENERATED ALWAYS AS (id * 2) STORED",), "a"),
    (("ALTER TABLE t ADD a altered", "ALTER DOMAIN altered SET DEFAULT 2", VACUUMED), "a"),
    (("ALTER TABLE t ADD a int", VACUUMED, "ALTER TABLE t ALTER a SET DEFAULT 5"), "a"),
    (("ALTER TABLE t ADD a int; TRUNCATE t; INSERT INTO t VALUES (1)", "ALTER TABLE t ADD b int DEFAULT 5"), ""),
    (("ALTER TABLE t ADD a int DEFAULT 5; ALTER TABLE t ALTER a TYPE bigint",), "a"),
)


def fills(publisher, catalog, slot):
    """The later columns of the table `t`, as the catalog knows them for a transaction."""
    ((relid,),) = publisher.query("SELECT 't'::regclass::oid::int")
    publisher.execute("INSERT INTO t (id) VALUES (9)")
    ((xid,),) = publisher.query("SELECT xmin::text::int FROM t WHERE id = 9")
    return [column for column in catalog.attributes(relid, xid, slot_name=slot) if column.attnum > 1]


@pytest.mark.parametrize("keyed", [True, False], ids=["with a key", "without index and TOAST table"])
def test_what_is_known_is_so(publisher, keyed):
    publisher.execute(TYPES)
    slot = publisher.name
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    with Publisher(publisher.conninfo, application_name="test") as catalog:
        for statements, unknown in HISTORIES:
            publisher.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id int{' PRIMARY KEY' if keyed else ''})")
            publisher.execute("INSERT INTO t VALUES (1)")
            for statement in statements:
                publisher.execute(statement)
            columns = fills(publisher, catalog, slot)
            for column in columns:
                name = sql.Identifier(str(column.name))
                text = sql.SQL("SELECT CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END FROM t WHERE id = 1")
                ((actual,),) = publisher.query(text.format(name).as_string())
                assert not column.fill_known or column.fill == (None if actual is None else actual.encode())
            assert {column.name for column in columns if not column.fill_known} == set(unknown.split()), statements
