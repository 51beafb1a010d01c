"""What a worker tells of itself: its state, its errors. Written to the catalog, or kept until that can be written.

An error that cannot be recorded, because the disk is full for example, is no second error: the worker goes on as after
the first one, and `pgbridge status` shows it as soon as there is room.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from bridge.errors import ApplyError, OutcomeUnknown, StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from bridge.track.catalog import Catalog
    from protocol.lsn import Lsn

_MOST = 1000
"""Errors that are kept: hours of them, at the pace of retries."""


class WorkerStatus:
    """One worker's. None of the methods raises because the catalog cannot be read or written.

    Args:
        catalog: Where it is written.
        name: The worker's subscription in the catalog.
        log: Told once that the catalog cannot be written.
    """

    def __init__(self, catalog: Catalog, name: str, log: FilteringBoundLogger) -> None:
        self._catalog, self._name, self._log = catalog, name, log
        self._lock = threading.Lock()
        self._errors: deque[Callable[[], None]] = deque(maxlen=_MOST)
        self._state: tuple[str, Lsn | None] | None = None
        self._told = False
        self._enabled = True

    def set_state(self, state: str, *, received_lsn: Lsn | None = None) -> None:
        """What `status` shows."""
        with self._lock:
            self._state = state, received_lsn
        self.write()

    def record_error(self, error: BaseException, *, counter: str | None) -> None:
        """Keep an error as the last one, and count it (see `Catalog.record_error`).

        The transaction of an error whose outcome is unknown is not to be skipped: nothing is known against it.
        """
        known = isinstance(error, ApplyError) and not isinstance(error, OutcomeUnknown)
        context = error.context if known and isinstance(error, ApplyError) else None
        record = partial(
            self._catalog.record_error,
            self._name,
            str(error) or type(error).__name__,
            counter=counter,
            finish_lsn=context.finish_lsn if context else None,
            relation=context.relation if context else None,
            at_lsn=self._remote_lsn(),
        )
        with self._lock:
            self._errors.append(record)
        self.write()

    def _remote_lsn(self) -> Lsn | None:
        try:
            return self._catalog.remote_lsn(self._name)
        except StateError:
            return None

    def write(self) -> None:
        """Write what is kept; what cannot be written is kept on."""
        with self._lock:
            try:
                while self._errors:
                    self._errors[0]()
                    self._errors.popleft()
                if self._state is not None:
                    state, received_lsn = self._state
                    self._catalog.set_state(self._name, state, received_lsn=received_lsn)
                    self._state = None
            except StateError as error:
                if not self._told:
                    self._log.error("status and errors cannot be written, and are kept in memory", error=str(error))
                self._told = True
            else:
                if self._told:
                    self._log.info("status and errors are written again")
                self._told = False

    def progressed(self) -> None:
        """A later transaction was applied: errors before it, written or not, no longer stand."""
        with self._lock:
            self._errors.clear()

    def enabled(self) -> bool:
        """Whether the subscription is enabled; while the catalog cannot be read, as it was last."""
        try:
            row = self._catalog.subscription(self._name)
        except StateError:
            return self._enabled
        self._enabled = row is not None and row.enabled
        return self._enabled
