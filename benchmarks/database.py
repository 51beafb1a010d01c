"""A publishing database that exists for the time of a measurement, and its slots."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbridge.bridge.demo.server import EmbeddedPostgres

    Connection = psycopg.Connection[tuple[Any, ...]]


@contextmanager
def database(server: EmbeddedPostgres, dbname: str) -> Iterator[Connection]:
    """Create a database and connect to it; drop it afterwards with its slots."""
    name = sql.Identifier(dbname)
    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(name))
        try:
            with psycopg.connect(server.conninfo(dbname), autocommit=True) as connection:
                yield connection
        finally:
            drop_slots(admin, dbname)
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def drop_slots(connection: Connection, dbname: str, slot_name: str | None = None) -> None:
    """Drop a database's slots, or one of them. Their walsenders may not have ended yet."""
    of = "WHERE database = %(dbname)s AND slot_name = coalesce(%(slot_name)s, slot_name)"
    names = {"dbname": dbname, "slot_name": slot_name}
    connection.execute(
        f"SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots {of}"
        " AND active_pid IS NOT NULL".encode(),
        names,
    )
    connection.execute(f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots {of}".encode(), names)


def insert_lsn(connection: Connection) -> Lsn:
    """Return the end of the WAL: everything that has committed lies before it."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def durable_lsn(connection: Connection, slot_name: str) -> Lsn:
    """Return the LSN up to which a slot's subscriber has flushed everything; 0 without the slot."""
    row = connection.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (slot_name,)
    ).fetchone()
    return Lsn(0) if row is None else Lsn.parse(row[0])
