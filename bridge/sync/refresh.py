"""Carries out the requests of `pgbridge refresh`, between two streams of the subscription.

`bridge.commands.refresh` records them, `bridge.sync.refresh_plan` decides, `bridge.track.refresh` is the catalog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge import faults, remedies
from bridge.errors import TargetError
from bridge.sync.refresh_plan import plan
from bridge.track import refresh
from bridge.track.catalog_rows import RelRow
from protocol.lsn import INVALID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from bridge.apply.target.target import Mode
    from bridge.publication.published_table import PublishedTable
    from bridge.receive.publisher import Publisher
    from bridge.sync.tablesync import TableSync
    from bridge.track.catalog import Catalog
    from bridge.track.refresh import RefreshRow


class Refresh:
    """Changes the tables' states as requested; `bridge.sync.tablesync_worker` copies those that need it.

    Args:
        subscription: The subscription's name.
        catalog: Its catalog.
        sync: Creates and checks Delta tables.
        log: The subscription's logger.
        mode_of: The mode of a table, by its `namespace.name`.
    """

    def __init__(
        self,
        subscription: str,
        catalog: Catalog,
        sync: TableSync,
        log: FilteringBoundLogger,
        mode_of: Callable[[str], Mode] = lambda _: "mirror",
    ) -> None:
        self._mode_of = mode_of
        self._name = subscription
        self._catalog = catalog
        self._sync = sync
        self._log = log

    def take_up(
        self, asked: Sequence[RefreshRow], tables: Mapping[tuple[str, str], PublishedTable], publisher: Publisher
    ) -> None:
        """Carry out requests. None of the subscription's streams may run or have an unfinished batch.

        A table that cannot be added is logged as an error, and the others are added still.

        Args:
            asked: The requests, at least one.
            tables: The published tables, read after the requests.
            publisher: Gives the types of tables that are not copied.
        """
        rels = {(rel.namespace, rel.name): rel for rel in self._rels()}
        keeping = [name for name in rels if self._mode_of(".".join(name)) != "mirror"]
        planned = plan(asked, tables, rels, keeping)
        known = [rel for name, rel in rels.items() if name not in planned.removed]
        new = (self._new(tables[name], known) for name in planned.copied)
        bring_in = [rel for rel in new if rel is not None]
        new = (self._new(tables[name], known, publisher) for name in planned.uncopied)
        follow = [rel for rel in new if rel is not None]
        for name in planned.resynced:
            # as after a copy that was cut short: the rows stay until one commit replaces them
            bring_in.append(RelRow(*name, "d", INVALID, rels[name].path, tables[name].relid))
            self._log.info("table is copied afresh", relation=rels[name].qualified_name)
        for name in planned.gaps:
            self._log.warning(
                f"the {self._mode_of('.'.join(name))} lacks changes: the table was not published for a while",
                relation=".".join(name),
                hint=f"to begin it anew with a copy, run: {remedies.resync(self._name, '.'.join(name))}",
            )
        for name in planned.removed:
            rel = rels[name]
            self._log.warning(
                "table is removed: it is no longer published; its Delta table stays",
                relation=rel.qualified_name,
                path=rel.path,
            )
        for name in planned.unknown:
            self._log.warning("table cannot be copied afresh: it is not subscribed", relation=".".join(name))
        refresh.take_up(
            self._catalog, self._name, asked[-1].number, bring_in=bring_in, follow=follow, remove=planned.removed
        )
        faults.reach("refresh_taken")

    def _rels(self) -> list[RelRow]:
        return self._catalog.rels(self._name) + self._catalog.rels(refresh.sync_name(self._name))

    def _new(self, table: PublishedTable, known: list[RelRow], publisher: Publisher | None = None) -> RelRow | None:
        """Return the catalog row of an added table; with a publisher, of one that is not copied. None on an error.

        The table joins `known`, the subscription's tables.
        """
        try:
            found = self._sync.new_rels([table], known)
            if not found:
                return None
            (rel,) = found
            if publisher is None:
                self._sync.check_copied_to(rel)
            else:
                rel = self._sync.uncopied(rel, table, publisher)
        except TargetError as error:
            self._catalog.record_error(self._name, str(error), counter="sync", relation=table.qualified_name)
            self._log.error("table cannot be added", relation=table.qualified_name, error=str(error))
            return None
        known.append(rel)
        self._log.info("table is added", relation=table.qualified_name, copied=publisher is None)
        return rel
