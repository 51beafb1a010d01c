"""What the streams have told since the daemon began, in memory and bounded. No I/O; the clock comes in.

The oldest transaction that was received and is not durable is known without a record of each.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import Histogram

from pgbridge.bridge.runtime.observer import BatchReport, Observer
from pgbridge.protocol.lsn import POSTGRES_EPOCH_S, Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PHASES = ("form", "commit", "flush", "record")
BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper limits of the histogram of a batch's seconds."""
BUCKETS_ROWS = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0, 1_000_000.0, 10_000_000.0)
"""Upper limits of the histogram of a batch's rows."""

_BATCHES = 50
_SAMPLE_INTERVAL_S = 10.0
_SAMPLES = 360  # an hour


def epoch_s(commit_time_us: int) -> float:
    """Return a commit time as seconds since 1970."""
    return POSTGRES_EPOCH_S + commit_time_us / 1e6


def _histogram(name: str, limits: Sequence[float]) -> Histogram:
    return Histogram(name, name, buckets=limits, registry=None)


class Observations(Observer):
    """What one subscription's streams have told.

    Args:
        now_s: Seconds since 1970.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._streaming = False
        self._outstanding = Outstanding()
        self._batches: deque[tuple[float, BatchReport]] = deque(maxlen=_BATCHES)
        self._lags: deque[tuple[float, int | None, float | None]] = deque(maxlen=_SAMPLES)
        self.transactions = self.rows = self.batches_applied = 0
        self.histograms = {phase: _histogram(phase, BUCKETS_S) for phase in PHASES}
        self.batch_rows = _histogram("rows", BUCKETS_ROWS)

    def stream_begins(self, start_lsn: Lsn, flush_lsn: Lsn) -> None:  # noqa: D102 - Observer's
        with self._lock:
            self._streaming = True
            self._outstanding.stream_begins(start_lsn, flush_lsn)

    def stream_ended(self) -> None:  # noqa: D102 - Observer's
        with self._lock:
            self._streaming = False

    def received(self, commit_time_us: int, end_lsn: Lsn) -> None:  # noqa: D102 - Observer's
        if commit_time_us:  # 0: a message outside of transactions, which nobody committed
            with self._lock:
                self._outstanding.received(epoch_s(commit_time_us), end_lsn)

    def durable(self, end_lsn: Lsn) -> None:  # noqa: D102 - Observer's
        with self._lock:
            self._outstanding.durable(end_lsn)

    def applied(self, report: BatchReport) -> None:  # noqa: D102 - Observer's
        with self._lock:
            self._batches.append((self._now_s(), report))
            self.transactions += report.transactions
            self.rows += report.rows
            self.batches_applied += 1
            self.batch_rows.observe(report.rows)
            for phase, seconds in report.seconds.items():
                self.histograms[phase].observe(seconds)

    def lag_s(self) -> float | None:
        """How long ago the oldest received transaction was committed that is not durable.

        It is 0 if there is none, and None if there is none but no stream runs: what waits on the server is unknown.
        """
        with self._lock:
            oldest_s = self._outstanding.oldest_s
            if oldest_s is not None:
                return max(0.0, self._now_s() - oldest_s)
            return 0.0 if self._streaming else None

    @property
    def sample_due(self) -> bool:
        """Whether `sample` would keep one now."""
        with self._lock:
            return not self._lags or self._now_s() - self._lags[-1][0] >= _SAMPLE_INTERVAL_S

    def sample(self, lag_bytes: int | None) -> None:
        """Keep the lag for the plot of the last hour; does nothing until the last sample is 10 s old."""
        if not self.sample_due:
            return
        sample = self._now_s(), lag_bytes, self.lag_s()
        with self._lock:
            self._lags.append(sample)

    def as_json(self) -> dict[str, Any]:
        """Return it for the status document.

        Totals count since the daemon began, and all times are seconds since 1970. `lag_history` has
        `[time, lag_bytes, lag_s]` over the last hour, None for what was not known; `batches` the last ones. Both begin
        with the oldest.
        """
        lag_s = self.lag_s()
        with self._lock:
            return {
                "lag_s": lag_s,
                "transactions_total": self.transactions,
                "rows_total": self.rows,
                "batches_total": self.batches_applied,
                "lag_history": [list(sample) for sample in self._lags],
                "batches": [
                    {
                        "finished": finished_s,
                        "end_lsn": str(report.end_lsn),
                        "commit_time": epoch_s(report.commit_time_us) if report.commit_time_us else None,
                        "transactions": report.transactions,
                        "rows": report.rows,
                        "tables": report.tables,
                        "seconds": dict(report.seconds),
                    }
                    for finished_s, report in self._batches
                ],
            }


_RESOLUTION_S: Final = 0.1
_MOST: Final = 10_000
"""Entries kept: with more, neighbours are merged, and the answer may be too old by twice as much as before."""


class Outstanding:
    """Commit times of transactions on their way, those within a tenth of a second as one entry.

    An entry has the oldest commit time of its transactions and the end of the last, so the answer is never too young.
    """

    def __init__(self) -> None:
        self._entries: deque[tuple[float, Lsn]] = deque()
        self._resolution_s = _RESOLUTION_S
        self._durable_lsn: Lsn | None = None

    def stream_begins(self, start_lsn: Lsn, flush_lsn: Lsn) -> None:
        """A stream begins: it sends again what is not durable, unless the server has lost it.

        Where it begins at another LSN than the last one reached, its LSNs may be another server's: nothing is kept.
        """
        if start_lsn != self._durable_lsn:
            self._entries.clear()
        self._durable_lsn = start_lsn
        self._entries = deque(entry for entry in self._entries if entry[1] <= flush_lsn)

    def received(self, commit_s: float, end_lsn: Lsn) -> None:
        """A transaction was received; nothing is done with one that is known already."""
        known_lsn = self._entries[-1][1] if self._entries else self._durable_lsn
        if known_lsn is not None and end_lsn <= known_lsn:
            return
        if self._entries and commit_s - self._entries[-1][0] < self._resolution_s:
            self._entries[-1] = min(commit_s, self._entries[-1][0]), end_lsn
            return
        self._entries.append((commit_s, end_lsn))
        if len(self._entries) > _MOST:
            self._merge()

    def durable(self, lsn: Lsn) -> None:
        """Everything that ends at or before an LSN is durable."""
        self._durable_lsn = lsn
        while self._entries and self._entries[0][1] <= lsn:
            self._entries.popleft()
        if not self._entries:
            self._resolution_s = _RESOLUTION_S

    @property
    def oldest_s(self) -> float | None:
        """The oldest commit time; None if nothing is outstanding."""
        return self._entries[0][0] if self._entries else None

    def _merge(self) -> None:
        """Make one entry of each two."""
        entries = list(self._entries)
        pairs = zip(entries[::2], [*entries[1::2], entries[-1]], strict=False)
        self._entries = deque((min(earlier[0], later[0]), later[1]) for earlier, later in pairs)
        self._resolution_s *= 2
