"""The oracle itself is right: a native subscription on the run's server, followed until it is equal."""

from __future__ import annotations

import pytest

from pgbridge.protocol.lsn import Lsn
from tests.oracle.native import NativeSubscriber, dump_schema, text_rows


@pytest.fixture
def published(publisher):
    """A publisher with rows of some types and a publication of two tables."""
    publisher.execute("""
        CREATE TYPE mood AS ENUM ('glad', 'sad');
        CREATE TABLE t (
            id int PRIMARY KEY, flag boolean, padded char(4), raw bytea, at timestamptz, span interval,
            m mood, doubled int GENERATED ALWAYS AS (id * 2) STORED
        );
        CREATE TABLE nokey (n int);
        CREATE PUBLICATION p FOR TABLE t, nokey;
        INSERT INTO t VALUES
            (2, true, 'ab', '\\xdeadbeef', '2026-01-02 03:04:05+02', '1 day 02:00', 'sad'),
            (10, false, NULL, '', 'infinity', NULL, NULL);
    """)
    return publisher


def test_copy_and_stream_reach_the_subscriber(published):
    with NativeSubscriber(published.conninfo, ["p"]) as native:
        native.wait_caught_up()
        assert native.rows("public.t") == [
            ("10", "f", None, "\\x", "infinity", None, None),
            ("2", "t", "ab  ", "\\xdeadbeef", "2026-01-02 01:04:05+00", "1 day 02:00:00", "sad"),
        ]
        published.execute("UPDATE t SET id = 3 WHERE id = 2")
        published.execute("DELETE FROM t WHERE id = 10; INSERT INTO nokey VALUES (1), (1), (NULL)")
        native.wait_caught_up()
        assert native.rows("t", ["m", "id"]) == [("sad", "3")]
        assert native.rows("nokey") == [(None,), ("1",), ("1",)]
        assert native.rows("nokey") == text_rows(published.conninfo, "nokey")


def test_caught_up_means_up_to_the_lsn_at_the_call(published):
    with NativeSubscriber(published.conninfo, ["p"]) as native:
        ((before,),) = published.query("SELECT pg_current_wal_lsn()::text")
        published.execute("INSERT INTO nokey SELECT generate_series(1, 5000)")
        assert native.wait_caught_up() > Lsn.parse(before)
        assert native.query("SELECT count(*) FROM nokey") == [(5000,)]


def test_unreachable_lsn_is_reported_with_the_state(published):
    with (
        NativeSubscriber(published.conninfo, ["p"]) as native,
        pytest.raises(TimeoutError, match=r"has not caught up after 0\.5 s: confirmed .* of FFFFFFFF/0, tables \["),
    ):
        native.wait_caught_up(Lsn.parse("FFFFFFFF/0"), timeout_s=0.5)


def test_options_and_schema_of_the_caller_are_used(published):
    published.execute("CREATE PUBLICATION ids FOR TABLE t (id)")
    native = NativeSubscriber(
        published.conninfo,
        ["ids"],
        options={"copy_data": False, "binary": True, "two_phase": True},
        schema="CREATE TABLE t (id int PRIMARY KEY)",
        suffix="narrow",
    )
    with native:
        published.execute("INSERT INTO t (id) VALUES (7)")
        native.wait_caught_up()
        assert native.rows("t") == [("7",)], "what was there before was not to be copied"
        assert native.query(
            "SELECT subbinary, subtwophasestate FROM pg_subscription WHERE subname = %s", (native.name,)
        ) == [(True, "e")]


def test_nothing_is_left_on_the_publisher(published, postgresql_server):
    native = NativeSubscriber(published.conninfo, ["p"])
    native.drop()
    assert published.query("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []
    assert published.query("SELECT 1 FROM pg_database WHERE datname = %s", (native.name,)) == []


def test_dropped_while_its_workers_start(published):
    """A walsender that makes a copy's slot waits for all transactions, and DROP SUBSCRIPTION's for that slot's end."""
    native = NativeSubscriber(published.conninfo, ["p"], options={"enabled": False})
    native.execute("""
        CREATE FUNCTION linger() RETURNS event_trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_current_xact_id(); PERFORM pg_sleep(1); END $$;
        CREATE EVENT TRIGGER linger ON ddl_command_start WHEN TAG IN ('DROP SUBSCRIPTION') EXECUTE FUNCTION linger();
    """)
    native.execute(f"ALTER SUBSCRIPTION {native.name} ENABLE")
    native.drop()


def test_schema_comes_without_publications_and_psql_commands(published):
    schema = dump_schema(published.conninfo)
    assert "CREATE TABLE public.nokey" in schema
    assert "CREATE PUBLICATION" not in schema
    assert not [line for line in schema.splitlines() if line.startswith("\\")]
