"""The loop over batches with scripted parts: a batcher and an applier that only write down what they are given."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from pgbridge.bridge.apply.context import Context, Stream
from pgbridge.bridge.apply.next_batch import Growth
from pgbridge.bridge.apply.worker import ApplyWorker
from pgbridge.bridge.batch.batch import Batch, TableChanges
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.stream.queue import BatchLimits, TransactionQueue
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.errors import ApplyContext, ApplyError
from pgbridge.bridge.runtime.observer import Observer
from pgbridge.bridge.runtime.threads import Heartbeat
from pgbridge.bridge.targets.target import Target, TargetColumn, target_schema
from pgbridge.bridge.track.progress import Progress
from pgbridge.protocol.bulk.message_array import ChunkedMessages
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Transaction
from pgbridge.protocol.values.types import resolve

ENDS = tuple(range(110, 210, 10))
SUBSCRIPTION = Subscription(name="sub", connection="", publications=("pub",), warehouse="/lake")
LIMITS = BatchLimits(max_rows=10, max_bytes=1 << 20, max_age_s=0.0)
TARGET = Target("public", "t", "/t", target_schema([("id", pa.int64())]))
COLUMNS = (TargetColumn("id", resolve(20, -1)),)


SCHEMA = pa.schema([("seq", pa.int64()), ("op", pa.int16()), ("old", pa.int16()), ("new_0", pa.int64())])


def changes_of(ends):
    """An INSERT for each transaction."""
    rows = [{"seq": n, "op": ord("I"), "old": 0, "new_0": end} for n, end in enumerate(ends)]
    return TableChanges(TARGET, COLUMNS, (0,), pa.Table.from_pylist(rows, schema=SCHEMA))


class Parts:
    """A loop whose batcher and applier only write down what they are given."""

    may_filter = False

    def __init__(self, tmp_path, *, remote_lsn=100, hurry=False):
        self.catalog = Catalog(catalog_path(tmp_path))
        self.catalog.register("sub", enabled=True)
        self.catalog.create_origin("sub", Lsn(remote_lsn), "inc", [])
        self.queue = TransactionQueue(1 << 20)
        self.progress = Progress(Lsn(remote_lsn))
        self.applied = []
        self.ends = {}
        self.attempts = []
        self.rewound = []
        self.skipped = []
        self.undone = 0
        self.ahead = False  # a table has the transaction that is to be skipped
        self.brought_back = 0
        self.kept_until = 0  # a table has what comes before it, from an earlier attempt
        self.held: list[int] = []
        self.undecodable = set()  # by the ends of transactions
        self.unappliable = set()
        self.without_changes = set()
        self.passed_over = []
        self.confirmed: list[int] = []
        self.asked = 0
        self.wants_keepalive = hurry
        self.until = Lsn(0)
        self.growth = Growth()
        self.maintenance = None
        self.heartbeat = Heartbeat()
        self.observer = Observer()
        self.certify = lambda: None
        self.apply_gate = threading.Event()
        self.apply_gate.set()
        self.failure = None
        self.progress_count = 0
        self.reports = []  # answers to come; then it is always to go on

    def put(self, end_lsn, rows=1, row=b"x"):
        """What the receiver does with a transaction."""
        transaction = Transaction(end_lsn, Lsn(end_lsn - 1), 0, Lsn(end_lsn), rows=ChunkedMessages([row] * rows))
        self.ends[end_lsn] = None
        self.queue.put(transaction)
        self.progress.transaction(transaction.end_lsn)

    # Control
    def should_continue(self, progress):
        return progress.durable_lsn < self.until

    def report(self, _progress):
        return self.reports.pop(0) if self.reports else True

    def origin_advanced(self):
        self.progress_count += 1

    # Batcher, Applier, WalReceiver
    def refuse(self, transactions, start_lsn, error):
        batch = Batch.of(transactions, start_lsn)
        batch.error = error
        return batch

    def attempt(self, transactions, start_lsn):
        batch = Batch.of(transactions, start_lsn)
        ends = [int(transaction.end_lsn) for transaction in transactions]
        if changing := [end for end in ends if end not in self.without_changes]:
            batch.tables = [changes_of(changing)]
        if bad := next((t for t in transactions if int(t.end_lsn) in self.undecodable), None):
            batch.error = ApplyError("undecodable", ApplyContext("o", bad.commit_lsn, bad.xid))
        return batch

    def ends_of(self, batch):
        """The ends of a batch's transactions."""
        return [end for end in self.ends if batch.start_lsn < end <= batch.end_lsn]

    def rewind(self, batch):
        self.rewound.append(int(batch.start_lsn))

    def forget_plan(self, batch):
        self.passed_over.append(int(batch.start_lsn))

    def apply(self, batch, *, clear_skip_lsn=None):
        self.apply_gate.wait(10)
        ends = self.ends_of(batch)
        self.attempts.append(ends)
        if self.failure is not None:
            raise self.failure
        self.catalog.begin_batch("sub", BatchIntent(batch.start_lsn, batch.end_lsn))
        if self.unappliable.intersection(ends):
            self.undone += 1
            self.catalog.begin_undo("sub")
            self.catalog.drop_batch("sub")
            xid = ends[0] if len(ends) == 1 else None
            raise ApplyError("unappliable", ApplyContext("o", batch.finish_lsn, xid))
        self.applied.append((int(batch.start_lsn), int(batch.end_lsn), ends))
        if batch.end_lsn < self.kept_until:
            self.held.append(int(batch.end_lsn))
            self.catalog.hold_batch("sub", batch.end_lsn, (), clear_skip_lsn=clear_skip_lsn)
        else:
            self.held.clear()
            self.catalog.finish_batch("sub", batch.end_lsn, clear_skip_lsn=clear_skip_lsn)
        return {"commit": 0.0, "flush": 0.0, "record": 0.0}

    def skip(self, batch, skip_lsn, folder):
        assert self.catalog.batch("sub") is None
        self.skipped.append(self.ends_of(batch))
        self.catalog.finish_batch("sub", batch.end_lsn, clear_skip_lsn=skip_lsn)
        return folder

    @property
    def holds(self):
        return bool(self.held)

    def release(self, passed_lsn, handed_over_lsn):
        if not self.held or passed_lsn < self.kept_until or handed_over_lsn > self.held[-1]:
            return None
        end_lsn = Lsn(self.held[-1])
        self.held.clear()
        self.catalog.finish_batch("sub", end_lsn)
        return end_lsn

    def bring_back(self):
        assert self.catalog.batch("sub") is None
        ahead, self.ahead = self.ahead, False
        self.brought_back += ahead
        return ahead

    def request_keepalive(self):
        self.asked += 1

    def confirm(self):
        self.confirmed.append(int(self.progress.durable_lsn))

    def run(self, until, **options):
        self.until = Lsn(until)
        parts: Any = self  # stands in for the receiver, the batcher and the applier
        stream = Stream(
            parts,
            self.queue,
            self.progress,
            self.growth,
            self.maintenance,
            self.observer,
            self.certify,
        )
        context = Context(SUBSCRIPTION, parts, self.catalog, log.get("sub"), heartbeat=self.heartbeat)
        return ApplyWorker(context, stream, parts, parts, parts, limits=LIMITS, **options).run()
