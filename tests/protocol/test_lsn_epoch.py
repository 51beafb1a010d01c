"""Times of the protocol count from 2000, and those of Spark and Prometheus from 1970."""

from __future__ import annotations

import datetime as dt

from pgbridge.protocol.lsn import POSTGRES_EPOCH_S, POSTGRES_EPOCH_US, utc


def test_counts_from_2000():
    assert utc(0) == dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
    assert utc(816_000_000_123_456).isoformat() == "2025-11-09T10:40:00.123456+00:00"
    assert utc(-1).isoformat() == "1999-12-31T23:59:59.999999+00:00"


def test_lies_where_1970_counts_it():
    assert utc(0).timestamp() == POSTGRES_EPOCH_S
    assert POSTGRES_EPOCH_US == POSTGRES_EPOCH_S * 1_000_000
