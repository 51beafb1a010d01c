"""PostgreSQL's epoch, 2000-01-01 UTC: times in the protocol are microseconds since then (datatype/timestamp.h)."""

from __future__ import annotations

from typing import Final

POSTGRES_EPOCH_S: Final = 946_684_800
"""In seconds since 1970."""

POSTGRES_EPOCH_US: Final = POSTGRES_EPOCH_S * 1_000_000
"""In microseconds since 1970."""
