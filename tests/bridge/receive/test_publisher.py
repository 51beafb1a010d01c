"""The server's version, slots, missing publications, and which tables publications have."""

from __future__ import annotations

import time

import psycopg
import pytest
from psycopg import sql

from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.publication.published_table import PublishedColumn, PublishedTable
from pgbridge.bridge.receive.publisher import Publisher, quoted_name, wal_level_refusal
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.protocol.lsn import Lsn
from tests.bridge.receive.published_tables import columns, published, refusal

INT4, TEXT = 23, 25


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
    with psycopg.connect(private_server.conninfo(), autocommit=True) as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'refused'"
        deadline = time.monotonic() + 30
        while connection.execute(query).fetchall():  # a backend takes a moment to notice its client's end
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("version", "levels", "in_recovery", "refused"),
    [
        (180006, ("logical", "logical"), False, None),
        (180006, ("replica", "replica"), False, 'wal_level is "replica", not "logical"'),
        (190000, ("replica", "replica"), False, None),
        (190000, ("replica", "logical"), False, None),
        (190000, ("minimal", "minimal"), False, 'wal_level is "minimal", not "replica" or "logical"'),
        (190000, ("replica", "logical"), True, None),
        (190000, ("logical", "replica"), True, 'effective_wal_level is "replica": its primary has no logical slot'),
    ],
)
def test_wal_level_on_demand(version, levels, in_recovery, refused):
    """From 19 on the first logical slot switches decoding on; a standby follows its primary (logicalctl.c)."""
    error = wal_level_refusal(version, *levels, in_recovery=in_recovery)
    assert (error is None) == (refused is None)
    if error is not None:
        assert refused in error.message
        assert error.hint


def test_version_that_is_not_served(publisher, monkeypatch):
    monkeypatch.setattr("pgbridge.bridge.receive.publisher.LOWEST_VERSION", 990000)
    with pytest.raises(PublisherError, match=r"the publisher is PostgreSQL \d\d; the lowest supported is 14"):
        Publisher(publisher.conninfo, application_name="test")


def test_lost_connection(asked, publisher):
    """Every question may be the first after a restart of the server."""
    publisher.query("SELECT pg_terminate_backend(%s, 5000)", (asked.connection.info.backend_pid,))
    error = refusal(asked, "p")
    assert str(error).startswith("cannot read the publisher's catalog: ")
    assert error.retry


def test_table_with_all_its_columns(asked, publisher):
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
    quoted = quoted_name(name)
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


def test_a_look_does_not_wait_for_a_lock(publisher):
    """Nor does it leave its timeout behind."""
    publisher.execute("CREATE TABLE locked (id int PRIMARY KEY); CREATE PUBLICATION p_locked FOR TABLE locked")
    with publisher.connect() as other, other.transaction():
        other.execute("LOCK TABLE locked")
        with Publisher(publisher.conninfo, application_name="test") as looking:
            with pytest.raises(PublisherError, match="lock timeout"):
                looking.picture(["p_locked"], {})
            assert looking.connection.execute("SHOW lock_timeout").fetchone() == ("0",)
