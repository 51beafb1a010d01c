"""Commit times: PostgreSQL's TimestampTz, microseconds since 2000-01-01 UTC by the server's clock."""

from __future__ import annotations

import datetime as dt
from typing import Final

_EPOCH: Final = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


def utc(commit_time_us: int) -> dt.datetime:
    """The same as a date and time in UTC."""
    return _EPOCH + dt.timedelta(microseconds=commit_time_us)
