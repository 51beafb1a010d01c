"""Runs the variants on one workload, in turn, each with a clone of the slot and in its own process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from benchmarks.database import database, durable_lsn, insert_lsn
from benchmarks.disturbed import in_turn, is_disturbed, stolen_s, undisturbed
from benchmarks.receiver import Job, Received
from benchmarks.workloads import PUBLICATION

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.database import Connection
    from benchmarks.workloads import Workload
    from pgbridge.bridge.demo.server import EmbeddedPostgres

RECVLOGICAL: Final = "pg_recvlogical"
RECEIVE: Final = "receive only"
DECODE: Final = "receive + decode"
VARIANTS: Final = (RECVLOGICAL, RECEIVE, DECODE)
"""The variants that are compared; the first is the reference."""

_ROOT: Final = Path(__file__).parents[1]
_SLOT: Final = "bench"
_PATIENCE_S = 10.0
_REST_S = 3.0
"""Pause before each stream, until the start of the process no longer uses the cores."""


class BenchmarkError(RuntimeError):
    """A variant failed, or did not receive what the workload wrote."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one variant.

    Attributes:
        variant: One of VARIANTS.
        seconds: Wall clock, from START_REPLICATION (of pg_recvlogical: from its start) to the workload's end.
        cpu_s: CPU time of the receiving process.
        walsender_cpu_s: CPU time of the walsender.
        stolen_s: CPU time of this machine that the host gave to others.
    """

    variant: str
    seconds: float
    cpu_s: float
    walsender_cpu_s: float
    stolen_s: float

    @property
    def disturbed(self) -> bool:
        """Whether the host stole more time than can be neglected."""
        return is_disturbed(self)


@dataclass(frozen=True, slots=True)
class Measured:
    """A workload's runs.

    Attributes:
        workload: What was streamed.
        rows: Number of row messages in a run.
        transactions: Number of transactions in a run.
        load_s: How long writing the workload took, in seconds.
        rounds: For each round a run of every variant, in the order in which they ran.
        left_out: Disturbed runs that were repeated.
    """

    workload: Workload
    rows: int
    transactions: int
    load_s: float
    rounds: list[list[Run]]
    left_out: list[Run] = field(default_factory=list)


def measure(
    server: EmbeddedPostgres,
    workload: Workload,
    *,
    rounds: int,
    scale: float,
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Write a workload in a new database, measure, and drop the database.

    Args:
        server: The server. Nothing else should run on it: the CPU time of other processes counts as the walsender's.
        workload: What to stream.
        rounds: Number of runs of each variant; they take turns in being first.
        scale: Part of the workload to run, 1 for all.
        say: Called with a line for each run.

    Raises:
        BenchmarkError: A variant failed, or did not receive everything.
    """
    with database(server, f"bench_{workload.name.lower()}") as connection:
        return _measure(server, connection, workload, rounds=rounds, scale=scale, say=say)


def _measure(
    server: EmbeddedPostgres,
    connection: Connection,
    workload: Workload,
    *,
    rounds: int,
    scale: float,
    say: Callable[[str], None],
) -> Measured:
    dbname = connection.info.dbname
    workload.prepare(server, dbname)
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (_SLOT,))
    started_s = time.monotonic()
    rows, transactions = workload.load(server, dbname, scale)
    load_s = time.monotonic() - started_s
    # pg_recvlogical ends at the first message after this LSN; without another message, at a keepalive
    end_lsn = str(insert_lsn(connection))
    connection.execute("CHECKPOINT")  # so that none happens during a run
    say(f"{workload.name}: {rows} rows in {transactions} transactions, written in {load_s:.1f} s")
    measured = Measured(workload, rows, transactions, load_s, [])

    def run(number: int, variant: str) -> Run:
        one = _run(server, connection, variant, end_lsn, (rows, transactions))
        say(
            f"{workload.name}, round {number + 1}: {variant:16} {one.seconds:6.2f} s,"
            f" CPU {one.cpu_s:.2f} s, walsender {one.walsender_cpu_s:.2f} s, stolen {one.stolen_s:.2f} s"
        )
        return one

    for number in range(rounds):
        runs = [undisturbed(partial(run, number, variant), measured.left_out) for variant in in_turn(VARIANTS, number)]
        measured.rounds.append(runs)
    return measured


def _run(
    server: EmbeddedPostgres,
    connection: Connection,
    variant: str,
    end_lsn: str,
    expected: tuple[int, int],
) -> Run:
    clone = f"{_SLOT}_run"
    connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (_SLOT, clone))
    start_lsn = str(durable_lsn(connection, clone))
    conninfo = server.conninfo(connection.info.dbname)
    job = Job(conninfo, clone, PUBLICATION, start_lsn, end_lsn, decode=variant == DECODE, rest_s=_REST_S)
    postmaster = psutil.Process(server.pid)
    before_s, others = _reaped_cpu_s(postmaster), set(postmaster.children())
    received = _recvlogical(server, job) if variant == RECVLOGICAL else _receiver(job)
    _wait_for(lambda: set(postmaster.children()) <= others)
    walsender_cpu_s = _reaped_cpu_s(postmaster) - before_s
    connection.execute("SELECT pg_drop_replication_slot(%s)", (clone,))
    if variant != RECVLOGICAL and (received.rows, received.transactions) != expected:
        raise BenchmarkError(
            f"{variant}: {received.rows} rows in {received.transactions} transactions came,"
            f" not {expected[0]} in {expected[1]}"
        )
    return Run(variant, received.seconds, received.cpu_s, walsender_cpu_s, received.stolen_s)


def _recvlogical(server: EmbeddedPostgres, job: Job) -> Received:
    """Run PostgreSQL's own client. It writes each message to /dev/null and counts nothing."""
    command = [
        str(server.programs.bindir / RECVLOGICAL),
        f"--dbname={job.conninfo}",
        f"--slot={job.slot_name}",
        "--start",
        f"--startpos={job.start_lsn}",
        f"--endpos={job.end_lsn}",
        "--file=/dev/null",
        "--no-loop",
        "--option=proto_version=1",
        f"--option=publication_names={job.publication}",
        "--option=binary=true",
    ]
    time.sleep(job.rest_s)
    started_s, stolen_before_s = time.perf_counter(), stolen_s()
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    seconds, stolen = time.perf_counter() - started_s, stolen_s() - stolen_before_s
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stderr is not None
    with process.stderr as stderr:
        said = stderr.read().decode(errors="replace")
    if process.returncode != 0:
        raise BenchmarkError(f"{RECVLOGICAL} ended with status {process.returncode}: {said.strip()}")
    return Received(seconds, usage.ru_utime + usage.ru_stime, rows=0, transactions=0, stolen_s=stolen)


def _receiver(job: Job) -> Received:
    command = [sys.executable, "-m", "benchmarks.receiver", json.dumps(dataclasses.asdict(job))]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=_ROOT)
    if done.returncode != 0:
        raise BenchmarkError(f"the receiver ended with status {done.returncode}:\n{done.stderr.strip()}")
    return Received(**json.loads(done.stdout))


def _reaped_cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of the children that have ended, with the walsenders."""
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def _wait_for(condition: Callable[[], bool]) -> None:
    """Wait for a condition, but not for ever: a child that is not the walsender may stay."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
