"""What tables and subscriptions cost that exist but do not change.

A publication of many small tables, or many subscriptions of two tables each, in one daemon: how long the start takes,
how long a batch in which ten tables change, what an idle daemon uses, and how much memory, threads and descriptors.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import psutil

from benchmarks.database import database, insert_lsn
from benchmarks.measure import BenchmarkError
from benchmarks.processes import tree_cpu_s
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.demo.subscriber import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from benchmarks.database import Connection
    from pgbridge.bridge.demo.server import EmbeddedPostgres, Setting

SETTINGS: Final[dict[str, Setting]] = {
    "max_wal_senders": "500",
    "max_replication_slots": "500",
    "max_connections": "1000",
    "max_locks_per_transaction": "256",
}
"""Beside those of the other benchmarks: for hundreds of subscriptions, each with connections and a slot."""

CHANGING: Final = 10
"""So many tables change in a batch."""

TABLES_EACH: Final = 2
"""Tables of a subscription, where there are many subscriptions."""

ROWS: Final = 10
"""Rows of a table."""

CHANGED_ROWS: Final = 3
"""So many of them change in a batch."""

_DBNAME: Final = "bench_many"
_COPIED: Final = frozenset("fsr")
_POLL_S: Final = 0.02
_REST_S: Final = 60.0
"""After the batches: what they leave to be recorded, and to be looked at, is done then."""
_TIMEOUT_S: Final = 3_600.0
_TABLE: Final = """
CREATE TABLE many_{number} (id bigint PRIMARY KEY, note text NOT NULL);
INSERT INTO many_{number} SELECT i, md5(i::text) FROM generate_series(1, {rows}) i
"""


@dataclass(frozen=True, slots=True)
class Size:
    """What exists.

    Attributes:
        tables: The number of tables.
        subscriptions: They are divided among so many subscriptions.
    """

    tables: int
    subscriptions: int = 1


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a daemon holds.

    Attributes:
        python_bytes: Resident set of the Python process.
        jvm_bytes: Resident set of the JVM.
        threads: Threads of the Python process.
        descriptors: Open descriptors of the Python process.
        jvm_threads: Threads of the JVM.
        jvm_descriptors: Open descriptors of the JVM.
    """

    python_bytes: int
    jvm_bytes: int
    threads: int
    descriptors: int
    jvm_threads: int
    jvm_descriptors: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One size.

    Attributes:
        size: What existed.
        copied_s: From `pgbridge run` until all tables are copied and all subscriptions stream.
        restart_s: From another `pgbridge run` until all subscriptions stream.
        footprint: After the restart and the batches.
        idle_cpu: CPU time of the idle daemon and its JVM, as a part of one core.
        batch_s: Seconds from a commit that changes `CHANGING` tables until it is durable, in their order.
    """

    size: Size
    copied_s: float
    restart_s: float
    footprint: Footprint
    idle_cpu: float
    batch_s: list[float] = field(default_factory=list)


def measure(
    server: EmbeddedPostgres,
    folder: Path,
    size: Size,
    *,
    batches: int,
    idle_s: float,
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Create the tables in a new database, measure, and drop the database.

    Args:
        server: A server with `SETTINGS`.
        folder: For state and Delta tables; it must not exist yet.
        size: What is to exist.
        batches: How many batches are measured; as many are made before.
        idle_s: How long the idle daemon is watched.
        say: Called with a line for each step.

    Raises:
        BenchmarkError: The daemon took too long.
    """
    with database(server, _DBNAME) as connection:
        subscriptions = prepare(connection, size)
        config_file = configure(folder, server.conninfo(_DBNAME), subscriptions)
        with closing(Catalog(catalog_path(folder / "state"))) as catalog:
            with closing(Child(config_file, folder / "daemon.log")) as child:
                daemon = _Daemon(child, catalog, subscriptions, size)
                copied_s = daemon.streaming_s()
                say(f"{_said(size)}: copied and streaming after {copied_s:.1f} s")
                child.stop()
            with closing(Child(config_file, folder / "daemon.log")) as child:
                daemon = _Daemon(child, catalog, subscriptions, size)
                restart_s = daemon.streaming_s()
                say(f"{_said(size)}: streaming again after {restart_s:.1f} s")
                seconds = [daemon.batch_s(connection) for _ in range(2 * batches)]
                say(f"{_said(size)}: batches {', '.join(f'{one:.2f}' for one in seconds)} s")
                held = footprint(child.pid)
                time.sleep(_REST_S)
                idle_cpu = daemon.cpu_of_a_core(idle_s)
                child.stop()
    return Measured(size, copied_s, restart_s, held, idle_cpu, seconds[batches:])


def prepare(connection: Connection, size: Size) -> dict[str, str]:
    """Create the tables and publications; return the publication of each subscription."""
    for number in range(size.tables):
        connection.execute(_TABLE.format(number=number, rows=ROWS).encode())
    each = -(-size.tables // size.subscriptions)
    for number in range(size.subscriptions):
        tables = range(number * each, min((number + 1) * each, size.tables))
        listed = ", ".join(f"many_{table}" for table in tables)
        connection.execute(f"CREATE PUBLICATION many_{number} FOR TABLE {listed}".encode())
    return {f"many_{number}": f"many_{number}" for number in range(size.subscriptions)}


def configure(folder: Path, conninfo: str, subscriptions: Mapping[str, str]) -> Path:
    """Create the folder with a configuration file of the subscriptions, and return the file."""
    lines = ['state_dir = "state"']
    for name, publication in subscriptions.items():
        keys = {"connection": conninfo, "publications": [publication], "warehouse": "lake"}
        lines += [f"[subscription.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    (folder / "state").mkdir(parents=True)
    config_file = folder / "pgbridge.toml"
    config_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config_file


def footprint(pid: int) -> Footprint:
    """Return what a daemon holds now."""
    python = psutil.Process(pid)
    jvm = next((child for child in python.children() if child.name() == "java"), None)
    return Footprint(
        python_bytes=python.memory_info().rss,
        jvm_bytes=0 if jvm is None else jvm.memory_info().rss,
        threads=python.num_threads(),
        descriptors=python.num_fds(),
        jvm_threads=0 if jvm is None else jvm.num_threads(),
        jvm_descriptors=0 if jvm is None else jvm.num_fds(),
    )


class _Daemon:
    """A daemon that has just been started.

    Args:
        child: Its process.
        catalog: Its catalog.
        subscriptions: Names of its subscriptions.
        size: What exists.
    """

    def __init__(self, child: Child, catalog: Catalog, subscriptions: Collection[str], size: Size) -> None:
        self._child, self._catalog, self._size = child, catalog, size
        self._names = list(subscriptions)
        self._started_s = time.perf_counter()

    def streaming_s(self) -> float:
        """Wait until all tables are copied and all subscriptions stream; return the seconds since its start."""
        self._wait("the start", self._is_streaming)
        return time.perf_counter() - self._started_s

    def batch_s(self, connection: Connection) -> float:
        """Change `CHANGING` tables in a transaction; return how long it takes from its commit to be durable."""
        with connection.transaction():
            for number in range(min(CHANGING, self._size.tables)):
                connection.execute(f"UPDATE many_{number} SET note = md5(note) WHERE id <= {CHANGED_ROWS}".encode())
        lsn, started_s = insert_lsn(connection), time.perf_counter()
        each = -(-self._size.tables // self._size.subscriptions)
        changing = self._names[: -(-min(CHANGING, self._size.tables) // each)]
        self._wait("a batch", lambda: all((self._catalog.remote_lsn(name) or 0) >= lsn for name in changing))
        return time.perf_counter() - started_s

    def cpu_of_a_core(self, seconds: float) -> float:
        """Watch the idle daemon; return the CPU time that it uses, as a part of one core."""
        process = psutil.Process(self._child.pid)
        cpu_s, started_s = tree_cpu_s(process), time.perf_counter()
        time.sleep(seconds)
        return (tree_cpu_s(process) - cpu_s) / (time.perf_counter() - started_s)

    def _is_streaming(self) -> bool:
        rows = [self._catalog.subscription(name) for name in self._names]
        if not all(row is not None and row.state == "streaming" for row in rows):
            return False
        states = [rel.state for name in self._names for rel in self._catalog.rels(name)]
        return len(states) == self._size.tables and _COPIED.issuperset(states)

    def _wait(self, what: str, over: Callable[[], bool]) -> None:
        began_s = time.perf_counter()
        while not over():
            self._child.check()
            if time.perf_counter() - began_s > _TIMEOUT_S:
                raise BenchmarkError(f"{_said(self._size)}: {what} took more than {_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)


def _said(size: Size) -> str:
    return f"{size.tables} tables, {size.subscriptions} subscriptions"
