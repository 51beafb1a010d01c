"""The workloads of others, and of tables of other shapes, write what is counted, and only after the slot was made."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.checksum import columns_of, in_postgresql
from benchmarks.published import PUBLISHED, SHAPES
from benchmarks.workloads import PUBLICATION

SCALE = 0.0005
SMALL = [*PUBLISHED.values(), *(next(iter(workloads.values())) for workloads in SHAPES.values())]


@pytest.mark.parametrize("workload", SMALL, ids=[workload.name for workload in SMALL])
def test_stream_has_what_was_counted(private, publisher, workload):
    workload.prepare(private, publisher.name)
    publisher.execute("SELECT pg_create_logical_replication_slot('bench_test', 'pgoutput')")
    rows, transactions = workload.load(private, publisher.name, SCALE)
    changes = publisher.query(
        "SELECT chr(get_byte(data, 0)) FROM pg_logical_slot_get_binary_changes("
        "'bench_test', NULL, NULL, 'proto_version', '1', 'publication_names', %s)",
        (PUBLICATION,),
    )
    tags = Counter(tag for (tag,) in changes)
    assert sum(tags[tag] for tag in "IUD") == rows > 0
    assert 0 < tags["C"] <= transactions  # one that changes nothing is not sent
    assert in_postgresql(publisher.connection, columns_of(publisher.connection, PUBLICATION))


def test_values_follow_from_numbers(private, publisher):
    """So another run writes the same."""
    sums = []
    for _ in range(2):
        publisher.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        publisher.execute(f"DROP PUBLICATION IF EXISTS {PUBLICATION}")
        PUBLISHED["tpcc"].prepare(private, publisher.name)
        PUBLISHED["tpcc"].load(private, publisher.name, SCALE)
        sums.append(in_postgresql(publisher.connection, columns_of(publisher.connection, PUBLICATION)))
    assert sums[0] == sums[1]
    assert sums[0]["order_line"][0] > 0
