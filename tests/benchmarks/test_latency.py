"""Latencies and lags of samples that are small enough to count by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.latency import Latencies, Sample, lag_s, latencies

COMMITS = [Sample(10, 100), Sample(11, 110), Sample(12, 120), Sample(13, 130), Sample(14, 140)]
DURABLE = [Sample(9, 90), Sample(12.5, 115), Sample(13.5, 120), Sample(15, 135)]


def test_a_commit_is_durable_when_the_origin_has_passed_it():
    assert latencies(COMMITS, DURABLE).seconds == (2.5, 1.5, 1.5, 2.0, math.inf)


def test_a_commit_may_be_durable_before_its_sample():
    assert latencies([Sample(12.6, 110)], DURABLE).seconds == (0,)


def test_nothing_is_durable_without_an_origin():
    assert latencies(COMMITS[:1], []).seconds == (math.inf,)


@pytest.mark.parametrize(("percent", "expected"), [(50, 2), (75, 3), (95, 4), (100, 4), (1, 1)])
def test_percentiles_are_latencies_that_were_seen(percent, expected):
    assert Latencies((4, 1, 3, 2)).percentile(percent) == expected


@pytest.mark.parametrize(
    ("at_s", "expected"),
    [(9.5, 0), (10.5, 0.5), (12.4, 2.4), (12.6, 0.6), (13.2, 1.2), (13.6, 0.6), (15, 1), (20, 6)],
)
def test_lag_is_the_age_of_the_oldest_commit_that_is_not_durable(at_s, expected):
    assert lag_s(at_s, COMMITS, DURABLE) == pytest.approx(expected)


def test_no_lag_when_all_is_durable():
    assert lag_s(20, COMMITS, [*DURABLE, Sample(16, 140)]) == 0
    assert lag_s(10.5, COMMITS, []) == 0.5
