"""The report's numbers: medians, and the ratio to the smallest table within each round."""

from __future__ import annotations

from benchmarks import apply_report
from benchmarks.apply import Cost, Measured
from benchmarks.apply_tables import SERIAL, Case, Size


def measured(rows, *seconds):
    costs = [Cost(one, 2 * one, 7, 2, 3_000_000) for one in seconds]
    return Measured(Case(Size(rows, SERIAL), "update", 1_000), costs)


MEASURED = [measured(50_000_000, 4, 2, 3), measured(1_000_000, 1, 2, 2)]


def test_table_has_medians_and_ratios_by_round():
    assert apply_report.table(MEASURED).splitlines()[2:] == [
        "| 1 000 | update | serial | 1 000 000 | 2.00 (1.00 to 2.00) |  | 4.00 | 7 | 2 | 3.0 |",
        "| 1 000 | update | serial | 50 000 000 | 3.00 (2.00 to 4.00) | 1.50 | 6.00 | 7 | 2 | 3.0 |",
    ]


def test_report_says_what_was_measured():
    text = apply_report.render(MEASURED, facts={"machine": "2 cores"})
    assert text.startswith("# What a commit costs\n\n- machine: 2 cores\n\n")
    assert apply_report.table(MEASURED) in text
