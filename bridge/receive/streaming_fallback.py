"""A stream that the server breaks off with the same error again and again: then once without streaming.

While a transaction is in progress, the server decodes it by what its catalog says meanwhile, and errors of its own can
come of that: "could not map filenumber … to relation OID", of a table that a subtransaction altered before it was
rolled back. Decoded at its commit, the same transaction is whole. Pure: no I/O, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.lsn import Lsn

PATIENCE: Final = 3
"""The same error so often at one position is none that passes by itself."""


class BrokenOff:
    """What ended a subscription's streams, and whether the next one may stream transactions in progress."""

    def __init__(self) -> None:
        self._last: tuple[str, Lsn] | None = None
        self._count = 0
        self._off_until_lsn: Lsn | None = None

    def failed(self, message: str, remote_lsn: Lsn) -> None:
        """A stream was ended by an error of the server's, with the origin at `remote_lsn`."""
        if self._off_until_lsn is not None:  # streaming was not why
            self._off_until_lsn, self._count, self._last = None, 0, None
        self._count = self._count + 1 if self._last == (message, remote_lsn) else 1
        self._last = (message, remote_lsn)

    def switches_off(self, flush_lsn: Callable[[], Lsn]) -> bool:
        """Whether streaming ends with the next stream: the same error came PATIENCE times.

        Args:
            flush_lsn: How much WAL the server has; what the error is about lies before that.
        """
        if self._off_until_lsn is not None or self._count < PATIENCE:
            return False
        self._off_until_lsn = flush_lsn()
        return True

    def switches_on(self, durable_lsn: Lsn) -> bool:
        """Whether streaming begins again: the WAL that it failed in is behind."""
        if self._off_until_lsn is None or durable_lsn < self._off_until_lsn:
            return False
        self._off_until_lsn, self._count, self._last = None, 0, None
        return True

    @property
    def off(self) -> bool:
        """The next stream is without."""
        return self._off_until_lsn is not None
