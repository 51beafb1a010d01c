"""The two workloads, which are written to a database after the slot was created.

W1 is large transactions of one table with the common types, W2 the small ones of pgbench.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pgbridge.bridge.demo.server import EmbeddedPostgres, Setting

PUBLICATION: Final = "bench"

SETTINGS: Final[Mapping[str, Setting]] = {
    # loading is not measured, and its data need not survive
    "synchronous_commit": "off",
    "full_page_writes": False,
    "max_wal_size": "16GB",
    "shared_buffers": "1GB",
    # it would use the same cores, and count as the walsender's CPU time
    "autovacuum": False,
}
"""Settings instead of the demo server's; fsync is off, too."""

_CLIENTS = 8  # so that pgbench's round trips overlap; more clients gain nothing on few cores


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload.

    Attributes:
        name: For the command line and the report.
        text: A description.
        prepare: Creates the tables, and rows that exist before the slot; called with server and database.
        load: Writes the workload at a scale, 1 for all of it; returns the number of rows and of transactions.
    """

    name: str
    text: str
    prepare: Callable[[EmbeddedPostgres, str], None]
    load: Callable[[EmbeddedPostgres, str, float], tuple[int, int]]


TABLE_W1: Final = """
CREATE TABLE w1 (
    id bigint PRIMARY KEY, parent bigint, ratio float8, code text, digest text,
    at timestamptz, active boolean, amount numeric(12,2)
);
"""
IN_TRANSACTIONS: Final = """
CREATE PROCEDURE in_transactions(statement text, total bigint, each bigint) LANGUAGE plpgsql AS $$
BEGIN
    FOR low IN 1 .. total BY each LOOP
        EXECUTE statement USING low, least(low + each - 1, total);
        COMMIT;
    END LOOP;
END $$;
"""
"""A procedure that runs a statement for parts of the numbers from 1 on, each in a transaction."""
INSERT_W1: Final = """
INSERT INTO w1 SELECT i, i * 7919 % 1000003, sqrt(i), lpad(i::text, 20, 'x'), md5(i::text),
    timestamptz '2026-01-01 00:00Z' + i * interval '1.000001 s', i % 3 = 0, (i * 104729 % 1000000007) / 100.0
FROM generate_series($1, $2) i
"""
_UPDATE: Final = "UPDATE w1 SET ratio = ratio + 1, amount = amount / 2, active = NOT active WHERE id BETWEEN $1 AND $2"
_DELETE: Final = "DELETE FROM w1 WHERE id BETWEEN $1 AND $2"


def _prepare_w1(server: EmbeddedPostgres, dbname: str) -> None:
    execute(server, dbname, TABLE_W1, IN_TRANSACTIONS, f"CREATE PUBLICATION {PUBLICATION} FOR TABLE w1")


def _load_w1(server: EmbeddedPostgres, dbname: str, scale: float) -> tuple[int, int]:
    transactions = rows = 0
    for statement, full, each in ((INSERT_W1, 1_000_000, 10_000), (_UPDATE, 500_000, 1_000), (_DELETE, 100_000, 1_000)):
        total = max(1, round(full * scale))
        execute(server, dbname, f"CALL in_transactions($statement${statement}$statement$, {total}, {each})")
        rows += total
        transactions += -(-total // each)
    return rows, transactions


def prepare_pgbench(server: EmbeddedPostgres, dbname: str, scale: int = 10) -> None:
    """Create pgbench's four tables, with their rows, and a publication of them."""
    server.programs.run("pgbench", "--quiet", "--initialize", f"--scale={scale}", server.conninfo(dbname))
    execute(server, dbname, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")


def _load_w2(server: EmbeddedPostgres, dbname: str, scale: float) -> tuple[int, int]:
    each = max(1, round(200_000 * scale / _CLIENTS))
    server.programs.run(
        "pgbench",
        "--no-vacuum",  # it would TRUNCATE
        "--protocol=prepared",
        f"--client={_CLIENTS}",
        "--jobs=2",
        f"--transactions={each}",
        "--random-seed=18",
        server.conninfo(dbname),
    )
    return 4 * each * _CLIENTS, each * _CLIENTS


def execute(server: EmbeddedPostgres, dbname: str, *statements: str) -> None:
    """Run statements in a database, each in its own transaction."""
    with psycopg.connect(server.conninfo(dbname), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


WORKLOADS: Final[Mapping[str, Workload]] = {
    workload.name: workload
    for workload in (
        Workload(
            "W1",
            "a table of 8 columns (bigint key, bigint, float8, text of 20, text of 32, timestamptz, boolean,"
            " numeric(12,2)): 1 M inserts in transactions of 10 000, 500 k updates and 100 k deletes in transactions"
            " of 1 000",
            _prepare_w1,
            _load_w1,
        ),
        Workload(
            "W2",
            "`pgbench --initialize --scale=10` before the slot, then 200 k TPC-B transactions of three updates and an"
            " insert",
            prepare_pgbench,
            _load_w2,
        ),
    )
}
"""By name."""
