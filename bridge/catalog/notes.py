"""The part of the catalog that `status` shows, and that recovery does not need.

Conflict counters are those of pg_stat_subscription_stats, the progress of copies is that of pg_stat_progress_copy. The
published tables that are left out, with the reasons, are pgbridge's own.

A worker's state and errors are kept in memory until they can be written. An error that cannot be recorded, for example
because the disk is full, does not become a second error: the worker goes on as after the first one, and
`pgbridge status` shows it as soon as there is room.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog.catalog_rows import CopyRow
from pgbridge.bridge.runtime.errors import ApplyError, OutcomeUnknown, StateError, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.protocol.lsn import Lsn

    Name = tuple[str, str]


def count_conflicts(catalog: Catalog, subscription: str, counts: Mapping[str, int]) -> None:
    """Add to the conflict counters, by the conflicts' names."""
    with catalog.transaction() as db:
        db.executemany(
            "INSERT INTO conflict (subscription, conflict, count) VALUES (?1, ?2, ?3) "
            "ON CONFLICT (subscription, conflict) DO UPDATE SET count = count + ?3",
            [(subscription, conflict, count) for conflict, count in counts.items()],
        )


def conflicts(catalog: Catalog, subscription: str) -> dict[str, int]:
    """The conflict counters by the conflicts' names, without those that are 0."""
    rows = catalog.rows("SELECT conflict, count FROM conflict WHERE subscription = ? ORDER BY conflict", subscription)
    return dict(rows)


def put_copies(catalog: Catalog, subscription: str, copies: Iterable[CopyRow]) -> None:
    """Record the progress of all copies that a subscription is making."""
    with catalog.transaction() as db:
        db.execute("DELETE FROM copy_progress WHERE subscription = ?", (subscription,))
        rows = [(subscription, *astuple(copy)) for copy in copies]
        db.executemany("INSERT INTO copy_progress VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


def copies(catalog: Catalog, subscription: str) -> list[CopyRow]:
    """The copies that were recorded last, by the tables' names."""
    columns = "namespace, name, rows, bytes, total_bytes_estimate, rows_per_s, seconds_left"
    rows = catalog.rows(f"SELECT {columns} FROM copy_progress WHERE subscription = ? ORDER BY 1, 2", subscription)
    return [CopyRow(*row) for row in rows]


def put_left_out(catalog: Catalog, subscription: str, reasons: Mapping[Name, str]) -> list[Name]:
    """Replace the list of tables that are left out; return those that are new in it, or have another reason."""
    with catalog.transaction() as db:
        before = left_out(catalog, subscription)
        db.execute("DELETE FROM left_out WHERE subscription = ?", (subscription,))
        db.executemany(
            "INSERT INTO left_out (subscription, namespace, name, reason) VALUES (?, ?, ?, ?)",
            [(subscription, *name, reason) for name, reason in reasons.items()],
        )
    return [name for name, reason in reasons.items() if before.get(name) != reason]


def left_out(catalog: Catalog, subscription: str) -> dict[Name, str]:
    """The tables that are left out, and why, by (namespace, name), in their order."""
    rows = catalog.rows(
        "SELECT namespace, name, reason FROM left_out WHERE subscription = ? ORDER BY 1, 2", subscription
    )
    return {(namespace, name): reason for namespace, name, reason in rows}


# --- The catalog's part of `pgbridge reload`: requests to read the configuration file again, and the daemon's answers.
#

_KEPT_S = 600.0
"""How long an answer is kept for a command that has given up waiting, or was killed."""


APPLIED, REFUSED, INVALID = 0, 1, 2
"""Exit codes of `pgbridge reload`: all is applied; something cannot change now; the file cannot be used."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a request.

    Attributes:
        code: The command's exit code.
        lines: What to print.
    """

    code: int
    lines: tuple[str, ...]


def ask(catalog: Catalog) -> int:
    """Record a request; return its number."""
    with catalog.transaction() as db:
        number = db.execute("INSERT INTO reload (outcome) VALUES (NULL)").lastrowid
    return int(number or 0)


def asked(catalog: Catalog) -> int | None:
    """The number of the last request that is not answered; None if there is none."""
    ((number,),) = catalog.rows("SELECT max(id) FROM reload WHERE outcome IS NULL")
    return None if number is None else int(number)


def answer(catalog: Catalog, up_to: int, outcome: Outcome, *, now_s: Callable[[], float] = time.time) -> None:
    """Answer all requests up to this number."""
    text = json.dumps({"code": outcome.code, "lines": outcome.lines})
    with catalog.transaction() as db:
        db.execute("DELETE FROM reload WHERE answered < ?", (now_s() - _KEPT_S,))
        db.execute(
            "UPDATE reload SET outcome = ?, answered = ? WHERE id <= ? AND outcome IS NULL", (text, now_s(), up_to)
        )


def take_answer(catalog: Catalog, number: int) -> Outcome | None:
    """Return the answer to a request, and delete both; None before it is answered."""
    rows = catalog.rows("SELECT outcome FROM reload WHERE id = ? AND outcome IS NOT NULL", number)
    if not rows:
        return None
    with catalog.transaction() as db:
        db.execute("DELETE FROM reload WHERE id = ?", (number,))
    note = json.loads(rows[0][0])
    return Outcome(note["code"], tuple(note["lines"]))


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
