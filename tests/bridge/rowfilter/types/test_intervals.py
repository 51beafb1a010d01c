"""Intervals are compared with months of 30 days and days of 24 hours, from the least to the greatest."""

from __future__ import annotations

import pytest

from bridge.rowfilter.types import intervals
from tests.bridge.rowfilter.compared import refused

FILTERS = [
    "span > '1 mon 3 days'",
    "span = '30 days'",
    "span <> interval '720 hours'",
    "span <= '-1 mons +30 days'",
    "span in ('1 day', '24:00', '1 year 2 months')",
    "span between '-1 days' and '30 days'",
    "span is distinct from '00:00:00'",
    "coalesce(span, '1 day') > '0 days'",
    "nullif(span, '30 days') is null",
    "case when b then span else '1 year' end >= '1 year'",
    "span = any ('{1 day,\"1 mon\",NULL}')",
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


def test_the_ends_of_the_range(spark):
    from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

    texts = ["infinity", "-infinity", "178956970 years 7 mons 2147483647 days 2562047788:00:54.775807", None]
    least = "-178956970 years -8 mons -2147483648 days -2562047788:00:54.775808"
    frame = spark.createDataFrame([(text,) for text in [*texts, least]], "t string")
    found = {row.t: row.span for row in frame.select("t", intervals.span(F.col("t")).alias("span")).collect()}
    months, days, usecs = 2**31 - 1, 2**31 - 1, 2**63 - 1
    assert found[texts[2]] == (months * 30 + days) * 86_400_000_000 + usecs
    assert found[least] == (-(2**31) * 31) * 86_400_000_000 - 2**63
    assert found["-infinity"] < found[least]
    assert found["infinity"] > found[texts[2]]
    assert found[None] is None


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("greatest(span, '1 day') = '1 day'", "GREATEST of values of type interval is not translated"),
        (
            "ts + span > '2020-01-01'",
            "adding intervals is translated only for literals of days, hours, minutes and seconds",
        ),
        (
            "span > '1-2'",
            '"1-2" is not translated as type interval; write it in years, months, days, hours, minutes and seconds',
        ),
    ],
)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason
