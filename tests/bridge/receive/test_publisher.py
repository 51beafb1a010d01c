"""What is published, as PostgreSQL's own subscriber would see it: the server's catalog and errors are the judges."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from bridge.demo.server import EmbeddedPostgres
from bridge.errors import PublisherError
from bridge.publication.published_table import PublishedColumn, PublishedTable
from bridge.receive.publisher import Publisher, psql_name
from protocol.lsn import Lsn
from protocol.values.types import BUILTIN, TypeInfo

INT4, TEXT = 23, 25


@pytest.fixture
def asked(publisher):
    """The publisher's catalog as the bridge reads it."""
    with Publisher(publisher.conninfo, application_name="test") as opened:
        yield opened


def published(asked: Publisher, *publications: str) -> dict[str, PublishedTable]:
    """The tables by their qualified names, which they are sorted by."""
    tables = asked.tables(publications)
    assert [(t.namespace, t.name) for t in tables] == sorted((t.namespace, t.name) for t in tables)
    return {table.qualified_name: table for table in tables}


def columns(table: PublishedTable) -> list[str]:
    return [column.name for column in table.columns]


def key(table: PublishedTable) -> list[str]:
    return [column.name for column in table.columns if column.in_replica_identity_index]


def refusal(asked: Publisher, *publications: str) -> PublisherError:
    with pytest.raises(PublisherError) as caught:
        asked.tables(publications)
    return caught.value


# --- the server -------------------------------------------------------------------------------------------------------


def test_server(asked, publisher):
    assert asked.version == asked.connection.info.server_version
    assert asked.database == publisher.name


def test_flush_lsn_moves_with_the_wal(asked, publisher):
    before = asked.flush_lsn()
    publisher.execute("CREATE TABLE t (n int)")
    assert before < asked.flush_lsn() <= Lsn.parse(publisher.query("SELECT pg_current_wal_lsn()::text")[0][0])


@pytest.fixture
def private_server():
    """A server whose wal_level is too low."""
    with EmbeddedPostgres(settings={"wal_level": "replica"}, fsync=False) as server:
        yield server


def test_wal_level(private_server):
    """Said on connecting, before a slot is tried; and no session is left behind."""
    with pytest.raises(PublisherError) as caught:
        Publisher(private_server.conninfo(), application_name="refused")
    assert str(caught.value).startswith('the publisher\'s wal_level is "replica", not "logical"')
    assert caught.value.hint == "run on the server: ALTER SYSTEM SET wal_level = logical; then restart it"
    assert not caught.value.retry
    with psycopg.connect(private_server.conninfo()) as connection:
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'refused' AND pg_sleep(0.05) IS NOT NULL"
        )
        assert connection.execute(query).fetchone() == (0,)


def test_version_that_is_not_served(publisher, monkeypatch):
    monkeypatch.setattr("bridge.receive.publisher.LOWEST_VERSION", 990000)
    with pytest.raises(PublisherError, match=r"the publisher is PostgreSQL \d\d; the lowest supported is 14"):
        Publisher(publisher.conninfo, application_name="test")


def test_lost_connection(asked, publisher):
    """Every question may be the first after a restart of the server."""
    publisher.query("SELECT pg_terminate_backend(%s, 5000)", (asked.connection.info.backend_pid,))
    error = refusal(asked, "p")
    assert str(error).startswith("cannot read the publisher's catalog (sql/missing_publications.sql): ")
    assert error.retry


def test_slot(asked, publisher):
    assert asked.slot(f"{publisher.name}_none") is None
    name = f"{publisher.name}_slot"
    query = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
    lsn = publisher.query(query, (name,))[0][0]
    slot = asked.slot(name)
    assert (slot.plugin, slot.slot_type, slot.database) == ("pgoutput", "logical", publisher.name)
    assert (slot.active, slot.active_pid, slot.wal_status) == (False, None, "reserved")
    assert slot.confirmed_flush_lsn == Lsn.parse(lsn)


def test_physical_slot(asked, publisher):
    name = f"{publisher.name}_physical"
    publisher.query("SELECT pg_create_physical_replication_slot(%s)", (name,))
    try:
        slot = asked.slot(name)
        assert (slot.slot_type, slot.database, slot.confirmed_flush_lsn) == ("physical", None, None)
    finally:
        publisher.query("SELECT pg_drop_replication_slot(%s)", (name,))


# --- tables of publications -------------------------------------------------------------------------------------------


def test_table_as_it_stands(asked, publisher):
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, name text, price numeric(12,2)); CREATE PUBLICATION p FOR TABLE t"
    )
    relid = publisher.query("SELECT 't'::regclass::oid::int")[0][0]
    assert asked.tables(["p"]) == [
        PublishedTable(
            relid,
            "public",
            "t",
            "r",
            "d",
            (
                PublishedColumn("id", INT4, -1, in_primary_key=True, in_replica_identity_index=False),
                PublishedColumn("name", TEXT, -1, in_primary_key=False, in_replica_identity_index=False),
                PublishedColumn(
                    "price", 1700, (12 << 16) + 2 + 4, in_primary_key=False, in_replica_identity_index=False
                ),
            ),
            (),
        )
    ]


def test_nothing_published(asked, publisher):
    publisher.execute("CREATE PUBLICATION p")
    assert asked.tables(["p"]) == []


def test_missing_publication(asked, publisher):
    """From 18 on, where the walsender warns, the others count; before it is named, and if several are, all of them."""
    publisher.needs(16)
    publisher.execute("CREATE TABLE t (id int); CREATE PUBLICATION there FOR TABLE t")
    asked.version = 180000
    wanted = ["a", "there", 'Not "there"']
    assert (asked.missing(wanted), asked.existing(wanted)) == (["a", 'Not "there"'], ["there"])
    assert [table.name for table in asked.tables(wanted)] == ["t"]
    assert asked.tables(["a", "b"]) == []
    asked.version = 170000
    error = refusal(asked, "there", 'Not "there"')
    assert str(error).startswith('publication "Not "there"" does not exist on the publisher, and PostgreSQL before 18')
    assert error.hint == ('run in the database of the connection: CREATE PUBLICATION "Not ""there""" FOR TABLE …;')
    assert not error.retry
    assert 'publications "a", "b" do not exist' in str(refusal(asked, "a", "there", "b"))


def test_publication_names_are_taken_literally(asked, publisher):
    publisher.execute('CREATE TABLE t (n int); CREATE PUBLICATION "P, ""q"" %s" FOR TABLE t')
    assert list(published(asked, 'P, "q" %s')) == ["public.t"]


@pytest.mark.parametrize(
    "name", ["plain", "With Space", 'quo"te', "dot.ted", "ключ", "percent%s", "back\\slash", "it's"]
)
def test_names_of_tables_and_columns(asked, publisher, name):
    """Names are kept as they are."""
    quoted = psql_name(name)
    publisher.execute(
        f"CREATE SCHEMA {quoted}; CREATE TABLE {quoted}.{quoted} ({quoted} int PRIMARY KEY);"
        f"INSERT INTO {quoted}.{quoted} VALUES (7); CREATE PUBLICATION p FOR TABLE {quoted}.{quoted}"
    )
    table = published(asked, "p")[f"{name}.{name}"]
    assert (table.namespace, table.name, columns(table), table.primary_key) == (name, name, [name], (name,))
    query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(table.namespace, table.name))
    assert asked.connection.execute(query).fetchall() == [(7,)]


def test_for_all_tables(asked, publisher):
    """Not what cannot be published: system catalogs, temporary and unlogged tables, views, sequences."""
    publisher.execute(
        "CREATE SCHEMA s; CREATE TABLE t (n int); CREATE TABLE s.t (n int); CREATE UNLOGGED TABLE u (n int);"
        "CREATE VIEW v AS SELECT 1 AS n; CREATE SEQUENCE q; CREATE MATERIALIZED VIEW m AS SELECT 1 AS n;"
        "CREATE PUBLICATION p FOR ALL TABLES"
    )
    assert list(published(asked, "p")) == ["public.t", "s.t"]


def test_for_tables_in_schema(asked, publisher):
    """A table that is made later belongs to it, and is seen by the next question."""
    publisher.execute(
        "CREATE SCHEMA s; CREATE TABLE t (n int); CREATE TABLE s.a (n int); CREATE PUBLICATION p FOR TABLES IN SCHEMA s"
    )
    assert list(published(asked, "p")) == ["s.a"]
    publisher.execute("CREATE TABLE s.b (n int)")
    assert list(published(asked, "p")) == ["s.a", "s.b"]


# --- columns and filters ----------------------------------------------------------------------------------------------


def test_column_list(asked, publisher):
    """In the order of the table, whatever the list's; the key's columns are found in it."""
    publisher.execute("CREATE TABLE t (a int, id int PRIMARY KEY, b text); CREATE PUBLICATION p FOR TABLE t (b, id)")
    table = published(asked, "p")["public.t"]
    assert columns(table) == ["id", "b"]
    assert table.primary_key == ("id",)


def test_dropped_and_added_columns(asked, publisher):
    """The numbers of columns have gaps then, which a column list must not fall into."""
    publisher.execute(
        "CREATE TABLE t (a int, gone int, b int, c int); ALTER TABLE t DROP COLUMN gone, ADD COLUMN d int;"
        "CREATE PUBLICATION p FOR TABLE t; CREATE PUBLICATION q FOR TABLE t (d, b)"
    )
    assert columns(published(asked, "p")["public.t"]) == ["a", "b", "c", "d"]
    assert columns(published(asked, "q")["public.t"]) == ["b", "d"]


def test_different_column_lists(asked, publisher):
    """PostgreSQL's error, word for word: its own subscriber, asked to do the same, says so."""
    publisher.execute(
        "CREATE TABLE t (a int, b int, c int); CREATE PUBLICATION p FOR TABLE t (a, b);"
        "CREATE PUBLICATION q FOR TABLE t (a, c); CREATE PUBLICATION w FOR TABLE t"
    )
    text = 'cannot use different column lists for table "public.t" in different publications'
    for pair in (("p", "q"), ("q", "p"), ("p", "w"), ("w", "q")):
        assert str(refusal(asked, *pair)).startswith(text)
    with pytest.raises(psycopg.Error) as native:
        publisher.execute(
            f"CREATE SUBSCRIPTION {publisher.name} CONNECTION '{publisher.conninfo.replace(chr(39), chr(39) * 2)}'"
            " PUBLICATION p, q WITH (create_slot = false, slot_name = NONE, enabled = false)"
        )
    assert str(native.value).splitlines()[0] == text


def test_same_columns_by_different_publications(asked, publisher):
    """A list of all columns is no other list than none, and the order of a list means nothing."""
    publisher.execute(
        "CREATE TABLE t (a int, b int);"
        "CREATE PUBLICATION p FOR TABLE t (a, b); CREATE PUBLICATION q FOR TABLE t (b, a);"
        "CREATE PUBLICATION w FOR TABLE t; CREATE PUBLICATION s FOR TABLES IN SCHEMA public"
    )
    for pair in (("p", "q"), ("p", "w"), ("w", "s"), ("p", "q", "w", "s")):
        assert columns(published(asked, *pair)["public.t"]) == ["a", "b"]


def test_row_filter(asked, publisher):
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t WHERE (id > 5 AND id < 9)"
    )
    assert published(asked, "p")["public.t"].row_filters == ("((id > 5) AND (id < 9))",)


def test_row_filters_of_several_publications(asked, publisher):
    """Any of them lets a row pass; the same one twice is one."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t WHERE (id < 5);"
        "CREATE PUBLICATION q FOR TABLE t WHERE (id > 9); CREATE PUBLICATION r FOR TABLE t WHERE (id < 5)"
    )
    assert set(published(asked, "p", "q", "r")["public.t"].row_filters) == {"(id < 5)", "(id > 9)"}
    assert published(asked, "p", "r")["public.t"].row_filters == ("(id < 5)",)


@pytest.mark.parametrize("unfiltered", ["FOR TABLE t", "FOR ALL TABLES", "FOR TABLES IN SCHEMA public"])
def test_one_unfiltered_publication_removes_the_filter(asked, publisher, unfiltered):
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t WHERE (id < 5);"
        f"CREATE PUBLICATION q {unfiltered}"
    )
    for order in (("p", "q"), ("q", "p")):
        assert published(asked, *order)["public.t"].row_filters == ()


def test_row_filter_can_be_used_as_it_is(asked, publisher):
    """In a COPY's WHERE, with the bridge's search_path: what is not in pg_catalog comes with its schema."""
    publisher.execute(
        'CREATE TYPE mood AS ENUM (\'sad\', \'happy\'); CREATE TABLE t ("Mo od" mood, "x""y" text);'
        "INSERT INTO t VALUES ('happy', 'a'), ('sad', 'a'), ('happy', 'b');"
        'CREATE PUBLICATION p FOR TABLE t WHERE ("x""y" = \'a\' AND length("x""y") = 1)'
    )
    table = published(asked, "p")["public.t"]
    name = sql.Identifier(table.namespace, table.name)
    query = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(name, sql.SQL(table.row_filters[0]))
    assert asked.connection.execute(query).fetchone() == (2,)


def test_generated_columns(asked, publisher):
    """Not published, unless a column list names them or (18) publish_generated_columns = stored."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    assert columns(published(asked, "p")["public.t"]) == ["id"]
    if asked.version < 180000:
        return
    publisher.execute(
        "CREATE PUBLICATION q FOR TABLE t (id, twice);"
        "CREATE PUBLICATION r FOR TABLE t WITH (publish_generated_columns = stored)"
    )
    assert columns(published(asked, "q")["public.t"]) == ["id", "twice"]
    assert columns(published(asked, "q", "r")["public.t"]) == ["id", "twice"]
    assert "different column lists" in str(refusal(asked, "p", "r"))


# --- identities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("identity", "letter", "in_identity"),
    [("DEFAULT", "d", []), ("FULL", "f", []), ("NOTHING", "n", []), ("USING INDEX by_code", "i", ["code", "site"])],
)
def test_replica_identity(asked, publisher, identity, letter, in_identity):
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, note text, site int NOT NULL);"
        f"CREATE UNIQUE INDEX by_code ON t (site, code) INCLUDE (note); ALTER TABLE t REPLICA IDENTITY {identity};"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    table = published(asked, "p")["public.t"]
    assert table.replica_identity == letter
    assert table.primary_key == ("id",)
    assert key(table) == in_identity


def test_included_columns_are_no_part_of_a_key(asked, publisher):
    """Rows that differ in them alone are one row to the server, and to pgoutput's Relation message."""
    publisher.execute(
        "CREATE TABLE t (a int, b int, c int, PRIMARY KEY (b, a) INCLUDE (c)); CREATE PUBLICATION p FOR TABLE t"
    )
    assert published(asked, "p")["public.t"].primary_key == ("a", "b")


def test_key_outside_the_column_list(asked, publisher):
    """Allowed while only inserts are published: what of it is published is no key."""
    publisher.execute(
        "CREATE TABLE t (id int, a int, code int NOT NULL, site int NOT NULL, PRIMARY KEY (id, a));"
        "CREATE UNIQUE INDEX by_code ON t (code, site);"
        "CREATE PUBLICATION p FOR TABLE t (a, site) WITH (publish = 'insert');"
        "CREATE PUBLICATION q FOR TABLE t (a, id, site) WITH (publish = 'insert')"
    )
    one, other = published(asked, "p")["public.t"], published(asked, "q")["public.t"]
    assert (one.primary_key, one.cut_identity, one.has_identity) == ((), frozenset({"id", "a"}), False)
    assert (other.primary_key, other.cut_identity, other.has_identity) == (("id", "a"), frozenset(), True)
    publisher.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX by_code")
    other = published(asked, "q")["public.t"]
    assert (other.primary_key, other.index_columns) == (("id", "a"), ())
    assert other.cut_identity == frozenset({"code", "site"})
    publisher.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    assert published(asked, "p")["public.t"].cut_identity == frozenset()


# --- partitions -------------------------------------------------------------------------------------------------------

PARTITIONED = (
    "CREATE TABLE root (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);"
    "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE middle PARTITION OF root FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);"
    "CREATE TABLE inner_leaf PARTITION OF middle FOR VALUES FROM (10) TO (20);"
)


@pytest.mark.parametrize(
    ("definition", "tables"),
    [
        ("FOR TABLE root WITH (publish_via_partition_root)", {"public.root": "p"}),
        ("FOR TABLE root", {"public.inner_leaf": "r", "public.low": "r"}),
        ("FOR ALL TABLES WITH (publish_via_partition_root)", {"public.root": "p"}),
        ("FOR ALL TABLES", {"public.inner_leaf": "r", "public.low": "r"}),
        ("FOR TABLE middle WITH (publish_via_partition_root)", {"public.middle": "p"}),
        ("FOR TABLE low WITH (publish_via_partition_root)", {"public.low": "r"}),
    ],
)
def test_partitions(asked, publisher, definition, tables):
    """As their root, or as themselves; a leaf's key is the one it has from its root."""
    publisher.execute(f"{PARTITIONED} CREATE PUBLICATION p {definition}")
    found = published(asked, "p")
    assert {name: table.relkind for name, table in found.items()} == tables
    assert all(table.primary_key == ("id",) for table in found.values())


def test_root_and_leaf_by_different_publications(asked, publisher):
    """Changes come as the root's then: a leaf of its own would never get any (PostgreSQL 16 leaves it out)."""
    publisher.execute(
        f"{PARTITIONED} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root);"
        "CREATE PUBLICATION q FOR TABLE low"
    )
    if asked.version < 160000:
        pytest.skip("pg_get_publication_tables takes one publication at a time before 16")
    assert list(published(asked, "p", "q")) == ["public.root"]


def test_leaf_with_another_order_of_columns(asked, publisher):
    """A leaf that was attached has its own numbers of columns; as root, the root's count."""
    publisher.execute(
        "CREATE TABLE root (id int, a text, b text) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf (b text, gone int, id int, a text); ALTER TABLE leaf DROP COLUMN gone;"
        "ALTER TABLE root ATTACH PARTITION leaf FOR VALUES FROM (0) TO (10);"
        "CREATE PUBLICATION p FOR TABLE root (id, b) WITH (publish_via_partition_root);"
        "CREATE PUBLICATION q FOR TABLE leaf (id, b)"
    )
    assert columns(published(asked, "p")["public.root"]) == ["id", "b"]
    assert columns(published(asked, "q")["public.leaf"]) == ["b", "id"]


# --- types ------------------------------------------------------------------------------------------------------------


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
    """What rows from before a column have, where the catalog has it; and where they may have something else."""
    publisher.execute("""
        CREATE TABLE t (id int PRIMARY KEY, gone int);
        CREATE DOMAIN filled_in AS int DEFAULT 9;
        INSERT INTO t VALUES (1, 1);
        ALTER TABLE t DROP gone, ADD plain text, ADD constant text DEFAULT 'a "b", c\\d',
            ADD list int[] DEFAULT '{1,NULL}', ADD at timestamptz DEFAULT '2024-01-02 03:04:05+01',
            ADD of_domain filled_in, ADD null_too int DEFAULT NULL;
        ALTER TABLE t ALTER at DROP DEFAULT
    """)
    ((relid,),) = publisher.query("SELECT 't'::regclass::oid::int")
    found = {attribute.name: attribute for attribute in asked.attributes(relid)}
    assert [attribute.attnum for attribute in asked.attributes(relid)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert found[None].attnum == 2
    assert not found[None].filled
    missing = {name: attribute.missing for name, attribute in found.items() if attribute.has_missing}
    assert missing == {
        "constant": 'a "b", c\\d',
        "list": "{1,NULL}",
        "at": "2024-01-02 02:04:05+00",
        "of_domain": "9",
    }
    assert not any(attribute.filled for attribute in found.values())
    publisher.execute("ALTER TABLE t ADD volatile float DEFAULT random()")  # rewrites the table
    found = {attribute.name: attribute for attribute in asked.attributes(relid)}
    assert not any(attribute.has_missing for attribute in found.values())
    # and of the values of `at`, whose default is gone, nothing tells any more
    assert {name for name, attribute in found.items() if attribute.filled} == {
        *("constant", "list", "of_domain", "volatile")
    }
    assert asked.attributes(0) == ()


def test_attributes_of_a_partitioned_table(asked, publisher):
    """It has no rows, so its partitions have what their rows have."""
    publisher.execute("""
        CREATE TABLE root (id int) PARTITION BY LIST (id);
        CREATE TABLE leaf PARTITION OF root FOR VALUES IN (1);
        INSERT INTO root VALUES (1);
        ALTER TABLE root ADD c int DEFAULT 5
    """)
    ((relid,),) = publisher.query("SELECT 'root'::regclass::oid::int")
    assert [(a.name, a.missing) for a in asked.attributes(relid)] == [("id", None), ("c", "5")]
