"""Commit times count from PostgreSQL's epoch."""

import datetime as dt

from protocol.commit_time import utc


def test_counts_from_2000():
    assert utc(0) == dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
    assert utc(816_000_000_123_456).isoformat() == "2025-11-09T10:40:00.123456+00:00"
