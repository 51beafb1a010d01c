"""Takes up what `pgbridge refresh` has asked for: tables join, stop, or go to be copied afresh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge import faults
from bridge.errors import TargetError
from bridge.sync.refresh_plan import plan
from bridge.track import refresh
from bridge.track.rows import RelRow
from protocol.lsn import INVALID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from bridge.publication.published_table import PublishedTable
    from bridge.receive.publisher import Publisher
    from bridge.sync.tablesync import TableSync
    from bridge.track.catalog import Catalog
    from bridge.track.refresh import RefreshRow


class Refresh:
    """Makes requests the tables' states. Copies nothing: that is `bridge.sync.tablesync_worker`'s.

    Args:
        subscription: The subscription's name.
        catalog: Its catalog.
        sync: Makes and checks Delta tables.
        log: The subscription's logger.
    """

    def __init__(self, subscription: str, catalog: Catalog, sync: TableSync, log: FilteringBoundLogger) -> None:
        self._name = subscription
        self._catalog = catalog
        self._sync = sync
        self._log = log

    def take_up(
        self, asked: Sequence[RefreshRow], tables: Mapping[tuple[str, str], PublishedTable], publisher: Publisher
    ) -> None:
        """Do what was asked for. Neither of the subscription's streams may run, nor have a batch under way.

        A table that cannot be taken is left out, with an error of the log: all others go on.

        Args:
            asked: The requests, at least one.
            tables: What is published, read after the requests were.
            publisher: For the types of tables that are not copied.
        """
        rels = {(rel.namespace, rel.name): rel for rel in self._rels()}
        planned = plan(asked, tables, rels)
        new = (self._new(tables[name]) for name in planned.copied)
        bring_in = [rel for rel in new if rel is not None]
        new = (self._new(tables[name], publisher) for name in planned.uncopied)
        follow = [rel for rel in new if rel is not None]
        for name in planned.resynced:
            # As if a copy had been cut short: its rows stay until one commit replaces them all.
            bring_in.append(RelRow(*name, "d", INVALID, rels[name].path, tables[name].relid))
            self._log.info("table is copied afresh", relation=rels[name].qualified_name)
        for name in planned.removed:
            rel = rels[name]
            self._log.warning(
                "table is no longer published: it stops, and its Delta table stays",
                relation=rel.qualified_name,
                path=rel.path,
            )
        for name in planned.unknown:
            self._log.warning("a table that is not subscribed cannot be copied afresh", relation=".".join(name))
        refresh.take_up(
            self._catalog, self._name, asked[-1].number, bring_in=bring_in, follow=follow, remove=planned.removed
        )
        faults.reach("refresh_taken")

    def _rels(self) -> list[RelRow]:
        return self._catalog.rels(self._name) + self._catalog.rels(refresh.sync_name(self._name))

    def _new(self, table: PublishedTable, publisher: Publisher | None = None) -> RelRow | None:
        """The row of a table that is added; with a publisher, of one that is not copied. None for one left out."""
        try:
            found = self._sync.new_rels([table])
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
        self._log.info("table is added", relation=table.qualified_name, copied=publisher is None)
        return rel
