"""How long a subscription takes from its start to its first batch, beside PostgreSQL's own subscription.

`pgbridge run` is a new process each time, with a new JVM. pgbench's tables are copied; then pgbench makes a few
transactions, which are the first batch.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.bridge_folder import NAME, BridgeFolder, copies
from benchmarks.database import database, drop_slots, durable_lsn, insert_lsn
from benchmarks.disturbed import in_turn, stolen_s, undisturbed
from benchmarks.measure import BenchmarkError
from benchmarks.native import NativeSubscriber
from benchmarks.workloads import PUBLICATION, prepare_pgbench
from pgbridge.bridge.demo.subscriber import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.database import Connection
    from pgbridge.bridge.demo.server import EmbeddedPostgres

NATIVE: Final = "PostgreSQL's subscription"
BRIDGE: Final = "pgbridge run"
VARIANTS: Final = (NATIVE, BRIDGE)
"""The variants that are compared; the first is the reference."""

TRANSACTIONS: Final = 35
"""In the first batch: 140 rows."""

_DBNAME: Final = "bench_start"
_SLOT: Final = "bench_start"
_POLL_S: Final = 0.02
_TIMEOUT_S: Final = 900.0
_REST_S: Final = 3.0
_STATES: Final = b"SELECT srsubstate IN ('f', 's', 'r') FROM pg_subscription_rel"


@dataclass(frozen=True, slots=True)
class Run:
    """One start of one variant.

    Attributes:
        variant: One of VARIANTS.
        first_table_s: From the start until the copy of a table was complete.
        copied_s: From the start until the copies of all tables were complete.
        first_batch_s: From the last commit of the transactions after that until they were durable.
        stolen_s: CPU time of this machine that the host gave to others.
    """

    variant: str
    first_table_s: float
    copied_s: float
    first_batch_s: float
    stolen_s: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.copied_s + self.first_batch_s


@dataclass(frozen=True, slots=True)
class Measured:
    """The runs.

    Attributes:
        scale: pgbench's scale.
        rounds: For each round a run of every variant, in the order in which they ran.
        left_out: Disturbed runs that were repeated.
    """

    scale: int
    rounds: list[list[Run]] = field(default_factory=list)
    left_out: list[Run] = field(default_factory=list)


def measure(
    servers: tuple[EmbeddedPostgres, EmbeddedPostgres],
    folder: Path,
    *,
    rounds: int,
    scale: float,
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Create the tables in a new database, measure, and drop the database.

    Args:
        servers: The publisher's and the subscriber's.
        folder: For state and Delta tables; it must not exist yet.
        rounds: Number of runs of each variant; they take turns in being first.
        scale: 1 for pgbench's scale 10.
        say: Called with a line for each run.

    Raises:
        BenchmarkError: A variant took too long.
    """
    publisher, subscriber = servers
    measured = Measured(max(1, round(10 * scale)))
    with database(publisher, _DBNAME) as connection:
        prepare_pgbench(publisher, _DBNAME, measured.scale)
        connection.execute("VACUUM (FREEZE, ANALYZE)")
        native = NativeSubscriber(subscriber, publisher, _DBNAME)
        native.prepare(data=False)
        ways: dict[str, Callable[[], Run]] = {
            NATIVE: partial(_native, publisher, connection, native),
            BRIDGE: partial(_bridge, publisher, connection, folder),
        }

        def run(number: int, variant: str) -> Run:
            connection.execute("CHECKPOINT")
            time.sleep(_REST_S)
            try:
                one = ways[variant]()
            finally:
                drop_slots(connection, _DBNAME)
            say(
                f"round {number + 1}: {variant:25} first table {one.first_table_s:.2f} s, all {one.copied_s:.2f} s,"
                f" first batch {one.first_batch_s:.2f} s, stolen {one.stolen_s:.2f} s"
            )
            return one

        try:
            for number in range(rounds):
                order = in_turn(VARIANTS, number)
                measured.rounds.append(
                    [undisturbed(partial(run, number, variant), measured.left_out) for variant in order]
                )
        finally:
            native.drop()
    return measured


def _native(publisher: EmbeddedPostgres, connection: Connection, native: NativeSubscriber) -> Run:
    with native.copy() as subscriber:
        subscriber.execute("CHECKPOINT")
        clock = _Clock(NATIVE)
        native.subscribe(subscriber, PUBLICATION, _SLOT, "create_slot = true")
        return clock.run(
            lambda: [bool(row[0]) for row in subscriber.execute(_STATES)],
            lambda: durable_lsn(connection, _SLOT),
            partial(_write, publisher, connection),
        )


def _bridge(publisher: EmbeddedPostgres, connection: Connection, path: Path) -> Run:
    folder = BridgeFolder(path)
    folder.configure(publisher.conninfo(_DBNAME), PUBLICATION, slot_name=_SLOT)
    clock = _Clock(BRIDGE)
    with closing(Child(folder.config_file, path / "daemon.log")) as child:
        with closing(folder.catalog()) as catalog:
            run = clock.run(
                lambda: copies(catalog),
                lambda: catalog.remote_lsn(NAME) or 0,
                partial(_write, publisher, connection),
                child.check,
            )
        child.stop()
    folder.remove()
    return run


def _write(publisher: EmbeddedPostgres, connection: Connection) -> int:
    """Make the first batch's transactions; return the LSN after them."""
    publisher.programs.run(
        "pgbench", "--no-vacuum", "--client=1", f"--transactions={TRANSACTIONS}", publisher.conninfo(_DBNAME)
    )
    return insert_lsn(connection)


class _Clock:
    """Times a start, which begins now."""

    def __init__(self, variant: str) -> None:
        self._variant = variant
        self._stolen_s, self._started_s = stolen_s(), time.perf_counter()

    def run(
        self,
        copies: Callable[[], Sequence[bool]],
        durable: Callable[[], int],
        write: Callable[[], int],
        check: Callable[[], None] = lambda: None,
    ) -> Run:
        """Watch the copies, write, and wait until that is durable.

        Args:
            copies: Returns for each table whether its copy is complete.
            durable: Returns the LSN up to which all is durable.
            write: Makes the first batch's transactions, and returns the LSN after them.
            check: Raises an error if the subscriber has ended.
        """
        self._wait("a table's copy", lambda: any(copies()), check)
        first_table_s = self._seconds()
        self._wait("the copies", lambda: bool(states := copies()) and all(states), check)
        copied_s = self._seconds()
        end_lsn = write()
        written_s = self._seconds()
        self._wait("the first batch", lambda: durable() >= end_lsn, check)
        return Run(self._variant, first_table_s, copied_s, self._seconds() - written_s, stolen_s() - self._stolen_s)

    def _wait(self, what: str, over: Callable[[], bool], check: Callable[[], None]) -> None:
        while not over():
            check()
            if self._seconds() > _TIMEOUT_S:
                raise BenchmarkError(f"{self._variant}: {what} took more than {_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)

    def _seconds(self) -> float:
        return time.perf_counter() - self._started_s
