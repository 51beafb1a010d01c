"""The process that is measured: a slot's stream through the bridge's own receiver, and on to Arrow or to nothing.

The only module here that knows the receive path. `python -m benchmarks.receiver JOB` prints what it measured;
Python's start and the imports are not in it, as they are not in the life of a daemon.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bridge.apply.batch.batcher import Batcher
from bridge.apply.batch.routes import Routes
from bridge.apply.batch.subscribed import Subscribed
from bridge.apply.batch.table_changes import Staged
from bridge.apply.target.target import Target, target_schema
from bridge.config import Subscription
from bridge.memory import keep_freed
from bridge.receive.publisher import Publisher
from bridge.receive.queue import BatchLimits, TransactionQueue
from bridge.receive.walreceiver import StreamOptions, WalReceiver
from bridge.track.progress import Progress
from bridge.track.spool import SpoolFolder
from protocol.lsn import INVALID, Lsn
from protocol.transactions import TransactionRun
from protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.transactions import Transaction

_NAME = "benchmark"
_TURN_S = 0.02
"""How often the end is looked for: what the last batch may wait, less than 1 % of a run."""

_DECODED_ROWS = 50_000
"""Rows decoded at a time: a rate is measured, and not how long the last batch takes once the stream has ended."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to receive.

    Attributes:
        conninfo: The publisher.
        slot_name: A slot nobody else reads.
        publication: What it publishes.
        start_lsn: Where the slot stands.
        end_lsn: Where the workload ends.
        decode: Form batches as the apply loop does; otherwise transactions are thrown away.
        rest_s: How long to do nothing before the stream is started, and everything is there for it.
    """

    conninfo: str
    slot_name: str
    publication: str
    start_lsn: str
    end_lsn: str
    decode: bool
    rest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Received:
    """What came, from START_REPLICATION until it was all there, and decoded.

    Attributes:
        seconds: Wall clock.
        cpu_s: Of this process, all threads.
        rows: Row messages.
        transactions: Transactions.
        stolen_s: What a hypervisor gave of this machine's cores to others meanwhile, though there was work for them.
    """

    seconds: float
    cpu_s: float
    rows: int
    transactions: int
    stolen_s: float


def receive(job: Job) -> Received:
    """Take the stream from start to end."""
    settings = Subscription(name=_NAME, connection=job.conninfo, publications=(job.publication,), warehouse="/")
    queue = TransactionQueue(max_bytes=2 * settings.batch_max_bytes)
    progress = Progress(Lsn.parse(job.start_lsn))
    stream = StreamOptions(
        job.slot_name,
        progress.durable_lsn,
        {"proto_version": 1, "publication_names": settings.publications, "binary": True},
    )
    former = _former(job)
    with tempfile.TemporaryDirectory() as folder:
        receiver = WalReceiver(job.conninfo, stream, queue, progress, SpoolFolder(Path(folder)), application_name=_NAME)
        keep_freed()  # as the daemon does
        time.sleep(job.rest_s)
        started_s, cpu_s, stolen_before_s = time.perf_counter(), time.process_time(), stolen_s()
        receiver.start()
        try:
            rows, transactions = _consume(
                queue, progress, former if job.decode else None, settings, Lsn.parse(job.end_lsn)
            )
            seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
            return Received(seconds, cpu_s, rows, transactions, stolen_s() - stolen_before_s)
        finally:
            receiver.stop()


def stolen_s() -> float:
    """Since the machine's start, of all cores; 0 where nobody counts it."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def _consume(
    queue: TransactionQueue, progress: Progress, former: Batcher | None, settings: Subscription, end_lsn: Lsn
) -> tuple[int, int]:
    """Batches as the apply loop takes them with lag, full ones; at the end what remains."""
    limits = BatchLimits(_DECODED_ROWS, settings.batch_max_bytes, max_age_s=0)
    rows = transactions = 0
    while True:
        ended = progress.passed_lsn >= end_lsn
        taken = queue.take(limits, _TURN_S, full_only=not ended)
        if not taken and ended:
            return rows, transactions
        transactions += sum(len(item) if isinstance(item, TransactionRun) else 1 for item in taken)
        rows += _decode(former, taken) if former else sum(item.n_rows for item in taken)


def _decode(former: Batcher, taken: Sequence[Transaction | TransactionRun]) -> int:
    """How many changes there are in the tables that are made of them."""
    if not taken:
        return 0
    tables = former.form(taken, INVALID).tables
    return sum(len(table.changes) for table in tables if not isinstance(table.changes, Staged))


def _former(job: Job) -> Batcher:
    """As a subscriber's whose targets have the published columns."""
    with Publisher(job.conninfo, application_name=_NAME) as publisher:
        tables = publisher.tables([job.publication])
        catalog = publisher.types({column.type_oid for table in tables for column in table.columns})
    subscribed = {}
    for table in tables:
        fields = [(column.name, resolve(column.type_oid, column.typmod, catalog).arrow) for column in table.columns]
        target = Target(table.namespace, table.name, f"/{table.qualified_name}", target_schema(fields))
        subscribed[table.namespace, table.name] = Subscribed(target, INVALID, table.primary_key)
    return Batcher(_NAME, Routes(subscribed), lambda wanted: [resolve(oid, typmod, catalog) for oid, typmod in wanted])


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(receive(Job(**json.loads(sys.argv[1]))))))
