"""The report's numbers: medians, and the ratio within each round."""

from __future__ import annotations

from benchmarks import report
from benchmarks.measure import DECODE, RECEIVE, RECVLOGICAL, Measured, Run
from benchmarks.workloads import WORKLOADS


def rounds(*seconds):
    return [
        [
            Run(variant, wall, wall / 2, wall / 4, wall / 8)
            for variant, wall in zip((RECVLOGICAL, RECEIVE, DECODE), row, strict=True)
        ]
        for row in seconds
    ]


MEASURED = Measured(WORKLOADS["W1"], 1_600_000, 700, 12.4, rounds((4, 4, 5), (5, 4, 4), (4.4, 4, 8)))
MEASURED.left_out.append(Run(RECEIVE, 9, 1, 1, 5))


def test_table_has_medians_and_ratios_by_round():
    assert report.table(MEASURED).splitlines()[2:] == [
        "| pg_recvlogical | 4.40 | 363 636 | 2.20 | 1.10 | 0.55 | 1 |",
        "| receive only | 4.00 | 400 000 | 2.00 | 1.00 | 0.50 | **1.10** (1.00 to 1.25) |",
        "| receive + decode | 5.00 | 320 000 | 2.50 | 1.25 | 0.62 | **0.80** (0.55 to 1.25) |",
    ]


def test_report_says_what_was_measured_and_where():
    text = report.render([MEASURED], facts=report.facts("18.6", {"fsync": "off"}))
    assert "PostgreSQL 18.6, Python 3." in text
    assert "fsync = off" in text
    assert "cores" in text
    assert "## W1\n\nA table of 8 columns" in text
    assert "1 600 000 rows in 700 transactions, written in 12 s; 3 rounds. Runs left out: 0, 1, 0 (in" in text
    assert "ones that were not: 9." in text
    assert report.table(MEASURED) in text


def test_a_machine_without_a_model_name_and_a_folder_without_a_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(report, "_CPUINFO", tmp_path / "none")
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    found = report.facts("18.6", {})
    assert found["pgbridge"] == "no commit"
    assert found["machine"]
