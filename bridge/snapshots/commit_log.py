"""Appends what batches have made durable to `<warehouse>/pgbridge/commits`, in a thread beside the batches.

It is one thread for all subscriptions, and one commit for all that have records then: hundreds that begin at the same
time would keep batches waiting for minutes.

The catalog has each batch as a record, written with the origin's LSN; so nothing is lost if this thread lags, fails or
is killed, and batches never wait for it. Versions come from the tables' own histories: the latest version before the
first commit of a later batch. If the table of commits is lost, its rows come from there, too.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pgbridge.bridge.catalog import commits
from pgbridge.bridge.runtime.threads import Turns
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog

_EVERY_S: Final = 10.0
"""A record waits so long for others, because each append is a commit."""

_REST: Final = 50
"""After an append a subscription begins none for so many times as long as it took: 2 % of a core, if it is alone."""

_TURNS: Final = Turns("commits", rest=4)

_AGAIN_S: Final = 60.0
_AT_ONCE: Final = 1_000
_LOOK_S: Final = 1.0

_IDLE_S: Final = 60.0
"""Without a batch, it is looked after this time whether there is a record: of a table that follows from now on."""

_KEEP_S: Final = 30 * 24 * 3600.0
"""Delta's own retention of a table's history (delta.logRetentionDuration)."""
_PRUNE_EVERY_S: Final = 24 * 3600.0
_FIRST_PRUNE_S: Final = 3600.0


class Part(NamedTuple):
    """Records of one subscription, and the origin of its rows."""

    subscription: str
    origin: str
    records: Sequence[commits.CommitRecord]


class CommitsTable(Protocol):
    """Spark's part (`bridge.snapshots.commits_table`). Each call may raise whatever Spark does."""

    @property
    def path(self) -> str:
        """Its location."""

    def ensure(self) -> bool:
        """Create the table if it does not exist; returns whether it did not."""

    def last_numbers(self, origins: Collection[str]) -> Mapping[str, int]:
        """The number of the last row of each origin that has one."""

    def append(self, parts: Sequence[Part]) -> None:
        """Append records, with the tables' versions, and flush them."""

    def rebuild(self, subscription: str, origin: str, tables: Iterable[tuple[str, str, str]]) -> int:
        """Append what the histories of tables have of earlier batches; returns the number of rows."""

    def prune(self, origin: str, before_s: float) -> int:
        """Delete rows that are older than that, in seconds since 1970; returns the number of rows."""

    def interrupt(self) -> None:
        """End what is under way; the next start finds out how far it came."""


_STARTED: Final[set[CommitLog]] = set()
_APPENDING: Final = threading.Lock()


@dataclass(eq=False)
class CommitLog:
    """Appends the records of one subscription, and with them those of others. `now_s`: seconds since 1970."""

    catalog: Catalog
    subscription: str
    table: CommitsTable
    log: FilteringBoundLogger
    now_s: Callable[[], float] = time.time
    _stopping: bool = False
    _idle: bool = False  # no record waits
    origin: str = ""  # of whose rows the table is known to have none that the catalog has, too
    _prune_s: float | None = None  # when to prune next
    failed: bool = False
    _more: bool = False  # records are left that one turn does not take

    def start(self) -> None:
        """Begin to append."""
        _STARTED.add(self)
        _TURNS.begin(self._again, _EVERY_S)  # the first batches go first

    def stop(self, *, caught_up: bool = False) -> None:
        """End after the append under way, which is cut short; what is left is appended after the next start.

        If the run has caught up, and has nothing more to do, they are appended now: readers come next.
        """
        self._stopping = True
        self.table.interrupt()
        _TURNS.end(self._again)
        try:
            if caught_up:
                self.turn(waited_s=0.0)
        except Exception as error:  # noqa: BLE001 - as in `_again`
            self._warn(error)
        finally:
            _STARTED.discard(self)

    def noted(self) -> None:
        """A batch is durable, and has left a record."""
        if self._idle:
            self._idle = False
            _TURNS.within(self._again, _EVERY_S)

    def _warn(self, error: Exception) -> None:
        self.log.warning(
            "commits cannot be recorded in the warehouse now; they are recorded later",
            error=str(error).partition("\n")[0],
        )

    def _again(self) -> float:
        """Append what is due; returns after how many seconds to look again."""
        began_s = time.monotonic()
        self._idle = False
        if self._stopping:
            return _AGAIN_S
        try:
            due = self.turn()
            self.failed = False
            return self._until_due_s() if not due or self._more else max(_LOOK_S, _REST * (time.monotonic() - began_s))
        except Exception as error:  # noqa: BLE001 - whatever it was, the subscription goes on without
            if not self.failed and not self._stopping:
                self._warn(error)
            self.failed = True
            return _AGAIN_S

    def _until_due_s(self) -> float:
        """How long the oldest record still waits; if there is none, the next one says so."""
        self._idle = True  # before it is looked for a record: `noted` comes after it
        oldest_s = commits.oldest_s(self.catalog, self.subscription)
        if oldest_s is None:
            return _IDLE_S
        self._idle = False
        return max(_LOOK_S, oldest_s + _EVERY_S - self.now_s())

    def turn(self, *, waited_s: float = _EVERY_S) -> bool:
        """Append the records, once the oldest has waited long enough; returns whether there were any.

        With them go those of other subscriptions that have waited as long.

        Raises:
            PySparkException, Py4JError, BridgeError: It is not known what of an append is in the table. The next turn
                finds out.
        """
        with _APPENDING:
            if (self._stopping and waited_s) or not self.is_due(waited_s):
                return False
            others = [log for log in _STARTED.copy() if self._goes_with(log) and log.is_due(waited_s)]
            # what is the matter with another one does not hold up this one
            for group in ([self, *others], [self]) if others else ([self],):
                try:
                    self._append(group)
                    break
                except Exception:
                    for log in group:
                        log.origin = ""  # some may be in the table: it is asked what it has
                    if len(group) == 1 or self._stopping:
                        raise
            self._prune()
        return True

    def is_due(self, waited_s: float = _EVERY_S) -> bool:
        """Whether a record has waited so long."""
        oldest_s = commits.oldest_s(self.catalog, self.subscription)
        return oldest_s is not None and oldest_s <= self.now_s() - waited_s

    def _goes_with(self, other: CommitLog) -> bool:
        if other is self or other.failed:
            return False
        return (other.catalog, other.table.path) == (self.catalog, self.table.path)

    def _append(self, logs: Sequence[CommitLog]) -> None:
        """Append the records of these by one commit."""
        origins = {log: origin for log in logs if (origin := log.present_origin()) is not None}
        new = {log: origin for log, origin in origins.items() if log.origin != origin}
        if new:
            made = self.table.ensure()
            new = origins if made else new  # also those of others were lost with it
            there = {} if made else self.table.last_numbers(new.values())
            for log, origin in new.items():
                log.begin(origin, there.get(origin, 0))
        parts = [part for log, origin in origins.items() if (part := log.part(origin)).records]
        if parts:
            self.table.append(parts)
        for part in parts:
            commits.appended(self.catalog, part.subscription, part.records[-1].number)

    def present_origin(self) -> str | None:
        """The application id of the subscription's commits, without the epoch; None before its slot is made."""
        row = self.catalog.subscription(self.subscription)
        return None if row is None or row.incarnation is None else row.txn_app_id

    def begin(self, origin: str, there: int) -> None:
        """The table has the rows of an origin up to this number; 0 if it has none."""
        if not there:
            self._rebuild(origin)
        commits.appended(self.catalog, self.subscription, there)
        self.origin = origin

    def part(self, origin: str) -> Part:
        """What one turn takes of the records."""
        records = commits.pending(self.catalog, self.subscription, _AT_ONCE)
        self._more = len(records) == _AT_ONCE
        return Part(self.subscription, origin, records)

    def _prune(self) -> None:
        """Once a day, delete what is older than what a table's history keeps."""
        if self._prune_s is None:
            self._prune_s = self.now_s() + _FIRST_PRUNE_S
        elif self.now_s() >= self._prune_s:
            self._prune_s = self.now_s() + _PRUNE_EVERY_S
            if rows := self.table.prune(self.origin, self.now_s() - _KEEP_S):
                self.log.info("pruned the table of commits", rows=rows)

    def _rebuild(self, origin: str) -> None:
        """The table has no row of it: fill it from the histories of tables that followed the stream before the records.

        These tables are recorded as ones that join now.
        """
        waiting = commits.pending(self.catalog, self.subscription)
        joining = {table for record in waiting if record.kind == "joined" for table in record.tables}
        followed = [(rel.namespace, rel.name, rel.path) for rel in self.catalog.rels(self.subscription) if rel.follows]
        lost = [table for table in followed if table not in joining]
        if not lost:
            return
        rows = self.table.rebuild(self.subscription, origin, lost)
        commits.join_again(self.catalog, self.subscription)
        self.log.warning("the table of commits was lost; it is made again from the tables' histories", rows=rows)


def derived(
    histories: Mapping[tuple[str, str, str], Iterable[Any]], origin: str
) -> tuple[list[dict[str, Any]], dict[tuple[str, str, str], int]]:
    """The batches that tables' histories have, in order, and where each table joins them.

    Args:
        histories: The commits of each (namespace, name, path), the latest first.
        origin: The application id of the subscription's commits, without the epoch; other commits say nothing.

    Returns:
        For each batch: `start_lsn`, `end_lsn`, `position`, `last_commit_time` (ISO 8601, or empty) and `tables`, the
        version of each table that it has committed to. The last one is left out: it may not be finished. And for each
        table the position from which on its rows are known: that of its last copy, or of its first batch, if there is
        no copy, or a tablesync worker or an earlier life has committed since.
    """
    batches: dict[int, dict[str, Any]] = {}
    copies: dict[tuple[str, str, str], int] = {}
    for table, history in histories.items():
        others = False
        for commit in history:
            family, _, mark = commit.origin.rpartition("/")
            if mark == "copy":
                if not others and commit.position is not None:
                    copies[table] = commit.position
                break
            if family != origin or not mark.isdigit() or commit.position is None:
                others = others or commit.position is not None
                continue
            batch = batches.setdefault(
                commit.position,
                {
                    "start_lsn": commit.start_lsn,
                    "end_lsn": commit.end_lsn,
                    "position": commit.position,
                    "last_commit_time": commit.last_commit_time,
                    "tables": {},
                },
            )
            batch["tables"].setdefault(table, commit.version)
    whole = _whole(batches)[:-1]
    joins: dict[tuple[str, str, str], int] = {}
    for batch in whole:
        for table in batch["tables"]:
            joins.setdefault(table, batch["position"])
    last = whole[-1]["position"] if whole else 0
    return whole, joins | {table: position for table, position in copies.items() if position <= last}


def _whole(batches: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Batches in order, without those that end within another one, which was cut short and received again in parts.

    There, some tables have all of that one and others a part; the next batch has what the parts have committed.
    """
    ranges = [(int(Lsn.parse(batch["start_lsn"])), position) for position, batch in batches.items()]
    whole: list[dict[str, Any]] = []
    parts: dict[Any, int] = {}
    for position in sorted(batches):
        parts |= batches[position]["tables"]
        if not any(start < position < end for start, end in ranges):
            whole.append(batches[position] | {"tables": parts})
            parts = {}
    return whole
