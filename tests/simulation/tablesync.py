"""Copies and the tablesync worker without a server's rows and without a thread: pgbridge's own code decides.

The worker goes on when somebody lets it, and as far as it can without waiting for something else.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.sync.tablesync import TableSync
from pgbridge.bridge.sync.tablesync_worker import TableSyncWorker
from pgbridge.protocol.lsn import INVALID
from tests.simulation.walsender import relation_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pgbridge.bridge.lake.log.stamp import CommitStamp
    from pgbridge.bridge.receive.slot import Snapshot
    from tests.simulation.lake import Change, MemoryLake
    from tests.simulation.server import MemoryServer

_MOST_STEPS = 1000
"""More in one life, and it waits for what does not come."""


class Paused(BaseException):
    """The worker waits: for the server, for the subscription, or after an error."""


class SteppedThread:
    """A thread that runs while somebody waits for it, until its work pauses."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run, self._is_alive, self._steps = run, False, 0

    def start(self) -> None:
        """It is alive from here on, and has done nothing."""
        self._is_alive = True

    def is_alive(self) -> bool:
        """Whether there is more to do."""
        return self._is_alive

    def join(self, timeout_s: float | None = None) -> None:
        """Go on until it pauses, or ends."""
        del timeout_s
        if not self._is_alive:
            return
        self._steps += 1
        assert self._steps < _MOST_STEPS, "it waits for ever"
        try:
            self._run()
        except Paused:
            return
        self._is_alive = False


class SteppedWorker(TableSyncWorker):
    """A tablesync worker that pauses where another one waits. Each step is an attempt.

    Attributes:
        server: Its publisher.
        failure: What ended its last attempt; None if nothing did.
    """

    server: MemoryServer

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.failure: Exception | None = None
        self.thread: Any = SteppedThread(self._run)

    def _failed(self, error: Exception) -> float | None:
        self.failure = error
        return super()._failed(error)

    def _pause(self, pause_s: float) -> bool:
        del pause_s
        if self._ends_pause(None, refresh.wanted(self._catalog, self._owner_name)) is False:
            return False
        raise Paused

    def _attempt(self) -> bool:
        again = super()._attempt()
        self.failure = None
        return again

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        yield self.server, lambda: published(self.server)


def published(server: MemoryServer) -> Any:
    """What stands for what a subscription gets from its publisher."""
    tables = {
        ("public", name): SimpleNamespace(
            namespace="public", name=name, relid=relid, primary_key=(), cut_identity=frozenset(), columns=()
        )
        for name, relid in relation_ids(server.tables).items()
    }
    return SimpleNamespace(tables=tables, current=lambda read: read())


class Copies(TableSync):
    """Copies rows of a server in memory, as `TableSync` copies those of a server."""

    def new_rels(self, tables: Iterable[Any], known: Iterable[RelRow]) -> list[RelRow]:
        """Rows for new tables."""
        del known
        return [
            RelRow("public", table.name, "i", INVALID, f"/lake/public/{table.name}", table.relid) for table in tables
        ]

    def copy(self, tables: Mapping[tuple[str, str], Any], publisher: Any, snapshot: Snapshot) -> dict[Any, Any]:
        """Copy those that need it; nothing fails but the daemon as a whole."""
        for key, rel in self._catalog.rels_by_name(self._context.name).items():
            if self.needs_copy(rel) and key in tables:
                self._copy_rows(rel, snapshot, publisher.snapshots[snapshot.name][rel.name])
        return {}

    def _copy_rows(self, rel: RelRow, snapshot: Snapshot, rows: list[int]) -> None:
        """Replace a table's rows by those of a snapshot."""
        name, lsn, stamp = self._context.name, snapshot.consistent_point, self._stamp(snapshot)
        self._catalog.put_rel(name, rel := replace(rel, state="d"))
        lake: MemoryLake = self._spark.lake  # type: ignore[attr-defined]
        existed = rel.path in lake.tables
        begun = lake.rows(rel.path) if existed else []

        def replace_all() -> None:
            """Delta refuses it if others have changed the rows since it began: it has read the whole table."""
            if not lake.tables.get(rel.path) or lake.rows(rel.path) == begun:
                commit(lake, rel.path, lambda _: rows, stamp)

        lake.send(replace_all)
        self._make_durable(rel.path, stamp, existed=existed)
        faults.reach("table_copied")
        self._catalog.put_rel(name, replace(rel, state="f", lsn=lsn, position=lsn, timeline=snapshot.timeline))


def commit(lake: MemoryLake, path: str, change: Change, stamp: CommitStamp) -> None:
    """Commit with a stamp."""
    lake.commit(path, change, app_id=stamp.txn_app_id_in_delta, version=stamp.txn_version, metadata=stamp.user_metadata)
