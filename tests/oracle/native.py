"""PostgreSQL's own subscription as the oracle: what it has in its tables, pgbridge must have in Delta.

Publisher and subscriber are two databases of one server. There CREATE SUBSCRIPTION must not make the slot: it
would wait for the transaction that it runs in (documentation of CREATE SUBSCRIPTION, "Notes"). So the slot is
made first, on the publisher.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgbridge.bridge.demo.programs import Programs
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Row = tuple[str | None, ...]

TEXT_OUTPUT = {
    "DateStyle": "ISO,YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
}
"""Settings under which values are read: the same value always has the same text."""

# not SQL (psql's, since the minor releases of 2025-08), or unknown to servers before 17
_NOT_FOR_THE_SUBSCRIBER = re.compile(r"\\(un)?restrict .*|SET transaction_timeout = 0;")
_POLL_S = 0.05
_PROCESSES = b"""
SELECT pid, backend_type, application_name, wait_event FROM pg_stat_activity
WHERE pid IN (SELECT pid FROM pg_stat_subscription WHERE subname = %(name)s)
   OR backend_type = 'walsender' AND (application_name = %(name)s OR application_name LIKE (
      SELECT format('pg\\_%%s\\_sync\\_%%%%', oid) FROM pg_subscription WHERE subname = %(name)s))
"""


class DatabaseRows:
    """The rows of a database, for `differences`: of a publisher, where no native subscriber is needed.

    Args:
        conninfo: The database.
    """

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo

    def rows(self, table: str, columns: Iterable[str] | None = None) -> list[Row]:
        """A table's rows, as `text_rows` gives them."""
        return text_rows(self.conninfo, table, columns)

    def columns(self, table: str) -> list[str]:
        """A table's columns that replication carries, for a Delta table that may have kept more than these."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            return _columns(connection, table)


def _columns(connection: psycopg.Connection[tuple[Any, ...]], table: str) -> list[str]:
    query = (
        b"SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass"
        b" AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"
    )
    return [name for (name,) in connection.execute(query, (table,))]


def text_rows(conninfo: str, table: str, columns: Iterable[str] | None = None) -> list[Row]:
    """All rows of a table, sorted, each value as its type's output function writes it under `TEXT_OUTPUT`.

    Args:
        conninfo: The database.
        table: The table's name as SQL has it, e.g. `public.t1`.
        columns: Which columns, in this order; by default all that replication carries, in the table's order
            (no generated ones).

    Returns:
        Rows of text, None for NULL. Booleans are `t` and `f`, `char(n)` keeps its blanks: there is no cast.
    """
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for name, value in TEXT_OUTPUT.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        if columns is None:
            columns = _columns(connection, table)
        query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL(table))
        cursor = connection.execute(query)
        result = cursor.pgresult
        assert result is not None
        values = (
            tuple(result.get_value(row, column) for column in range(result.nfields)) for row in range(result.ntuples)
        )
        rows = [tuple(None if value is None else value.decode() for value in row) for row in values]
    return sorted(rows, key=lambda row: [(value is not None, value or "") for value in row])


def dump_schema(conninfo: str) -> str:
    """The SQL that makes a database's objects anew, without rows, publications, subscriptions and owners."""
    dump = Programs.find().run(
        "pg_dump",
        "--schema-only",
        "--no-owner",
        "--no-privileges",
        "--no-publications",
        "--no-subscriptions",
        f"--dbname={conninfo}",
    )
    return "\n".join(line for line in dump.splitlines() if not _NOT_FOR_THE_SUBSCRIBER.fullmatch(line))


def disable(connection: psycopg.Connection[tuple[Any, ...]], name: str, timeout_s: float = 60.0) -> None:
    """Disable a subscription whose publisher is on the same server, and wait for its processes' end.

    Then it can be dropped. While a copy's slot is being made, the walsender waits for every transaction of the server
    that writes, DROP SUBSCRIPTION's among them, and that waits for the slot, to drop it: for ever.

    Args:
        connection: To the subscriber, in autocommit mode.
        name: The subscription.
        timeout_s: How long to wait.

    Raises:
        TimeoutError: It took longer.
    """
    connection.execute(sql.SQL("ALTER SUBSCRIPTION {} DISABLE").format(sql.Identifier(name)))
    deadline = time.monotonic() + timeout_s
    while running := connection.execute(_PROCESSES, {"name": name}).fetchall():
        if time.monotonic() > deadline:
            raise TimeoutError(f"subscription {name} is disabled, and has processes after {timeout_s:g} s: {running}")
        time.sleep(_POLL_S)


class NativeSubscriber:
    """A database `<publisher>_<suffix>` that subscribes to the publisher's publications; a context manager.

    Args:
        publisher: A superuser's connection string for the publishing database.
        publications: The publications.
        options: CREATE SUBSCRIPTION's options over PostgreSQL's defaults, e.g. `{"binary": True}`.
        schema: SQL for the subscriber's tables; by default a copy of the publisher's. A publication with a
            column list may need another one.
        suffix: Tells several subscribers of one publisher apart.
    """

    def __init__(
        self,
        publisher: str,
        publications: Iterable[str],
        *,
        options: Mapping[str, str | bool] | None = None,
        schema: str | None = None,
        suffix: str = "native",
    ) -> None:
        options = dict(options or {})
        self.publisher = publisher
        self.name = f"{conninfo_to_dict(publisher)['dbname']}_{suffix}"
        self.conninfo = make_conninfo(publisher, dbname=self.name)
        schema = dump_schema(publisher) if schema is None else schema
        with psycopg.connect(publisher, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(self.name)))
            # With tables to copy, the worker itself asks for two_phase once they are ready (CreateSubscription in
            # subscriptioncmds.c): of what is prepared before, it would leave out the rows of tables that are not.
            two_phase = bool(options.get("two_phase")) and options.get("copy_data") is False
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', twophase => %s)", (self.name, two_phase)
            )
        self.execute(schema)
        choices: dict[str, str | bool] = {**options, "create_slot": False, "slot_name": self.name}
        self.execute(
            sql.SQL("CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION {} WITH ({})").format(
                sql.Identifier(self.name),
                sql.Literal(_from_inside(publisher)),
                sql.SQL(", ").join(map(sql.Identifier, publications)),
                sql.SQL(", ").join(
                    sql.SQL("{} = {}").format(sql.Identifier(key), sql.Literal(str(value)))
                    for key, value in choices.items()
                ),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def execute(self, statements: str | sql.Composed) -> None:
        """Run statements on the subscriber, ALTER SUBSCRIPTION for one."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(statements.encode() if isinstance(statements, str) else statements)

    def query(self, statement: str, parameters: tuple[Any, ...] | None = None) -> list[tuple[Any, ...]]:
        """Run a query on the subscriber and return its rows."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            return connection.execute(statement.encode(), parameters).fetchall()

    def rows(self, table: str, columns: Iterable[str] | None = None) -> list[Row]:
        """The subscriber's rows of a table; see `text_rows`."""
        return text_rows(self.conninfo, table, columns)

    def wait_caught_up(self, lsn: Lsn | None = None, timeout_s: float = 60.0) -> Lsn:
        """Wait until every table is ready and all up to `lsn` is flushed here; returns that LSN.

        Args:
            lsn: By default what the publisher had written when this was called.
            timeout_s: How long to wait.

        Raises:
            TimeoutError: It took longer; the text has the tables' states, the confirmed LSN, error counts.
        """
        deadline = time.monotonic() + timeout_s
        with (
            psycopg.connect(self.publisher, autocommit=True) as publisher,
            psycopg.connect(self.conninfo, autocommit=True) as subscriber,
        ):
            target = lsn if lsn is not None else Lsn.parse(_value(publisher, "SELECT pg_current_wal_lsn()::text"))
            while True:
                states = subscriber.execute(
                    "SELECT srrelid::regclass::text, srsubstate::text FROM pg_subscription_rel"
                ).fetchall()
                confirmed = Lsn.parse(
                    _value(
                        publisher,
                        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
                        self.name,
                    )
                )
                if confirmed >= target and all(state == "r" for _, state in states):
                    return target
                if time.monotonic() > deadline:
                    errors = subscriber.execute(
                        "SELECT apply_error_count, sync_error_count FROM pg_stat_subscription_stats WHERE subname = %s",
                        (self.name,),
                    ).fetchall()
                    raise TimeoutError(
                        f"native subscription {self.name} has not caught up after {timeout_s:g} s: confirmed"
                        f" {confirmed} of {target}, tables {states}, (apply, sync) errors {errors}"
                    )
                time.sleep(_POLL_S)

    def drop(self) -> None:
        """Drop the subscription with its slot, and the database."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            disable(connection, self.name)
            connection.execute(sql.SQL("DROP SUBSCRIPTION {}").format(sql.Identifier(self.name)))
        with psycopg.connect(self.publisher, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self.name)))


def _from_inside(conninfo: str) -> str:
    """How the server reaches itself: a container's port outside is not its port inside."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        folders = _value(connection, "SELECT current_setting('unix_socket_directories')")
        port = _value(connection, "SELECT current_setting('port')")
    folder = folders.split(",")[0].strip().strip('"')
    return make_conninfo(conninfo, host=folder, port=port) if folder else conninfo


def _value(connection: psycopg.Connection[tuple[Any, ...]], query: str, *parameters: str) -> str:
    """The only value of a query that returns one row; a missing row is an error."""
    row = connection.execute(query.encode(), parameters).fetchone()
    if row is None:
        raise LookupError(f"no row: {query} {parameters}")
    return str(row[0])
