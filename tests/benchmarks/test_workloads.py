"""The workloads write what they say, and only after the slot was made."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.workloads import PUBLICATION, WORKLOADS

SCALE = 0.002


@pytest.mark.parametrize(
    ("name", "expected", "transactions"),
    [("W1", {"I": 2000, "U": 1000, "D": 200}, 1 + 1 + 1), ("W2", {"I": 400, "U": 1200}, 400)],
)
def test_stream_has_what_was_written(private, publisher, name, expected, transactions):
    workload = WORKLOADS[name]
    workload.prepare(private, publisher.name)
    publisher.execute("SELECT pg_create_logical_replication_slot('bench_test', 'pgoutput')")
    assert workload.load(private, publisher.name, SCALE) == (sum(expected.values()), transactions)
    changes = publisher.query(
        "SELECT chr(get_byte(data, 0)) FROM pg_logical_slot_get_binary_changes("
        "'bench_test', NULL, NULL, 'proto_version', '1', 'publication_names', %s)",
        (PUBLICATION,),
    )
    tags = Counter(tag for (tag,) in changes)
    assert {tag: count for tag, count in tags.items() if tag in "IUDT"} == expected
    assert tags["B"] == tags["C"] == transactions
