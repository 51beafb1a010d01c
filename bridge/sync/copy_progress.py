"""Copies under way: how many at a time, and their progress, from the server's pg_stat_progress_copy.

The readers run on Spark's executors, so the server is asked: it knows how much each COPY statement has sent.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, Self

from pgbridge.bridge.catalog import catalog_rows, notes
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.runtime.errors import BridgeError, StateError, SyncError
from pgbridge.bridge.runtime.log import COPY_PROGRESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.sync.table_reading import CopySize


_LOOK_INTERVAL_S = 1.0


class CopyLimit:
    """Lets at most `limit` copies run at a time, by all subscriptions of a process together; None for no limit.

    Each copy holds connections to its server, Spark tasks and their Python workers; without a limit they would grow
    with the number of subscriptions. PostgreSQL's limit is max_logical_replication_workers.

    First come, first served: a subscription asks for at most `max_sync_workers` turns at a time, so one with many
    tables does not block others.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._under_way = 0
        self._lock = threading.Lock()
        self._waiting: deque[threading.Condition] = deque()  # each of its own: hundreds may wait, and one is next

    def change(self, limit: int | None) -> None:
        """Let at most `limit` copies run from now on; those beyond it that are under way go on."""
        with self._lock:
            self._limit = limit
            self._wake()

    @contextmanager
    def turn(self, stopping: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Wait for a turn, and keep it during the `with` block; raise a SyncError if it is `stopping` meanwhile."""
        mine = threading.Condition(self._lock)
        with self._lock:
            self._waiting.append(mine)
            try:
                while not self._is_next(mine):
                    if stopping():
                        raise SyncError("stopped while it waited for other tables' copies")
                    mine.wait(_LOOK_INTERVAL_S)
                self._under_way += 1
            finally:
                self._waiting.remove(mine)
                self._wake()
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._wake()

    def _wake(self) -> None:
        """Have the first in the line look whether it may go; if it may, it wakes the next."""
        if self._waiting:
            self._waiting[0].notify()

    def _is_next(self, mine: threading.Condition) -> bool:
        return self._limit is None or (self._waiting[0] is mine and self._under_way < self._limit)


_POLL_S = 1.0
_LOGGED_S = 10.0
_RATE_S = 30.0


class Sent(NamedTuple):
    """How much one COPY statement has sent."""

    rows: int
    bytes: int


_NOTHING = Sent(0, 0)


class CopyProgress:
    """Adds up how much a table's COPY statements have sent, from samples.

    How much a statement sent between its last sample and its end is unknown. The estimate is half of what it sent
    before its last sample, in one interval: on average this is right.
    """

    def __init__(self, namespace: str, name: str, size: CopySize, now_s: float) -> None:
        self._namespace, self._name, self._size = namespace, name, size
        self._ended = Sent(0, 0)
        self._running: dict[int, tuple[Sent, Sent]] = {}  # by pid: total, and since the previous sample
        self._seen: deque[tuple[float, int]] = deque([(now_s, 0)])

    def see(self, running: Mapping[int, Sent], now_s: float) -> None:
        """Take a sample: how much each running statement has sent, by the server process's id."""
        rows, size = self._ended
        now: dict[int, tuple[Sent, Sent]] = {}
        for pid, sent in running.items():
            before = self._running.get(pid, (_NOTHING, _NOTHING))[0]
            if sent.rows >= before.rows:  # otherwise the id belongs to a new process
                now[pid] = sent, Sent(sent.rows - before.rows, sent.bytes - before.bytes)
        for pid in self._running.keys() - now.keys():
            last, lately = self._running[pid]
            rows, size = rows + last.rows + lately.rows // 2, size + last.bytes + lately.bytes // 2
        for pid in running.keys() - now.keys():
            now[pid] = running[pid], running[pid]
        self._ended, self._running = Sent(rows, size), now
        self._seen.append((now_s, self._sent.rows))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - _RATE_S:
            self._seen.popleft()

    @property
    def _sent(self) -> Sent:
        sent = [self._ended, *(last for last, _ in self._running.values())]
        return Sent(sum(total.rows for total in sent), sum(total.bytes for total in sent))

    @property
    def row(self) -> catalog_rows.CopyRow:
        """The progress, for the catalog."""
        rows, size = self._sent
        row_bytes = size / rows if rows else self._size.row_bytes
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        rate = (last - first) / (last_s - first_s) if last > first else None
        return catalog_rows.CopyRow(
            self._namespace,
            self._name,
            rows,
            size,
            max(size, round(self._size.rows * row_bytes)),
            rate,
            max(0.0, self._size.rows - rows) / rate if rate else None,
        )


class CopyMonitor:
    """Samples the progress of a subscription's copies in a thread, for `pgbridge status` and the log.

    The thread is there while a copy is, and asks the server once that has taken a second. It never makes a copy fail:
    if the server does not answer, the progress stays as it was.

    Args:
        catalog: Gets the progress every second; it is deleted there at the end.
        log: Gets the progress of each copy every 10 seconds.
        advanced: Called when a copy begins, and when copies that take longer than a second have got further.
    """

    def __init__(
        self,
        conninfo: str,
        subscription: str,
        catalog: Catalog,
        log: FilteringBoundLogger,
        *,
        advanced: Callable[[], None] = lambda: None,
    ) -> None:
        self._conninfo, self._subscription, self._catalog, self._log = conninfo, subscription, catalog, log
        self._lock = threading.Lock()
        self._advanced = advanced
        self._bytes: dict[str, int] = {}
        self._copies: dict[str, CopyProgress] = {}
        self._logged_s: dict[str, float] = {}
        self._rows = notes.copies(catalog, subscription)  # those of a daemon that was killed, at first
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._put([])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()
        self._put([])

    def _put(self, rows: list[catalog_rows.CopyRow]) -> None:
        """Have the catalog show copies; each write waits for the disk."""
        if rows != self._rows:
            notes.put_copies(self._catalog, self._subscription, rows)
            self._rows = rows

    @contextmanager
    def watching(self, application_name: str, namespace: str, name: str, size: CopySize) -> Iterator[None]:
        """Sample the copy of a table during the `with` block, by connections with this application_name."""
        now_s = time.monotonic()
        with self._lock:
            self._copies[application_name] = CopyProgress(namespace, name, size, now_s)
            self._logged_s[application_name] = now_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"copies of {self._subscription}", daemon=True)
                self._thread.start()
        self._advanced()
        try:
            yield
        finally:
            with self._lock:
                del self._copies[application_name]

    def _run(self) -> None:
        while self._goes_on():
            try:
                with Publisher(self._conninfo, application_name=f"{self._subscription}_progress") as publisher:
                    self._look(publisher)
                    while self._goes_on():
                        self._look(publisher)
            except BridgeError as error:
                self._log.debug("the progress of copies is unknown", error=str(error))
            else:
                return

    def _goes_on(self) -> bool:
        """Wait a moment; return whether there is a copy then. If there is none, the thread ends."""
        if self._stop.wait(_POLL_S):
            return False
        with self._lock:
            if self._copies:
                return True
            with suppress(StateError):  # else it is written at the end
                self._put([])  # before another thread shows those that begin
            self._thread = None
        return False

    def _look(self, publisher: Publisher) -> None:
        with self._lock:
            names = list(self._copies)
        running: dict[str, dict[int, Sent]] = {name: {} for name in names}
        for progress in publisher.rows("copy_progress", {"application_names": names}) if names else ():
            running[progress["application_name"]][progress["pid"]] = Sent(progress["rows"], progress["bytes"])
        now_s = time.monotonic()
        with self._lock:
            for name, sent in running.items():
                if name in self._copies:
                    self._copies[name].see(sent, now_s)
            rows = {name: copy.row for name, copy in self._copies.items()}
        if (sizes := {name: row.bytes for name, row in rows.items()}) != self._bytes:
            self._bytes = sizes
            self._advanced()
        self._put(list(rows.values()))
        for name, row in rows.items():
            if now_s - self._logged_s[name] >= _LOGGED_S:
                self._logged_s[name] = now_s
                self._log_progress(row)

    def _log_progress(self, row: catalog_rows.CopyRow) -> None:
        self._log.info(
            COPY_PROGRESS,
            relation=row.qualified_name,
            rows=row.rows,
            bytes=row.bytes,
            total_bytes_estimate=row.total_bytes_estimate,
            rows_per_s=round(row.rows_per_s or 0),
            seconds_left=None if row.seconds_left is None else round(row.seconds_left),
        )
