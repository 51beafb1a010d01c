"""What is received, what is durable, and therefore what may be confirmed to the server. Pure: no I/O, no clock.

The invariant: `durable_lsn` never moves back, and everything that commits before it was handed over and is durable.
A transaction in progress commits after it, however much of it has been streamed: the server keeps what that needs by
the slot's restart_lsn, and sends it again from its first change. So transactions in progress hold nothing back.
PostgreSQL's counterpart is `get_flush_position` and `send_feedback` in worker.c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.lsn import Lsn


class Progress:
    """Positions of one stream.

    Attributes:
        received_lsn: The highest position the server has told us of: written, in its words.
        durable_lsn: Everything that ends at or before it is durable here: what is confirmed as flushed.
        handed_over_lsn: End of the last whole transaction that was received.
    """

    def __init__(self, durable_lsn: Lsn) -> None:
        self.received_lsn = durable_lsn
        self.durable_lsn = durable_lsn
        self.handed_over_lsn = durable_lsn
        self._quiet: tuple[Lsn, Lsn] | None = None

    def received(self, lsn: Lsn) -> None:
        """Bytes up to `lsn` have arrived."""
        self.received_lsn = max(self.received_lsn, lsn)

    def transaction(self, end_lsn: Lsn) -> None:
        """A whole transaction has arrived; it is pending until `durable` reaches its end."""
        self.handed_over_lsn = max(self.handed_over_lsn, end_lsn)
        self.received(end_lsn)

    def keepalive(self, wal_end: Lsn, *, in_transaction: bool) -> None:
        """The server has sent everything that commits before `wal_end`.

        Inside a transaction the position says nothing about that transaction, so it is not used.
        """
        self.received(wal_end)
        if not in_transaction:
            self._all_sent(wal_end)

    def streamed(self, lsn: Lsn) -> None:
        """A change of a transaction in progress, at `lsn`, has arrived after all that it came with was handed over.

        The server streams what it has decoded: what commits before this change was sent before it.
        """
        self.received(lsn)
        self._all_sent(lsn)

    def _all_sent(self, lsn: Lsn) -> None:
        """What commits before `lsn` has been handed over."""
        if self._quiet is None or lsn > self._quiet[0]:
            self._quiet = (lsn, self.handed_over_lsn)

    def quiet_lsn(self) -> Lsn | None:
        """A position beyond `durable_lsn` that may be made durable with nothing to apply, if there is one.

        It is the furthest that the server has told, once everything handed over before it told that is durable.
        """
        if self._quiet is None:
            return None
        wal_end, needs = self._quiet
        return wal_end if needs <= self.durable_lsn < wal_end else None

    def durable(self, lsn: Lsn) -> None:
        """Everything that ends at or before `lsn` is durable, and recorded as such."""
        self.durable_lsn = max(self.durable_lsn, lsn)

    @property
    def passed_lsn(self) -> Lsn:
        """Every transaction that ends at or before it has been handed over."""
        return max(self.handed_over_lsn, self._quiet[0]) if self._quiet else self.handed_over_lsn

    @property
    def pending(self) -> bool:
        """A transaction was handed over that is not durable yet."""
        return self.handed_over_lsn > self.durable_lsn
