"""The report's numbers: a row for each number of clients."""

from __future__ import annotations

from benchmarks import synchronous
from benchmarks.latency import Latencies
from benchmarks.synchronous import Measured

MEASURED = [
    Measured(1, Latencies((1.0, 2.0, 3.0)), 6.0, 0.0),
    Measured(8, Latencies(tuple(second / 10 for second in range(1, 101))), 50.0, 1.25),
]


def test_table():
    assert synchronous.table(MEASURED).splitlines()[2:] == [
        "| 1 | 3 | 2.00 | 2.00 | 3.00 | 3.00 | 0.5 | 0.0 |",
        "| 8 | 100 | 5.05 | 5.00 | 9.50 | 10.00 | 2.0 | 1.2 |",
    ]


def test_report():
    text = synchronous.render(MEASURED, facts={"machine": "this one"})
    assert "- machine: this one\n" in text
    assert synchronous.table(MEASURED) in text
