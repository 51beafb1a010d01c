"""The report's numbers, and when the lag counts as growing."""

from __future__ import annotations

from benchmarks import steady_report
from benchmarks.latency import Sample
from benchmarks.processes import Usage
from benchmarks.steady import Steady, loads

START_S, SECONDS = 100, 40


def steady(latency_s, last_s=None):
    """A run in which each commit is durable after some time, that grows from the first to the last one's."""
    last_s = latency_s if last_s is None else last_s
    commits = [Sample(START_S - 60 + n / 5, n + 1) for n in range(5 * (SECONDS + 60) + 1)]
    durable = [
        Sample(at_s + latency_s + (last_s - latency_s) * max(0, at_s - START_S) / SECONDS, lsn) for at_s, lsn in commits
    ]
    return Steady(
        loads(1)["pgbench"],
        START_S,
        START_S + SECONDS,
        5000,
        commits,
        durable,
        Usage(4, 20, 300 << 20, 1500 << 20, 0),
        0.5,
        12,
    )


def test_table():
    assert steady_report.table(steady(2)).splitlines()[-1] == "| 2.00 | 2.00 | 2.00 | 0.10 | 0.50 | 300 | 1500 | 12 |"


def test_quarters():
    rows = steady_report.quarters(steady(1, 9)).splitlines()[2:]
    assert rows[0] == "| 1 | 2.00 | 2.92 | 1.57 | 2.40 |"
    assert [row.split(" | ")[1] for row in rows] == ["2.00", "4.00", "6.00", "8.00"]


def test_lag_grows_by_more_than_a_second_and_a_quarter():
    assert not steady_report.lag_grows(steady(1, 2))
    assert not steady_report.lag_grows(steady(20, 24))
    assert steady_report.lag_grows(steady(1, 9))


def test_what_was_never_durable_is_not_given_a_time():
    run = steady(1)
    del run.durable[350:]
    assert "| not durable | not durable |" in steady_report.table(run)
    assert steady_report.lag_grows(run)


def test_report():
    text = steady_report.render([steady(2), steady(1, 9)], facts={"machine": "this one"})
    assert "- machine: this one\n" in text
    assert (
        "## pgbench\n\nPgbench's TPC-B transactions on its four tables, of scale 10: 100 transactions a second" in text
    )
    assert (
        "for 40 s, with `commit_interval_s = 1` (5 000 transactions with those before). 0.5 s of CPU time were stolen."
        " The lag does not"
    ) in text
    assert "The lag grows." in text
