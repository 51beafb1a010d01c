"""The report's numbers: medians, and the ratio to PostgreSQL within each round."""

from __future__ import annotations

from benchmarks import catch_up_report
from benchmarks.catch_up import CASES, COLD, NATIVE, WARM, Measured, Run
from benchmarks.report import round_ratios

MIB = 1 << 20


def bridge(variant, seconds, stolen_s=0.0):
    return Run(variant, seconds, stolen_s, 0.25, 1.5, 20.25, 300 * MIB, 2000 * MIB, 6)


MEASURED = Measured(
    CASES["5xW2"],
    4_000_000,
    1_000_000,
    [
        [Run(NATIVE, 5, 0, 0.5, 4.0), bridge(WARM, 10)],
        [bridge(WARM, 12, stolen_s=2), Run(NATIVE, 4, 0, 0.75, 4.4)],
        [Run(NATIVE, 4.5, 0, 0.5, 4.2), bridge(WARM, 4.5)],
    ],
    [bridge(WARM, 99, stolen_s=90)],
)


def test_table_has_the_variants_that_ran():
    assert catch_up_report.table(MEASURED).splitlines()[2:] == [
        f"| {NATIVE} | 4.50 | 4.2 |  | 0.5 |  |  |  | 1 |",
        f"| {WARM} | 10.00 | 1.5 | 20.2 | 0.2 | 300 | 2000 | 6 | **2.00** (1.00 to 3.00) |",
    ]


def test_ratio_is_within_each_round():
    assert round_ratios(MEASURED.rounds, WARM, NATIVE) == [2, 3, 1]


def test_report_says_what_was_measured():
    text = catch_up_report.render([MEASURED], facts={"machine": "this one"})
    assert "- machine: this one\n" in text
    assert "## 5xW2\n\n5 times: `pgbench" in text
    assert (
        "4 000 000 rows in 1 000 000 transactions; 3 rounds. Runs left out: 1; disturbed ones that were not: 1." in text
    )
    assert COLD not in text.split("## ")[1]
    assert catch_up_report.table(MEASURED) in text
    assert "\n\nA table of 8 columns" in catch_up_report.render(
        [Measured(CASES["W1"], 1, 1, MEASURED.rounds)], facts={}
    )
