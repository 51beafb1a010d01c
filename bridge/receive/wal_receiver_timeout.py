"""How long the server may be silent: it is asked at half of the time, and given up at all of it.

Source: `LogicalRepApplyLoop` in PostgreSQL's worker.c, with wal_receiver_timeout. Pure: no I/O, no clock.
"""

from __future__ import annotations


class Silence:
    """The time since the server was heard.

    Args:
        timeout_s: How long; 0 for as long as it likes.
        now_s: When the stream begins.
    """

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._half_s = timeout_s / 2
        self._heard_s = now_s
        self._asked_s: float | None = None

    def heard(self, now_s: float) -> None:
        """Bytes came, or nobody listened until now."""
        self._heard_s = now_s
        self._asked_s = None

    def asks(self, now_s: float) -> bool:
        """Whether the server is to be asked for an answer now; once for each silence."""
        if not self._half_s or self._asked_s is not None or now_s < self._heard_s + self._half_s:
            return False
        self._asked_s = now_s
        return True

    def over(self, now_s: float) -> bool:
        """Whether it had its time to answer: as long again. A process that was stopped for hours asks first."""
        return self._asked_s is not None and now_s >= self._asked_s + self._half_s
