"""The report's numbers: medians of tenths, and the ratio of the last twentieth to the first."""

from __future__ import annotations

from benchmarks import many_batches_report
from benchmarks.apply_tables import SERIAL
from benchmarks.many_batches import Series

SERIES = Series(SERIAL, [1.0] * 20 + [2.0] * 10 + [1.5] * 10, [*range(1, 21), *range(1, 21)])


def test_table_has_a_row_for_each_tenth():
    lines = many_batches_report.table(SERIES).splitlines()
    assert lines[0] == "**serial keys**, 40 batches: the last over the first **1.50**"
    assert lines[4] == "| 1 to 4 | 1.00 | 1.00 | 4 |"
    assert lines[8] == "| 17 to 20 | 1.00 | 1.00 | 20 |"
    assert lines[-1] == "| 37 to 40 | 1.50 | 1.50 | 20 |"
    assert len(lines) == 14


def test_report_says_what_was_measured():
    text = many_batches_report.render([SERIES], facts={"machine": "2 cores"})
    assert text.startswith("# Many batches on one table\n\n- machine: 2 cores\n\n")
    assert many_batches_report.table(SERIES) in text
