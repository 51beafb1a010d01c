"""PostgreSQL's own subscription, on a second private server, as the reference."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import psutil
import psycopg
from psycopg import sql

from benchmarks.checksum import Checksum, in_postgresql
from benchmarks.database import durable_lsn
from benchmarks.disturbed import busy_s, stolen_s
from benchmarks.measure import BenchmarkError
from benchmarks.processes import tree_cpu_s, tree_written_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import LiteralString

    from benchmarks.checksum import Columns
    from benchmarks.database import Connection
    from pgbridge.bridge.demo.server import EmbeddedPostgres, Setting
    from pgbridge.protocol.lsn import Lsn

SETTINGS: Final[Mapping[str, Setting]] = {
    "max_wal_size": "16GB",  # no checkpoint within a run
    "shared_buffers": "1GB",
    "autovacuum": False,
}
"""Settings of the subscriber's server. It is as durable as Delta tables are: fsync is on."""

_SUBSCRIPTION: Final = "bench"
_POLL_S: Final = 0.005
_TIMEOUT_S: Final = 1800.0
_EXISTS: Final = f"""
SELECT 1 FROM pg_subscription, pg_database
WHERE subname = '{_SUBSCRIPTION}' AND subdbid = pg_database.oid AND datname = current_database()
""".encode()
_DROP: Final = tuple(
    statement.encode()
    for statement in (
        f"ALTER SUBSCRIPTION {_SUBSCRIPTION} DISABLE",
        f"ALTER SUBSCRIPTION {_SUBSCRIPTION} SET (slot_name = NONE)",
        f"DROP SUBSCRIPTION {_SUBSCRIPTION}",
    )
)
_ERRORS: Final = b"SELECT apply_error_count FROM pg_stat_subscription_stats"


@dataclass(frozen=True, slots=True)
class Native:
    """A run: from ENABLE until the subscriber confirms that the last transaction is flushed.

    Attributes:
        seconds: Wall clock.
        stolen_s: CPU time that the host gave to others.
        others_s: CPU time of this machine's processes that do not belong to the run.
        cpu_s: CPU time of the subscriber's processes.
        written_bytes: What they had the kernel write.
        checksums: Of the subscriber's tables, by name.
    """

    seconds: float
    stolen_s: float
    others_s: float
    cpu_s: float
    written_bytes: int
    checksums: dict[str, Checksum]


class NativeSubscriber:
    """A database of the subscriber's server that is made like the publisher's; each run has a copy of it.

    Args:
        server: The subscriber's server. Nothing else should run on it.
        publisher: The publisher's server.
        dbname: The publishing database, and the name of the subscribing one.
    """

    def __init__(self, server: EmbeddedPostgres, publisher: EmbeddedPostgres, dbname: str) -> None:
        self._server, self._publisher, self._dbname = server, publisher, dbname
        self._run_dbname = f"{dbname}_run"

    def prepare(self, *, data: bool = True) -> None:
        """Create all tables as they are now, with their rows or without."""
        dump = self._server.folder / f"{self._dbname}.sql"  # where the server's user may write
        self._publisher.programs.run(
            "pg_dump",
            "--no-publications",
            "--no-owner",
            *(() if data else ("--schema-only",)),
            f"--file={dump}",
            f"--dbname={self._publisher.conninfo(self._dbname)}",
        )
        self._admin(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(self._dbname)))
        conninfo = self._server.conninfo(self._dbname)
        self._server.programs.run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", f"--file={dump}", conninfo)
        dump.unlink()
        self._server.programs.run("vacuumdb", "--freeze", "--analyze", "--quiet", f"--dbname={conninfo}")

    def catch_up(
        self, slot_name: str, publication: str, end_lsn: Lsn, tables: Mapping[str, Columns], *, rest_s: float
    ) -> Native:
        """Catch up from a slot, in a copy of the prepared database.

        Args:
            slot_name: A slot that nobody else uses.
            publication: The publication.
            end_lsn: The LSN at which the workload ends.
            tables: The tables to compute checksums of, with their columns.
            rest_s: Pause before the run.

        Raises:
            BenchmarkError: The subscription met an error, or did not end.
        """
        with self.copy() as connection:
            options = "create_slot = false, enabled = false, copy_data = false"
            self.subscribe(connection, publication, slot_name, options)
            connection.execute("CHECKPOINT")
            time.sleep(rest_s)
            run = self._enabled(connection, slot_name, end_lsn)
            return replace(run, checksums=in_postgresql(connection, tables))

    def drop(self) -> None:
        """Drop the prepared database."""
        self._admin(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self._dbname)))

    @contextmanager
    def copy(self) -> Iterator[Connection]:
        """Copy the prepared database; drop the copy afterwards, with its subscription, but without its slot.

        Yields:
            A connection to it.
        """
        names = {"run": sql.Identifier(self._run_dbname), "template": sql.Identifier(self._dbname)}
        self._admin(sql.SQL("CREATE DATABASE {run} TEMPLATE {template}").format(**names))
        try:
            with psycopg.connect(self._server.conninfo(self._run_dbname), autocommit=True) as connection:
                try:
                    yield connection
                finally:
                    for statement in _DROP if connection.execute(_EXISTS).fetchone() else ():
                        connection.execute(statement)
        finally:
            self._admin(sql.SQL("DROP DATABASE {run} WITH (FORCE)").format(**names))

    def subscribe(self, connection: Connection, publication: str, slot_name: str, options: LiteralString) -> None:
        """Create the subscription.

        Args:
            connection: To a copy of the prepared database.
            publication: The publication.
            slot_name: The slot.
            options: Other options of CREATE SUBSCRIPTION.
        """
        statement = "CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION {} WITH (binary = true, slot_name = {}, {})"
        connection.execute(
            sql.SQL(statement).format(
                sql.Identifier(_SUBSCRIPTION),
                sql.Literal(self._publisher.conninfo(self._dbname)),
                sql.Identifier(publication),
                sql.Literal(slot_name),
                sql.SQL(options),
            )
        )

    def _enabled(self, connection: Connection, slot_name: str, end_lsn: Lsn) -> Native:
        servers = [psutil.Process(server.pid) for server in (self._server, self._publisher)]
        with psycopg.connect(self._publisher.conninfo(self._dbname), autocommit=True) as publisher:
            cpu_before_s, publisher_before_s = map(tree_cpu_s, servers)
            written_before_bytes = tree_written_bytes(servers[0])
            busy_before_s, stolen_before_s, started_s = busy_s(), stolen_s(), time.perf_counter()
            connection.execute(f"ALTER SUBSCRIPTION {_SUBSCRIPTION} ENABLE".encode())
            while (lsn := durable_lsn(publisher, slot_name)) < end_lsn:
                seconds = time.perf_counter() - started_s
                if seconds > _TIMEOUT_S or connection.execute(_ERRORS).fetchone() != (0,):
                    raise BenchmarkError(
                        f"PostgreSQL's subscription is at {lsn} after {seconds:.0f} s, not at {end_lsn};"
                        f" the end of its log:\n{self._server.log_tail()}"
                    )
                time.sleep(_POLL_S)
            seconds, stolen, busy = (
                time.perf_counter() - started_s,
                stolen_s() - stolen_before_s,
                busy_s() - busy_before_s,
            )
        cpu, publisher_cpu_s = map(tree_cpu_s, servers)
        cpu -= cpu_before_s
        others_s = max(0.0, busy - cpu - (publisher_cpu_s - publisher_before_s))
        return Native(seconds, stolen, others_s, cpu, tree_written_bytes(servers[0]) - written_before_bytes, {})

    def _admin(self, statement: sql.Composed) -> None:
        with psycopg.connect(self._server.conninfo(), autocommit=True) as connection:
            connection.execute(statement)
