"""wal_receiver_timeout: a server that sends nothing for half of it is pinged; silent for all of it, it is given up.

Source: `LogicalRepApplyLoop` in PostgreSQL's worker.c. Pure: no I/O, no clock.
"""

from __future__ import annotations


class WalReceiverTimeout:
    """The time since the server last sent something.

    Args:
        timeout_s: How long the server may send nothing; 0 for any time.
        now_s: When the stream begins.
    """

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._half_s = timeout_s / 2
        self._received_s = now_s
        self._pinged_s: float | None = None

    def received(self, now_s: float) -> None:
        """Start anew: bytes came, or nothing was read until now."""
        self._received_s = now_s
        self._pinged_s = None

    def ping_due(self, now_s: float) -> bool:
        """Whether to ask the server for a reply now; True once until the server is heard again."""
        if not self._half_s or self._pinged_s is not None or now_s < self._received_s + self._half_s:
            return False
        self._pinged_s = now_s
        return True

    def expired(self, now_s: float) -> bool:
        """Whether the server has not replied to the ping for half of the timeout.

        Counted from the ping: a process that was stopped for hours pings first.
        """
        return self._pinged_s is not None and now_s >= self._pinged_s + self._half_s
