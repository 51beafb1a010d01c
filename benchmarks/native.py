"""PostgreSQL's own subscription, on a second private server, as the reference."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psutil
import psycopg
from psycopg import sql

from benchmarks.checksum import Checksum, in_postgresql
from benchmarks.disturbed import stolen_s
from benchmarks.measure import BenchmarkError
from benchmarks.processes import tree_cpu_s
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.checksum import Columns
    from bridge.demo.server import EmbeddedPostgres, Setting

SETTINGS: Final[Mapping[str, Setting]] = {
    "max_wal_size": "16GB",  # no checkpoint within a run
    "shared_buffers": "1GB",
    "autovacuum": False,
}
"""Settings of the subscriber's server. It is as durable as Delta tables are: fsync is on."""

_SUBSCRIPTION: Final = "bench"
_POLL_S: Final = 0.005
_TIMEOUT_S: Final = 1800.0
_DURABLE_LSN: Final = b"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
_ERRORS: Final = b"SELECT apply_error_count FROM pg_stat_subscription_stats"


@dataclass(frozen=True, slots=True)
class Native:
    """A run: from ENABLE until the subscriber confirms that the last transaction is flushed.

    Attributes:
        seconds: Wall clock.
        stolen_s: CPU time that the host gave to others.
        cpu_s: CPU time of the subscriber's processes.
        checksums: Of the subscriber's tables, by name.
    """

    seconds: float
    stolen_s: float
    cpu_s: float
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

    def prepare(self) -> None:
        """Copy all tables as they are now."""
        dump = self._server.folder / f"{self._dbname}.sql"  # where the server's user may write
        self._publisher.programs.run(
            "pg_dump",
            "--no-publications",
            "--no-owner",
            f"--file={dump}",
            f"--dbname={self._publisher.conninfo(self._dbname)}",
        )
        self._admin(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(self._dbname)))
        conninfo = self._server.conninfo(self._dbname)
        self._server.programs.run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", f"--file={dump}", conninfo)
        dump.unlink()
        self._server.programs.run("vacuumdb", "--freeze", "--analyze", "--quiet", f"--dbname={conninfo}")

    def run(
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
        names = {"run": sql.Identifier(self._run_dbname), "template": sql.Identifier(self._dbname)}
        self._admin(sql.SQL("CREATE DATABASE {run} TEMPLATE {template}").format(**names))
        try:
            with psycopg.connect(self._server.conninfo(self._run_dbname), autocommit=True) as connection:
                create = sql.SQL(
                    "CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION {} WITH"
                    " (create_slot = false, slot_name = {}, enabled = false, copy_data = false, binary = true)"
                ).format(
                    sql.Identifier(_SUBSCRIPTION),
                    sql.Literal(self._publisher.conninfo(self._dbname)),
                    sql.Identifier(publication),
                    sql.Literal(slot_name),
                )
                connection.execute(create)
                try:
                    connection.execute("CHECKPOINT")
                    time.sleep(rest_s)
                    seconds, stolen, cpu_s = self._catch_up(connection, slot_name, end_lsn)
                    return Native(seconds, stolen, cpu_s, in_postgresql(connection, tables))
                finally:
                    _drop(connection)
        finally:
            self._admin(sql.SQL("DROP DATABASE {run} WITH (FORCE)").format(**names))

    def drop(self) -> None:
        """Drop the prepared database."""
        self._admin(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self._dbname)))

    def _catch_up(
        self, connection: psycopg.Connection[tuple[Any, ...]], slot_name: str, end_lsn: Lsn
    ) -> tuple[float, float, float]:
        """Return seconds, stolen seconds and CPU seconds."""
        postmaster = psutil.Process(self._server.pid)
        with psycopg.connect(self._publisher.conninfo(self._dbname), autocommit=True) as publisher:
            cpu_before_s, stolen_before_s, started_s = tree_cpu_s(postmaster), stolen_s(), time.perf_counter()
            connection.execute(f"ALTER SUBSCRIPTION {_SUBSCRIPTION} ENABLE".encode())
            while (durable_lsn := _durable_lsn(publisher, slot_name)) < end_lsn:
                seconds = time.perf_counter() - started_s
                if seconds > _TIMEOUT_S or connection.execute(_ERRORS).fetchone() != (0,):
                    raise BenchmarkError(
                        f"PostgreSQL's subscription is at {durable_lsn} after {seconds:.0f} s, not at {end_lsn};"
                        f" the end of its log:\n{self._server.log_tail()}"
                    )
                time.sleep(_POLL_S)
            seconds = time.perf_counter() - started_s
        return seconds, stolen_s() - stolen_before_s, tree_cpu_s(postmaster) - cpu_before_s

    def _admin(self, statement: sql.Composed) -> None:
        with psycopg.connect(self._server.conninfo(), autocommit=True) as connection:
            connection.execute(statement)


def _durable_lsn(publisher: psycopg.Connection[tuple[Any, ...]], slot_name: str) -> Lsn:
    """Return the LSN up to which the subscriber has flushed everything."""
    row = publisher.execute(_DURABLE_LSN, (slot_name,)).fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def _drop(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Drop the subscription, and leave the slot, which is the caller's."""
    for change in ("DISABLE", "SET (slot_name = NONE)"):
        connection.execute(f"ALTER SUBSCRIPTION {_SUBSCRIPTION} {change}".encode())
    connection.execute(f"DROP SUBSCRIPTION {_SUBSCRIPTION}".encode())
