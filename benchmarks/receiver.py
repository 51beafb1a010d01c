"""The measured process: receives a slot's stream with the bridge's own receiver, and decodes it to Arrow, or not.

Only this module uses the receive path. `python -m benchmarks.receiver JOB` prints its measurement, without Python's
start and the imports, which a daemon does only once.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.disturbed import stolen_s
from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes, Subscribed
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.stream.queue import BatchLimits, TransactionQueue
from pgbridge.bridge.receive.stream.walreceiver import StreamOptions, WalReceiver
from pgbridge.bridge.runtime.process import keep_freed
from pgbridge.bridge.runtime.threads import share_interpreter, yielding
from pgbridge.bridge.targets.target import Target, target_schema
from pgbridge.bridge.track.progress import Progress
from pgbridge.bridge.track.spool import SpoolFolder
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgbridge.bridge.batch.batch import Batch
    from pgbridge.protocol.stream.transactions import Item

    _Form = Callable[[Sequence[Item], Lsn], Batch]

_NAME = "benchmark"
_TURN_S = 0.02
"""The longest wait for transactions before everything else is looked at."""

_DECODED_ROWS = 50_000
"""Rows decoded at a time. Few, because the rate is measured, not the time for the last batch after the stream's end."""


@dataclass(frozen=True, slots=True)
class Job:
    """A stream to receive.

    Attributes:
        conninfo: The publisher.
        slot_name: A slot that nobody else uses.
        publication: The publication to ask for.
        start_lsn: The slot's LSN.
        end_lsn: The LSN at which the workload ends.
        decode: Form batches, as the apply worker does; else transactions are dropped.
        rest_s: Pause between the preparation and the start of the stream.
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
    """The measurement, from START_REPLICATION until everything was received, and decoded.

    Attributes:
        seconds: Wall clock.
        cpu_s: CPU time of this process, all threads.
        rows: Number of row messages.
        transactions: Number of transactions.
        stolen_s: CPU time that a hypervisor gave to others, although this machine had work for its cores.
    """

    seconds: float
    cpu_s: float
    rows: int
    transactions: int
    stolen_s: float


def receive(job: Job) -> Received:
    """Receive the stream from start to end."""
    settings = Subscription(name=_NAME, connection=job.conninfo, publications=(job.publication,), warehouse="/")
    queue = TransactionQueue(max_bytes=2 * settings.batch.max_bytes)
    progress = Progress(Lsn.parse(job.start_lsn))
    stream = StreamOptions(
        job.slot_name,
        progress.durable_lsn,
        {"proto_version": 1, "publication_names": settings.publications, "binary": True},
    )
    batcher = _batcher(job)
    with tempfile.TemporaryDirectory() as folder:
        receiver = WalReceiver(job.conninfo, stream, queue, progress, SpoolFolder(Path(folder)), application_name=_NAME)
        keep_freed()  # as the daemon does
        share_interpreter(1)
        time.sleep(job.rest_s)
        started_s, cpu_s, stolen_before_s = time.perf_counter(), time.process_time(), stolen_s()
        receiver.start()
        try:
            form: _Form | None = (
                (lambda *taken: yielding(partial(batcher.form, *taken), "form")) if job.decode else None
            )
            rows, transactions = _consume(queue, progress, form, settings, Lsn.parse(job.end_lsn))
            seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
            return Received(seconds, cpu_s, rows, transactions, stolen_s() - stolen_before_s)
        finally:
            receiver.stop()


def _consume(
    queue: TransactionQueue, progress: Progress, form: _Form | None, settings: Subscription, end_lsn: Lsn
) -> tuple[int, int]:
    """Take full batches, as the apply worker does with lag; at the end what remains. Return rows and transactions."""
    limits = BatchLimits(_DECODED_ROWS, settings.batch.max_bytes, max_age_s=0)
    rows = transactions = 0
    while True:
        ended = progress.passed_lsn >= end_lsn
        taken = queue.take(limits, _TURN_S, full_only=not ended, until=lambda: progress.passed_lsn >= end_lsn)
        if not taken and ended:
            return rows, transactions
        transactions += sum(map(len, taken))
        rows += _decode(form, taken) if form else sum(item.n_rows for item in taken)


def _decode(form: _Form, taken: Sequence[Item]) -> int:
    """Form a batch; return the number of changes in its tables."""
    if not taken:
        return 0
    tables = form(taken, INVALID).tables
    return sum(len(table.changes) for table in tables)


def _batcher(job: Job) -> Batcher:
    """Return the batcher of a subscriber whose targets have the published columns."""
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
