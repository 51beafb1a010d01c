"""Appends what batches have made durable to `<warehouse>/pgbridge/commits`, in a thread beside the batches.

It is one thread for all subscriptions: hundreds that begin at the same time would keep batches waiting for minutes.

The catalog has each batch as a record, written with the origin's LSN; so nothing is lost if this thread lags, fails or
is killed, and batches never wait for it. Versions come from the tables' own histories: the latest version before the
first commit of a later batch. If the table of commits is lost, its rows come from there, too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from pgbridge.bridge.catalog import commits
from pgbridge.bridge.runtime.threads import Turns
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog

_EVERY_S: Final = 10.0
"""A record waits so long for others, because each append is a commit."""

_REST: Final = 50
"""Between two appends a subscription rests so many times as long as the first took: 2 % of a core at most."""

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


class CommitsTable(Protocol):
    """Spark's part (`bridge.snapshots.commits_table`). Each call may raise whatever Spark does."""

    def ensure(self) -> bool:
        """Create the table if it does not exist; returns whether it did not."""

    def last_number(self, origin: str) -> int:
        """The number of the last row of an origin; 0 if there is none."""

    def append(self, subscription: str, origin: str, records: Sequence[commits.CommitRecord]) -> None:
        """Append records, with the tables' versions, and flush them."""

    def rebuild(self, subscription: str, origin: str, tables: Iterable[tuple[str, str, str]]) -> int:
        """Append what the histories of tables have of earlier batches; returns the number of rows."""

    def prune(self, origin: str, before_s: float) -> int:
        """Delete rows that are older than that, in seconds since 1970; returns the number of rows."""

    def interrupt(self) -> None:
        """End what is under way; the next start finds out how far it came."""


@dataclass(eq=False)
class CommitLog:
    """Appends the records of one subscription. `now_s` gives the time in seconds since 1970."""

    catalog: Catalog
    subscription: str
    table: CommitsTable
    log: FilteringBoundLogger
    now_s: Callable[[], float] = time.time
    _stopping: bool = False
    _idle: bool = False  # no record waits
    _origin: str = ""  # of whose rows the table is known to have none that the catalog has, too
    _prune_s: float | None = None  # when to prune next
    _failed: bool = False
    _more: bool = False  # records are left that one turn does not take

    def start(self) -> None:
        """Begin to append."""
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
            self._failed = False
            return self._until_due_s() if not due or self._more else max(_LOOK_S, _REST * (time.monotonic() - began_s))
        except Exception as error:  # noqa: BLE001 - whatever it was, the subscription goes on without
            if not self._failed and not self._stopping:
                self._warn(error)
            self._failed, self._origin = True, ""
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

        Raises:
            PySparkException, Py4JError, BridgeError: Nothing, or all, of an append is in the table. The next turn finds
                out.
        """
        oldest_s = commits.oldest_s(self.catalog, self.subscription)
        if oldest_s is None or oldest_s > self.now_s() - waited_s:
            return False
        row = self.catalog.subscription(self.subscription)
        if row is None or row.incarnation is None:
            return False
        records = commits.pending(self.catalog, self.subscription, _AT_ONCE)
        self._more = len(records) == _AT_ONCE
        origin = row.txn_app_id
        if self._origin != origin:
            there = 0 if self.table.ensure() else self.table.last_number(origin)
            if not there and self._rebuild(origin):
                records = commits.pending(self.catalog, self.subscription, _AT_ONCE)
            commits.appended(self.catalog, self.subscription, there)
            records = [record for record in records if record.number > there]
            self._origin = origin
        if records:
            self.table.append(self.subscription, origin, records)
            commits.appended(self.catalog, self.subscription, records[-1].number)
        if self._prune_s is None:
            self._prune_s = self.now_s() + _FIRST_PRUNE_S
        elif self.now_s() >= self._prune_s:
            self._prune_s = self.now_s() + _PRUNE_EVERY_S
            if rows := self.table.prune(origin, self.now_s() - _KEEP_S):
                self.log.info("pruned the table of commits", rows=rows)
        return True

    def _rebuild(self, origin: str) -> bool:
        """The table is empty: fill it from the histories of tables that followed the stream before the records.

        Returns whether there are such tables; they are recorded as ones that join now.
        """
        waiting = commits.pending(self.catalog, self.subscription)
        joining = {table for record in waiting if record.kind == "joined" for table in record.tables}
        followed = [(rel.namespace, rel.name, rel.path) for rel in self.catalog.rels(self.subscription) if rel.follows]
        lost = [table for table in followed if table not in joining]
        if not lost:
            return False
        rows = self.table.rebuild(self.subscription, origin, lost)
        commits.join_again(self.catalog, self.subscription)
        self.log.warning("the table of commits was lost; it is made again from the tables' histories", rows=rows)
        return True


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
