"""The report's numbers: medians, and the ratio to PostgreSQL within each round."""

from __future__ import annotations

from benchmarks import start_report
from benchmarks.start import BRIDGE, NATIVE, Measured, Run

MEASURED = Measured(
    10,
    [
        [Run(NATIVE, 0.5, 1.5, 0.5, 0), Run(BRIDGE, 20, 28, 4, 0)],
        [Run(BRIDGE, 22, 30, 6, 9), Run(NATIVE, 0.6, 1.75, 0.25, 0)],
    ],
    [Run(BRIDGE, 50, 60, 9, 30)],
)


def test_table():
    assert start_report.table(MEASURED).splitlines()[2:] == [
        f"| {NATIVE} | 0.55 | 1.62 | 0.38 | 1 |",
        f"| {BRIDGE} | 21.00 | 29.00 | 5.00 | **17.00** (16.00 to 18.00) |",
    ]


def test_report():
    text = start_report.render(MEASURED, facts={"machine": "this one"})
    assert "- machine: this one\n" in text
    assert "pgbench's tables of scale 10; 2 rounds. Runs left out: 1; disturbed ones that were not: 1.\n" in text
    assert start_report.table(MEASURED) in text
