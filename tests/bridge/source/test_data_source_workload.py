"""The random workload under crashes at every point of Spark's protocol, without Spark.

A batch is logged, read, written, and committed, as Structured Streaming does. A crash loses the process between any two
of these steps, and the next one goes on by the log. The sink keeps a batch by its number, so it is idempotent.
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from pgbridge.bridge.source.data_source import PgoutputSource
from tests.bridge.source.replay import replayed, served
from tests.bridge.source.without_spark import rows_of
from tests.oracle.workload import Workload


class Query:
    """Structured Streaming's protocol, with its checkpoint as lists: the offsets of batches, and how many are done."""

    def __init__(self, options, chance):
        self.options, self.chance = options, chance
        self.offsets, self.committed = [], 0
        self.sink = {}
        self.repeated = self.crashes = 0
        self.reader: Any = None

    def crash(self):
        """The process is gone, with everything that is not in the checkpoint or the sink."""
        self.crashes += 1
        self.reader.stop()
        self.reader = None

    def step(self):
        """Run one batch, or crash on the way; False if there is nothing."""
        if self.reader is None:
            source = PgoutputSource(self.options)
            self.reader = source.streamReader(source.schema())
        start = self.offsets[self.committed - 1] if self.committed else self.reader.initialOffset()
        if len(self.offsets) == self.committed:
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
            if end == start:
                return False
            if self.chance(0.1):
                self.crash()
                return True
            self.offsets.append(end)
            if self.committed:
                self.reader.commit(start)
        if self.chance(0.1):
            self.crash()
            return True
        number, end = self.committed, self.offsets[self.committed]
        rows = rows_of(self.reader, start, end)
        if number in self.sink:
            assert rows == self.sink[number], "a batch had other rows when it was read again"
            self.repeated += 1
        self.sink[number] = rows
        if self.chance(0.15):
            self.crash()
            return True
        self.committed += 1
        return True


def run(publisher, seed, transactions, **options):
    dice = random.Random(seed)
    slot = f"workload_{publisher.name}"
    with Workload(publisher.conninfo, seed) as workload:
        workload.create_tables()
        publication = workload.publication()
        publisher.query(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        given = {"connection": publisher.conninfo, "publication": publication, "slot": slot, **options}
        query = Query(given, lambda share: dice.random() < share)
        try:
            for _ in range(transactions // 10):
                workload.step(10)
                if dice.random() < 0.7:
                    query.step()
            end_s = time.monotonic() + 120
            while query.step():
                assert time.monotonic() < end_s
        finally:
            if query.reader is not None:
                query.reader.stop()
    assert replayed(row for rows in query.sink.values() for row in rows) == served(publisher.query)
    return query


def test_random_workload_under_crashes(publisher):
    query = run(publisher, 11, 400, idleIntervalSeconds="0", maxRowsPerTrigger="300")
    assert query.crashes > 2
    assert query.repeated > 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_random_workload_under_crashes_for_long(publisher, seed):
    dice = random.Random(seed)
    limits = dice.choice([{}, {"maxRowsPerTrigger": "100"}, {"maxBytesPerTrigger": "64k"}])
    query = run(publisher, seed, 2000, idleIntervalSeconds=dice.choice(["0", "60"]), **limits)
    assert query.crashes > 2
