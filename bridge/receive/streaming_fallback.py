"""Streams that cannot get past a position as they were asked for: one without `streaming`, or in text, can.

The server decodes a transaction in progress by what its catalog says at that time, and that can fail: "could not map
filenumber … to relation OID", where a subtransaction altered a table before it was rolled back. Decoded at its commit,
the same transaction is whole.

And a stream in binary form cannot be read where a column has a type that is read from text only. The catalog says so
before the stream begins, unless the column was dropped since. Pure: no I/O, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.lsn import Lsn

REPEATS: Final = 3
"""An error that came this often at one position does not go away by itself."""


class StreamingFallback:
    """Decides from a subscription's errors whether its next stream does without `streaming`, or without `binary`."""

    def __init__(self) -> None:
        self._last: tuple[str, Lsn] | None = None
        self._count = 0
        self._until_lsn: Lsn | None = None
        self._text_until_lsn: Lsn | None = None

    def needs_text(self, flush_lsn: Callable[[], Lsn]) -> bool:
        """Have the next streams be in text, because one in binary form cannot be read; False if they are already.

        Args:
            flush_lsn: How much WAL the server has. The fallback lasts until that is applied.
        """
        if self.text:
            return False
        self._text_until_lsn = flush_lsn()
        return True

    @property
    def text(self) -> bool:
        """Whether the next stream is in text."""
        return self._text_until_lsn is not None

    def failed(self, message: str, remote_lsn: Lsn, *, lasting: bool = False) -> None:
        """Count a stream that the server ended with an error, the origin at `remote_lsn`; a lasting one suffices."""
        if self._until_lsn is not None:  # streaming was not the reason
            self._reset()
            lasting = False
        self._count = REPEATS if lasting else self._count + 1 if self._last == (message, remote_lsn) else 1
        self._last = (message, remote_lsn)

    def begins(self, flush_lsn: Callable[[], Lsn]) -> bool:
        """Whether the fallback begins with the next stream: the same error came REPEATS times.

        Args:
            flush_lsn: How much WAL the server has. The fallback lasts until that is applied: the error is about WAL
                before it.
        """
        if self._until_lsn is not None or self._count < REPEATS:
            return False
        self._until_lsn = flush_lsn()
        return True

    def ends(self, durable_lsn: Lsn) -> bool:
        """Whether a fallback ends now: all WAL that the server had when it began is applied."""
        if self._text_until_lsn is not None and durable_lsn >= self._text_until_lsn:
            self._text_until_lsn = None
            return True
        if self._until_lsn is None or durable_lsn < self._until_lsn:
            return False
        self._reset()
        return True

    @property
    def active(self) -> bool:
        """Whether the next stream does without `streaming`."""
        return self._until_lsn is not None

    def _reset(self) -> None:
        self._until_lsn, self._count, self._last = None, 0, None
