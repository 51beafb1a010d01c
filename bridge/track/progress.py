"""What may be confirmed to the server, and which transaction may be skipped. Pure: no I/O, no clock.

The positions of a stream are what was received, what is durable, and therefore confirmed. The invariant: `durable_lsn`
never moves back, and every transaction that commits before it was handed over and is durable. A transaction in progress
commits after it, however much of it has been streamed: the slot's restart_lsn makes the server keep its WAL, and the
server sends it again from its first change. So transactions in progress do not hold `durable_lsn` back. PostgreSQL's
counterpart is `get_flush_position` and `send_feedback` in worker.c.

The LSN of the transaction to skip is what ALTER SUBSCRIPTION … SKIP accepts: `parse_subscription_options` and
`AlterSubscription` in subscriptioncmds.c; `maybe_start_skipping_changes` and `clear_subscription_skip_lsn` in worker.c.
"""

from __future__ import annotations

from pgbridge.bridge.runtime.errors import InvalidLsn, SkipError
from pgbridge.protocol.lsn import INVALID, Lsn


class Progress:
    """Positions of one stream.

    Attributes:
        received_lsn: The highest position that the server has sent; a status update's write_lsn.
        durable_lsn: Every transaction that ends at or before it is durable here; a status update's flush_lsn.
        handed_over_lsn: End of the last whole transaction that was received.
        server_time_us: When the server sent the last message, by its clock: microseconds since 2000-01-01 UTC.
    """

    def __init__(self, durable_lsn: Lsn) -> None:
        self.received_lsn = durable_lsn
        self.durable_lsn = durable_lsn
        self.handed_over_lsn = durable_lsn
        self.server_time_us = 0
        self._quiet: tuple[Lsn, Lsn] | None = None

    def received(self, lsn: Lsn) -> None:
        """Bytes up to `lsn` have arrived."""
        self.received_lsn = max(self.received_lsn, lsn)

    def transaction(self, end_lsn: Lsn) -> None:
        """A whole transaction has arrived; it is pending until `durable` reaches its end."""
        self.handed_over_lsn = max(self.handed_over_lsn, end_lsn)
        self.received(end_lsn)

    def keepalive(self, wal_end: Lsn, *, in_transaction: bool) -> None:
        """The server has sent every transaction that commits before `wal_end`.

        Inside a transaction the position does not cover that transaction, so it is not used.
        """
        self.received(wal_end)
        if not in_transaction:
            self._all_sent(wal_end)

    def streamed(self, lsn: Lsn) -> None:
        """A change of a transaction in progress has arrived, at `lsn`; all transactions before it were handed over.

        The server sends in the order of decoding: it sent every transaction that commits before this change.
        """
        self.received(lsn)
        self._all_sent(lsn)

    def _all_sent(self, lsn: Lsn) -> None:
        """Every transaction that commits before `lsn` has been handed over."""
        if self._quiet is None or lsn > self._quiet[0]:
            self._quiet = (lsn, self.handed_over_lsn)

    def quiet_lsn(self) -> Lsn | None:
        """A position beyond `durable_lsn` up to which nothing is left to apply, if there is one.

        It is the furthest position that the server has told, once all transactions handed over before are durable.
        """
        if self._quiet is None:
            return None
        wal_end, needs = self._quiet
        return wal_end if needs <= self.durable_lsn < wal_end else None

    def durable(self, lsn: Lsn) -> None:
        """Every transaction that ends at or before `lsn` is durable, and recorded as such."""
        self.durable_lsn = max(self.durable_lsn, lsn)

    def behind_s(self, commit_time_us: int) -> float:
        """How long before the server's last message a transaction was committed there."""
        return (self.server_time_us - commit_time_us) / 1_000_000

    @property
    def passed_lsn(self) -> Lsn:
        """Every transaction that ends at or before it has been handed over."""
        return max(self.handed_over_lsn, self._quiet[0]) if self._quiet else self.handed_over_lsn

    @property
    def pending(self) -> bool:
        """Whether a transaction was handed over that is not durable yet."""
        return self.handed_over_lsn > self.durable_lsn


NONE = "none"


def given_lsn(text: str) -> Lsn:
    """Read an LSN that an operator gave.

    Raises:
        InvalidLsn: It is none, or the invalid one, 0/0.
    """
    try:
        lsn = Lsn.parse(text.strip())
    except ValueError as error:
        raise InvalidLsn(f"invalid WAL location (LSN): {text}") from error
    if lsn == INVALID:
        raise InvalidLsn(f"invalid WAL location (LSN): {text}")
    return lsn


def parse_skip_lsn(text: str, remote_lsn: Lsn | None) -> Lsn | None:
    """Read the finish LSN to skip; None for "none", which resets it.

    Args:
        text: The LSN as an error shows it, or "none".
        remote_lsn: The origin's LSN; None before the subscription's start.

    Raises:
        InvalidLsn: The text is not an LSN.
        SkipError: The transaction that finishes there is already applied.
    """
    if text.strip().lower() == NONE:
        return None
    lsn = given_lsn(text)
    if remote_lsn is not None and lsn < remote_lsn:
        raise SkipError(f"skip WAL location (LSN {lsn}) must be greater than origin LSN {remote_lsn}")
    return lsn
