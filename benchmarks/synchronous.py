"""How long a COMMIT takes that waits for Delta: a subscription in the server's synchronous_standby_names.

The bridge runs as a user runs it, `pgbridge run` as a process. Each client commits one transaction after the other.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from benchmarks.bridge_folder import NAME, BridgeFolder, is_copied
from benchmarks.database import database
from benchmarks.disturbed import stolen_s
from benchmarks.latency import Latencies
from benchmarks.measure import BenchmarkError
from benchmarks.workloads import PUBLICATION, execute
from pgbridge.bridge.demo.subscriber import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pgbridge.bridge.demo.server import EmbeddedPostgres

_SLOT: Final = "bench_synchronous"
_COPY_S: Final = 300.0
_POLL_S: Final = 0.05
_ROWS: Final = 10_000
_PREPARE: Final = (
    "CREATE TABLE account (id bigint PRIMARY KEY, value bigint NOT NULL, note text NOT NULL)",
    "CREATE TABLE entry (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account bigint, value bigint)",
    f"INSERT INTO account SELECT i, i, md5(i::text) FROM generate_series(1, {_ROWS}) i",
    f"CREATE PUBLICATION {PUBLICATION} FOR TABLE account, entry",
)
_METHOD: Final = f"""\
`pgbridge run` is a process with the default configuration, and has copied two tables, one of {_ROWS} rows and an empty
one. Then the server gets `synchronous_standby_names = '{NAME}'`, the subscription's name, and each client commits one
transaction after the other: an UPDATE of the one table and an INSERT into the other. So COMMIT returns when both are
durable in Delta. The time of each COMMIT is measured, after a warm-up with the same load. With several clients the
transactions that wait are one batch."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured with a number of clients.

    Attributes:
        clients: How many committed at the same time.
        commits: The times of their commits, one after the other.
        elapsed_s: How long all of it took.
        stolen_s: CPU time that the host gave to others meanwhile.
    """

    clients: int
    commits: Latencies
    elapsed_s: float
    stolen_s: float


def measure(
    server: EmbeddedPostgres,
    folder: Path,
    *,
    clients: Sequence[int],
    seconds: float,
    warm_up_s: float,
    say: Callable[[str], None] = lambda _: None,
) -> list[Measured]:
    """Copy the tables of a new database, commit with each number of clients, and drop the database.

    Args:
        server: The publisher's server; its synchronous_standby_names are reset afterwards.
        folder: For the state and the Delta tables; it must not exist yet.
        clients: Numbers of clients, one after the other.
        seconds: How long each number is measured.
        warm_up_s: How long the first number of clients commits before.
        say: Called with a line for each step.

    Raises:
        BenchmarkError: The daemon has ended.
    """
    with database(server, "bench_synchronous") as publisher:
        execute(server, "bench_synchronous", *_PREPARE)
        conninfo = server.conninfo("bench_synchronous")
        bridge = BridgeFolder(folder)
        interval: dict[str, Any] = {"batch.commit_interval_s": 0.0}  # as docs/failover.md says for this
        bridge.configure(conninfo, PUBLICATION, slot_name=_SLOT, **interval)
        with closing(Child(bridge.config_file, folder / "daemon.log")) as child, closing(bridge.catalog()) as catalog:
            end_s = time.monotonic() + _COPY_S
            while not is_copied(catalog):
                if child.status is not None or time.monotonic() > end_s:
                    raise BenchmarkError(f"the tables are not copied:\n{child.log_tail()}")
                time.sleep(_POLL_S)
            _set_standby(publisher, NAME)
            try:
                _commit(conninfo, clients[0], warm_up_s)
                say(f"warm after {warm_up_s:g} s")
                found = []
                for number in clients:
                    stolen_before_s, began_s = stolen_s(), time.monotonic()
                    commits = _commit(conninfo, number, seconds)
                    elapsed_s = time.monotonic() - began_s
                    found.append(Measured(number, Latencies(commits), elapsed_s, stolen_s() - stolen_before_s))
                    say(f"{number} clients: {len(commits)} commits")
                return found
            finally:
                _set_standby(publisher, "")  # or what is done at the end would wait for a daemon that has ended


def _set_standby(publisher: psycopg.Connection[tuple[object, ...]], name: str) -> None:
    publisher.execute("SET synchronous_commit = local")
    publisher.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'".encode())
    publisher.execute("SELECT pg_reload_conf()")
    time.sleep(1)


def _commit(conninfo: str, clients: int, seconds: float) -> tuple[float, ...]:
    end_s = time.monotonic() + seconds
    with ThreadPoolExecutor(clients) as pool:
        futures = [pool.submit(_client, conninfo, number, end_s) for number in range(clients)]
        return tuple(second for future in futures for second in future.result())


def _client(conninfo: str, number: int, end_s: float) -> list[float]:
    """Commit until the end, in rows of this client's own, so that no lock is waited for; return each COMMIT's time."""
    found: list[float] = []
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = on")
        while time.monotonic() < end_s:
            row = 1 + (number * 997 + len(found)) % _ROWS
            connection.execute("BEGIN")
            connection.execute("UPDATE account SET value = value + 1 WHERE id = %s", (row,))
            connection.execute("INSERT INTO entry (account, value) VALUES (%s, %s)", (row, len(found)))
            began_s = time.perf_counter()
            connection.execute("COMMIT")
            found.append(time.perf_counter() - began_s)
    return found


def table(measured: Sequence[Measured]) -> str:
    """Return a row for each number of clients."""
    lines = [
        "| clients | commits | COMMIT mean s | p50 s | p95 s | longest s | commits/s | stolen s |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in measured:
        seconds = one.commits.seconds
        times = (statistics.mean(seconds), one.commits.percentile(50), one.commits.percentile(95), max(seconds))
        cells = [str(one.clients), str(len(seconds)), *(f"{time_s:.2f}" for time_s in times)]
        cells += [f"{len(seconds) / one.elapsed_s:.1f}", f"{one.stolen_s:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def render(measured: Sequence[Measured], *, facts: Mapping[str, str]) -> str:
    """Return the whole report, in Markdown.

    Args:
        measured: A row for each.
        facts: Machine, versions and settings, a line for each.
    """
    lines = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    return "\n\n".join(["# A COMMIT that waits for Delta", lines, _METHOD, table(measured)]) + "\n"
