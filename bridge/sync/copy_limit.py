"""How many tables are copied at a time, by all subscriptions of a process together.

Each copy holds connections to its server, tasks of Spark and Python workers for them: that must not grow with the
number of subscriptions. PostgreSQL bounds it by max_logical_replication_workers.
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


class CopyTurns:
    """So many turns at a time, given in the order in which they were asked for.

    A subscription asks for no more than `max_sync_workers` at a time: one with many tables does not keep others out.

    Args:
        limit: How many; None for no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._under_way = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, stopping: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Wait for a turn, and have it for as long as the block takes.

        Raises:
            SyncError: `stopping` said so meanwhile.
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
