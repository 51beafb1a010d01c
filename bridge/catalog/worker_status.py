"""A worker's state and errors, written to the catalog, or kept in memory until it can be written.

An error that cannot be recorded, for example because the disk is full, does not become a second error: the worker goes
on as after the first one, and `pgbridge status` shows it as soon as there is room.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from bridge.runtime.errors import ApplyError, OutcomeUnknown, StateError, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from bridge.catalog.catalog import Catalog
    from protocol.lsn import Lsn

_MOST = 1000
"""Errors kept in memory: hours of them, at the pace of retries."""


class WorkerStatus:
    """One worker's state and errors. No method raises if the catalog cannot be read or written.

    Args:
        name: The worker's subscription in the catalog.
        log: Logs once that the catalog cannot be written.
    """

    def __init__(self, catalog: Catalog, name: str, log: FilteringBoundLogger) -> None:
        self._catalog, self._name, self._log = catalog, name, log
        self._lock = threading.Lock()
        self._errors: deque[Callable[[], None]] = deque(maxlen=_MOST)
        self._state: tuple[str, Lsn | None] | None = None
        self._written: tuple[str, Lsn | None] | None = None
        self._told = False
        self._enabled = True

    def set_state(self, state: str, *, received_lsn: Lsn | None = None) -> None:
        """Record the state that `status` shows."""
        with self._lock:
            self._state = state, received_lsn
        self.write()

    def record_error(self, error: BaseException, *, counter: str | None, then: str = "") -> None:
        """Keep an error as the last one, and count it (see `Catalog.record_error`); `then` says what comes after it.

        An error whose outcome is unknown is recorded without a finish LSN: its transaction may be applied, so `status`
        must not propose to skip it.
        """
        known = isinstance(error, ApplyError) and not isinstance(error, OutcomeUnknown)
        context = error.context if known and isinstance(error, ApplyError) else None
        record = partial(
            self._catalog.record_error,
            self._name,
            "\n".join(filter(None, (str(error) or type(error).__name__, then))),
            counter=counter,
            # of a batch of several transactions, it is not known which one failed
            finish_lsn=error.finish_lsn
            if isinstance(error, StreamError)
            else context.finish_lsn
            if context and context.xid is not None
            else None,
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
        """Write the state and errors that are kept in memory, as far as the catalog can be written."""
        with self._lock:
            try:
                while self._errors:
                    self._errors[0]()
                    self._errors.popleft()
                if self._state is not None and self._state != self._written:
                    state, received_lsn = self._state
                    self._catalog.set_state(self._name, state, received_lsn=received_lsn)
                    self._written = self._state
                self._state = None
            except StateError as error:
                if not self._told:
                    self._log.error("status and errors cannot be written; they are kept in memory", error=str(error))
                self._told = True
            else:
                if self._told:
                    self._log.info("status and errors are written again")
                self._told = False

    def begun(self) -> None:
        """The stream has begun: an error of the start, the connection or a copy is over."""
        with self._lock:
            if self._errors:
                return  # not written yet: the next stream that begins ends it
            with suppress(StateError):
                self._catalog.end_error(self._name)

    def progressed(self) -> None:
        """A later transaction was applied: drop the errors before it that are not written yet."""
        with self._lock:
            self._errors.clear()

    def enabled(self) -> bool:
        """Whether the subscription is enabled; the last known answer while the catalog cannot be read."""
        try:
            row = self._catalog.subscription(self._name)
        except StateError:
            return self._enabled
        self._enabled = row is not None and row.enabled
        return self._enabled
