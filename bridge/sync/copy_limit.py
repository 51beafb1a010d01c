"""Limits how many tables are copied at a time, by all subscriptions of a process together.

Each copy holds connections to its server, Spark tasks and their Python workers; without a limit they would grow with
the number of subscriptions. PostgreSQL's limit is max_logical_replication_workers.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bridge.errors import SyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOOK_INTERVAL_S = 0.5


class CopyLimit:
    """Lets at most `limit` copies run at a time, first come, first served.

    A subscription asks for at most `max_sync_workers` turns at a time, so one with many tables does not block others.

    Args:
        limit: The number of copies; None for no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._under_way = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    def change(self, limit: int | None) -> None:
        """Let at most `limit` copies run from now on; those beyond it that are under way go on."""
        with self._changed:
            self._limit = limit
            self._changed.notify_all()

    @contextmanager
    def turn(self, stopping: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Wait for a turn, and keep it for the duration of the `with` block.

        Raises:
            SyncError: `stopping` returned True during the wait.
        """
        mine = object()
        with self._changed:
            self._waiting.append(mine)
            try:
                while not self._is_next(mine):
                    if stopping():
                        raise SyncError("stopped while it waited for other tables' copies")
                    self._changed.wait(_LOOK_INTERVAL_S)
                self._under_way += 1
            finally:
                self._waiting.remove(mine)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def _is_next(self, mine: object) -> bool:
        return self._limit is None or (self._waiting[0] is mine and self._under_way < self._limit)
