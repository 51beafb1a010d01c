"""How fast the bridge catches up with a slot's WAL, beside PostgreSQL's own subscription.

Both apply the same workload from clones of one slot, in turn, to tables that are equal to the published ones at the
slot's LSN. The bridge runs as a daemon does (`daemon_runs`), warm and cold.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.bridge_folder import BridgeFolder
from benchmarks.checksum import columns_of, in_postgresql
from benchmarks.daemon_runs import Applied, Job
from benchmarks.database import database, drop_slots, insert_lsn
from benchmarks.debezium import Debezium
from benchmarks.disturbed import in_turn, undisturbed
from benchmarks.measure import BenchmarkError
from benchmarks.native import NativeSubscriber
from benchmarks.workloads import PUBLICATION, WORKLOADS
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.checksum import Checksum
    from benchmarks.database import Connection
    from benchmarks.workloads import Workload
    from pgbridge.bridge.demo.server import EmbeddedPostgres

NATIVE: Final = "PostgreSQL's subscription"
WARM: Final = "pgbridge, warm"
COLD: Final = "pgbridge, cold"
DEBEZIUM: Final = "Debezium's engine, into nothing"
VARIANTS: Final = (NATIVE, WARM, COLD)
"""The variants that are compared; the first is the reference. `DEBEZIUM` comes last, if it is wanted."""

_ROOT: Final = Path(__file__).parents[1]
_SLOT: Final = "bench_start"
_RUN_SLOT: Final = "bench_run"
_REST_S: Final = 3.0
"""Pause before each run, until the preparation no longer uses the cores."""

_LOG_LINES: Final = 20
_END_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """A workload, so many times.

    Attributes:
        name: For the command line and the report.
        workload: The workload.
        times: How many times as large it is.
    """

    name: str
    workload: Workload
    times: int = 1


CASES: Final[Mapping[str, Case]] = {
    case.name: case
    for case in (Case("W1", WORKLOADS["W1"]), Case("W2", WORKLOADS["W2"]), Case("5xW2", WORKLOADS["W2"], 5))
}
"""By name."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one variant.

    Attributes:
        variant: One of VARIANTS.
        seconds: Wall clock, from the subscription's start until the last transaction is durable.
        stolen_s: CPU time of this machine that the host gave to others.
        others_s: CPU time of this machine's processes that do not belong to the run.
        cpu_s: CPU time of the Python process, or of the subscriber's server.
        jvm_cpu_s: CPU time of the JVM; None for PostgreSQL, as are the next three.
        peak_bytes: Peak of the Python process's resident set.
        jvm_peak_bytes: Peak of the JVM's resident set.
        commits: Number of Delta commits.
        written_bytes: What its processes had the kernel write; None for Debezium, which writes nothing.
    """

    variant: str
    seconds: float
    stolen_s: float
    others_s: float
    cpu_s: float
    jvm_cpu_s: float | None = None
    peak_bytes: int | None = None
    jvm_peak_bytes: int | None = None
    commits: int | None = None
    written_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """The runs of a case.

    Attributes:
        case: What was applied.
        rows: Number of row messages in a run.
        transactions: Number of transactions in a run.
        rounds: For each round a run of every variant, in the order in which they ran.
        left_out: Disturbed runs that were repeated.
    """

    case: Case
    rows: int
    transactions: int
    rounds: list[list[Run]]
    left_out: list[Run] = field(default_factory=list)


class DaemonProcess:
    """The measured process (`benchmarks.daemon_runs`), with a Spark session that lasts from run to run.

    Args:
        folder: For its log and Spark's working files.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "daemon_runs.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.daemon_runs"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
            )

    def catch_up(self, job: Job) -> Applied:
        """Let the daemon catch up.

        Raises:
            BenchmarkError: It failed, and the process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(dataclasses.asdict(job)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self.close()  # its log is complete then
            tail = "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])
            raise BenchmarkError(
                f"the daemon ended, with status {self._process.returncode}; the end of its log:\n{tail}"
            )
        return Applied(**json.loads(answer))

    def close(self) -> None:
        """End the process, and the JVM with it."""
        try:
            self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


class Bench:
    """One database with a workload in a slot's WAL, and the ways to catch up with it.

    Args:
        publisher: The publisher's server.
        subscriber: The server for PostgreSQL's own subscription.
        connection: To the publishing database, which is empty.
        folder: For the Delta tables.
    """

    def __init__(
        self, publisher: EmbeddedPostgres, subscriber: EmbeddedPostgres, connection: Connection, folder: Path
    ) -> None:
        self._publisher, self._connection, self._folder = publisher, connection, folder
        self._dbname = connection.info.dbname
        self._native = NativeSubscriber(subscriber, publisher, self._dbname)
        self._start = BridgeFolder(folder / "start")
        self._end_lsn = Lsn(0)
        self._columns: dict[str, list[tuple[str, str]]] = {}
        self._expected: dict[str, Checksum] = {}
        self._serial = self._rows = 0
        self._debezium: Debezium | None = None
        self.rest_s = _REST_S

    def close(self) -> None:
        """Drop the subscriber's database; the publisher's is the caller's."""
        self._native.drop()

    def prepare(self, case: Case, scale: float, daemon: DaemonProcess) -> tuple[int, int]:
        """Create the tables, copy them to both subscribers, keep the slot, and write the workload.

        Returns:
            The number of row messages and of transactions.
        """
        case.workload.prepare(self._publisher, self._dbname)
        self._connection.execute("VACUUM (FREEZE, ANALYZE)")
        self._columns = columns_of(self._connection, PUBLICATION)
        self._start.configure(self._publisher.conninfo(self._dbname), PUBLICATION, slot_name=_RUN_SLOT)
        copied = daemon.catch_up(Job(str(self._start.path), str(Lsn(0)), self._columns, self._publisher.pid))
        self._check("the initial copy", copied.checksums, in_postgresql(self._connection, self._columns))
        self._copy_slot(_RUN_SLOT, _SLOT)
        drop_slots(self._connection, self._dbname, _RUN_SLOT)
        self._native.prepare()
        rows, transactions = case.workload.load(self._publisher, self._dbname, scale * case.times)
        self._end_lsn = insert_lsn(self._connection)
        self._connection.execute("CHECKPOINT")  # so that none happens during a run
        self._expected, self._rows = in_postgresql(self._connection, self._columns), rows
        return rows, transactions

    def native(self) -> Run:
        """Let PostgreSQL's subscription catch up."""
        with self._slot():
            one = self._native.catch_up(_RUN_SLOT, PUBLICATION, self._end_lsn, self._columns, rest_s=self.rest_s)
        self._check(NATIVE, one.checksums, self._expected)
        return Run(NATIVE, one.seconds, one.stolen_s, one.others_s, one.cpu_s, written_bytes=one.written_bytes)

    def warm(self, daemon: DaemonProcess) -> Run:
        """Let a daemon catch up that has applied changes before."""
        return self._bridge(WARM, daemon)

    def cold(self) -> Run:
        """Let a daemon catch up whose JVM has just started."""
        with closing(DaemonProcess(self._folder / "cold")) as daemon:
            return self._bridge(COLD, daemon)

    def debezium(self) -> Run:
        """Let Debezium's engine receive the changes; they are counted."""
        self._debezium = self._debezium or Debezium(self._folder / "debezium")
        with self._slot():
            one = self._debezium.receive(self._publisher, self._dbname, _RUN_SLOT, self._rows, rest_s=self.rest_s)
        return Run(DEBEZIUM, one.seconds, one.stolen_s, one.others_s, 0.0, one.cpu_s, None, one.peak_bytes)

    def _bridge(self, variant: str, daemon: DaemonProcess) -> Run:
        self._serial += 1
        with self._slot():
            folder = self._start.copied_to(self._folder / f"run{self._serial}")
            commits = folder.commits()
            one = daemon.catch_up(
                Job(str(folder.path), str(self._end_lsn), self._columns, self._publisher.pid, self.rest_s)
            )
        commits = folder.commits() - commits
        folder.remove()
        self._check(variant, one.checksums, self._expected)
        return Run(
            variant,
            one.seconds,
            one.stolen_s,
            one.others_s,
            one.python_cpu_s,
            one.jvm_cpu_s,
            one.python_peak_bytes,
            one.jvm_peak_bytes,
            commits,
            one.written_bytes,
        )

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Clone the slot for one run."""
        self._copy_slot(_SLOT, _RUN_SLOT)
        try:
            yield
        finally:
            drop_slots(self._connection, self._dbname, _RUN_SLOT)

    def _copy_slot(self, source: str, name: str) -> None:
        self._connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (source, name))

    @staticmethod
    def _check(what: str, found: Mapping[str, Sequence[int]], expected: Mapping[str, Checksum]) -> None:
        """Compare counts and checksums.

        Raises:
            BenchmarkError: They differ.
        """
        for table, (count, checksum) in expected.items():
            rows, its = found[table]
            if (rows, its) != (count, checksum):
                raise BenchmarkError(
                    f"{what}: table {table} has {rows} rows with checksum {its:x}, not {count} with {checksum:x}"
                )


def measure(
    servers: tuple[EmbeddedPostgres, EmbeddedPostgres],
    case: Case,
    folder: Path,
    *,
    variants: Sequence[str] = VARIANTS,
    rounds: int,
    scale: float,
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Write a workload in a new database, measure, and drop the database.

    Args:
        servers: The publisher's and the subscriber's.
        case: What to apply.
        folder: For the Delta tables; it must not exist yet.
        variants: Which of VARIANTS, and `DEBEZIUM`; the first one always runs, because it is the reference.
        rounds: Number of runs of each variant; they take turns in being first.
        scale: Part of the workload to run, 1 for all.
        say: Called with a line for each run.

    Raises:
        BenchmarkError: A variant failed, or its tables differ from the publisher's.
    """
    dbname = f"bench_{case.name.lower()}"
    with ExitStack() as stack:
        connection = stack.enter_context(database(servers[0], dbname))
        bench = stack.enter_context(closing(Bench(*servers, connection, folder)))
        daemon = stack.enter_context(closing(DaemonProcess(folder / "warm")))
        measured = Measured(case, *bench.prepare(case, scale, daemon), [])
        say(f"{case.name}: {measured.rows} rows in {measured.transactions} transactions")
        ways: dict[str, Callable[[], Run]] = {
            NATIVE: bench.native,
            WARM: partial(bench.warm, daemon),
            COLD: bench.cold,
            DEBEZIUM: bench.debezium,
        }
        if WARM in variants:
            _say(say, case, "before", bench.warm(daemon))

        def run(number: int, variant: str) -> Run:
            return _say(say, case, f"round {number + 1}", ways[variant]())

        for number in range(rounds):
            chosen = [variant for variant in (*VARIANTS, DEBEZIUM) if variant in {NATIVE, *variants}]
            order = in_turn(chosen, number)
            measured.rounds.append([undisturbed(partial(run, number, variant), measured.left_out) for variant in order])
        return measured


def _say(say: Callable[[str], None], case: Case, when: str, run: Run) -> Run:
    jvm = "" if run.jvm_cpu_s is None else f", JVM {run.jvm_cpu_s:.2f} s, {run.commits} commits"
    say(
        f"{case.name}, {when}: {run.variant:25} {run.seconds:6.2f} s, CPU {run.cpu_s:.2f} s{jvm},"
        f" others {run.others_s:.2f} s, stolen {run.stolen_s:.2f} s"
    )
    return run
