"""Log sequence numbers: positions in the WAL, as 64-bit byte offsets.

Source: PostgreSQL documentation, "pg_lsn Type"; `src/backend/utils/adt/pg_lsn.c`.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_LIMIT = 1 << 64


class Lsn(int):
    """A WAL position: an unsigned 64-bit integer that prints as PostgreSQL prints it.

    It compares, subtracts (bytes of WAL between two positions) and is stored as an `int`.
    """

    __slots__ = ()

    def __new__(cls, value: int = 0) -> Self:
        """Make an Lsn of an integer.

        Raises:
            ValueError: The value is not an unsigned 64-bit integer.
        """
        if not 0 <= value < _LIMIT:
            raise ValueError(f"LSN out of range: {value} is not an unsigned 64-bit integer")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `16/B374D848`, the form `pg_lsn` reads: two hexadecimal halves of at most 8 digits.

        Raises:
            ValueError: The text has another form.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f'invalid LSN "{text}": expected two hexadecimal numbers, as in 16/B374D848')
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{int(self) >> 32:X}/{int(self) & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({self})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


unchecked_lsn: Callable[[int], Lsn] = functools.partial(int.__new__, Lsn)
"""Make an Lsn of an unsigned 64-bit field; the check of the range would cost as much as unpacking the field."""

INVALID = Lsn(0)
"""`InvalidXLogRecPtr`: no position."""


# --- PostgreSQL's epoch, 2000-01-01 UTC: times in the protocol are microseconds since then (datatype/timestamp.h) -----

POSTGRES_EPOCH_S: Final = 946_684_800
"""Seconds since 1970."""

POSTGRES_EPOCH_US: Final = POSTGRES_EPOCH_S * 1_000_000
"""Microseconds since 1970."""

_EPOCH: Final = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


def utc(time_us: int) -> dt.datetime:
    """Return a time of the protocol, for example a commit's, as a date and time in UTC."""
    return _EPOCH + dt.timedelta(microseconds=time_us)
