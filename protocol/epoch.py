"""PostgreSQL's epoch, 2000-01-01 UTC: times in the protocol are microseconds since then (datatype/timestamp.h)."""

from __future__ import annotations

import datetime as dt
from typing import Final

POSTGRES_EPOCH_S: Final = 946_684_800
"""In seconds since 1970."""

POSTGRES_EPOCH_US: Final = POSTGRES_EPOCH_S * 1_000_000
"""In microseconds since 1970."""

_EPOCH: Final = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


def utc(time_us: int) -> dt.datetime:
    """Return a time of the protocol, for example a commit's, as a date and time in UTC."""
    return _EPOCH + dt.timedelta(microseconds=time_us)
