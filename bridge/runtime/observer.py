"""A stream's reports while it runs, to whoever watches the daemon. Recovery and results do not need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgbridge.protocol.lsn import Lsn


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A batch that is durable.

    Attributes:
        end_lsn: The origin's LSN after it.
        commit_time_us: The last transaction's: microseconds since 2000-01-01 UTC by the server's clock; 0 if that is a
            logical message outside of transactions.
        transactions: How many.
        rows: How many row messages were received.
        tables: How many Delta tables were committed to.
        seconds: By phase: `form` (decoding and folding), `commit` (to Delta), `flush` (to the disk), `record` (in the
            catalog).
    """

    end_lsn: Lsn
    commit_time_us: int
    transactions: int
    rows: int
    tables: int
    seconds: Mapping[str, float]


class Observer:
    """Is told what happens; this one does nothing with it. Methods are called from the stream's threads."""

    def stream_begins(self, start_lsn: Lsn, flush_lsn: Lsn) -> None:
        """A stream begins at an LSN: what is not durable comes again, of what the server has: its WAL up to another."""

    def stream_ended(self) -> None:
        """It has ended, by an error or not."""

    def received(self, commit_time_us: int, end_lsn: Lsn) -> None:
        """Transactions were received: the first was committed then (0 if unknown), the last ends at this LSN."""

    def durable(self, end_lsn: Lsn) -> None:
        """All transactions that end at or before this LSN are durable, or nothing of them is for us."""

    def applied(self, report: BatchReport) -> None:
        """A batch is durable."""
