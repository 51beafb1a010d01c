"""A database of a measurement goes with its slots, and slots tell what is durable."""

from __future__ import annotations

import psycopg
import pytest

from benchmarks.database import database, drop_slots, durable_lsn, insert_lsn


def names(server):
    with psycopg.connect(server.conninfo()) as connection:
        return {
            name
            for (name,) in connection.execute(
                "SELECT datname FROM pg_database UNION ALL SELECT slot_name FROM pg_replication_slots"
            )
        }


def slot(connection, name):
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))


def test_nothing_is_left_behind_even_after_an_error(private):
    def fail():
        with database(private, "bench_db") as connection:
            slot(connection, "bench_db_slot")
            assert {"bench_db", "bench_db_slot"} <= names(private)
            raise RuntimeError("in it")

    with pytest.raises(RuntimeError, match="in it"):
        fail()
    assert not {"bench_db", "bench_db_slot"} & names(private)


def test_one_slot_is_dropped(private):
    with database(private, "bench_db") as connection:
        slot(connection, "bench_db_1")
        slot(connection, "bench_db_2")
        drop_slots(connection, "bench_db", "bench_db_1")
        assert "bench_db_1" not in names(private)
        assert "bench_db_2" in names(private)


def test_lsns(private):
    with database(private, "bench_db") as connection:
        assert durable_lsn(connection, "bench_db_1") == 0
        slot(connection, "bench_db_1")
        confirmed = durable_lsn(connection, "bench_db_1")
        connection.execute("CREATE TABLE t ()")
        assert 0 < confirmed < insert_lsn(connection)
