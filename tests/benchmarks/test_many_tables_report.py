"""A line for each size, with the ratio of a batch to the first line's."""

from __future__ import annotations

from benchmarks.many_tables import Footprint, Measured, Size
from benchmarks.many_tables_report import render, table

HELD = Footprint(200 << 20, 1000 << 20, 12, 30, 80, 400)
MEASURED = [
    Measured(Size(10), 20.0, 15.0, HELD, 0.01, [2.0, 1.0, 3.0]),
    Measured(Size(1_000), 600.4, 30.0, HELD, 0.0123, [2.2]),
]


def test_table():
    assert table(MEASURED).splitlines()[2:] == [
        "| 10 | 1 | 20 | 15 | 2.00 | 1.00 | 200 | 1000 | 12 + 80 | 30 + 400 | 0.010 |",
        "| 1 000 | 1 | 600 | 30 | 2.20 | 1.10 | 200 | 1000 | 12 + 80 | 30 + 400 | 0.012 |",
    ]


def test_report():
    lines = render(MEASURED, facts={"machine": "one"}, title="Many tables").splitlines()
    assert lines[0] == "# Many tables"
    assert "- machine: one" in lines
    assert all(len(line) <= 120 for line in lines if not line.startswith("|"))
