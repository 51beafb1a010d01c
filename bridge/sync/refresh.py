"""Carries out the requests of `pgbridge refresh`, between two streams of the subscription.

`bridge.commands.refresh` records them, `plan` decides (pure), `bridge.catalog.refresh` is the catalog.

Source: `AlterSubscription_refresh` in PostgreSQL's subscriptioncmds.c.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog import catalog_rows, refresh
from pgbridge.bridge.config.tables import BEGINNING_ANEW
from pgbridge.bridge.runtime import errors, faults, remedies
from pgbridge.protocol.lsn import INVALID

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.receive.publisher import Publisher
    from pgbridge.bridge.sync.tablesync import TableSync
    from pgbridge.bridge.targets.target import Mode

    Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """Tables by (namespace, name), sorted. No table is in two of copied, uncopied, removed, resynced and unknown.

    Attributes:
        copied: New tables that are copied before they follow the stream.
        replacing: Those of them whose copy replaces the rows that the Delta table has: an operator's request names the
            table, or the rows are the subscription's own from before.
        uncopied: New tables that follow the stream at once, with the rows that their Delta tables have.
        removed: Subscribed tables that are no longer published.
        resynced: Subscribed tables that are copied again.
        gaps: Subscribed tables whose changes were not sent for a while, and that are not copied again for that.
        unknown: Tables that were to be copied again, but are not published.
        subscribed: The subscription's tables after the refresh.
    """

    copied: tuple[Name, ...] = ()
    uncopied: tuple[Name, ...] = ()
    removed: tuple[Name, ...] = ()
    resynced: tuple[Name, ...] = ()
    unknown: tuple[Name, ...] = ()
    gaps: tuple[Name, ...] = ()
    subscribed: frozenset[Name] = frozenset()
    replacing: tuple[Name, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.copied or self.uncopied or self.removed or self.resynced)


def plan(
    asked: Sequence[refresh.RefreshRow],
    published: Collection[Name],
    subscribed: Collection[Name],
    keeping: Collection[Name] = (),
    formerly: Collection[Name] = (),
) -> Plan:
    """Combine requests into one plan.

    Args:
        asked: The requests, in order. The last request for all publications says whether new tables are copied; a new
            table that another request wants copied again is copied in any case. A subscribed table that was not
            published at an earlier request counts as new: only its place in the stream was kept.
        published: The tables that the publications, or the definitions, publish now.
        subscribed: The subscription's tables, those of its tablesync worker included.
        keeping: Tables whose Delta tables have earlier changes or versions. A copy replaces them, so only a request
            that names the table makes one.
        formerly: Tables that a refresh has removed: their Delta tables have the rows from then.
    """
    whole = [row for row in asked if row.table is None]
    named = _named(asked)
    joining = {row.table for row in asked if row.joins}
    new = set(published) - set(subscribed)
    added = sorted(new if whole else new & (named | joining))
    removed = sorted(set(subscribed) - set(published)) if whole else []
    copies = bool(whole) and whole[-1].copy_data
    both = set(published) & set(subscribed)
    back = {row.table for row in asked if row.unpublished and row.table in both and copies}
    afresh = named | (back - set(keeping))
    wanted = sorted(afresh - set(added) - set(removed))
    copied = set(added) if copies else afresh | {row.table for row in asked if row.joins and row.copy_data}
    replacing = named | (set(formerly) - set(keeping))
    return Plan(
        tuple(name for name in added if name in copied),
        tuple(name for name in added if name not in copied),
        tuple(removed),
        tuple(name for name in wanted if name in both),
        tuple(name for name in wanted if name not in both),
        tuple(sorted(back - afresh)),
        frozenset(subscribed).union(added).difference(removed),
        tuple(name for name in added if name in copied and name in replacing),
    )


def _named(asked: Sequence[refresh.RefreshRow]) -> set[Name]:
    """The tables that an operator has asked to copy, whatever their Delta tables have."""
    return {row.table for row in asked if row.table is not None and not (row.unpublished or row.joins)}


class Refresh:
    """Changes the tables' states as requested; `bridge.sync.tablesync_worker` copies those that need it.

    `mode_of` gives the mode of a table by its `namespace.name`.
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
        self,
        asked: Sequence[refresh.RefreshRow],
        tables: Mapping[tuple[str, str], PublishedTable],
        publisher: Publisher,
    ) -> None:
        """Carry out requests. None of the subscription's streams may run or have an unfinished batch.

        A table that cannot be added is logged as an error, and the others are added still.

        Args:
            asked: The requests, at least one.
            tables: The published tables, read after the requests.
            publisher: Gives the types of tables that are not copied.
        """
        rels = {(rel.namespace, rel.name): rel for rel in self._rels()}
        keeping = [name for name in {**rels, **tables} if self._mode_of(".".join(name)) in BEGINNING_ANEW]
        formerly = refresh.removed(self._catalog, self._name)
        named = _named(asked)
        planned = plan(asked, tables, rels, keeping, formerly)
        known = [rel for name, rel in rels.items() if name not in planned.removed]
        new = (
            self._new(
                tables[name],
                known,
                replacing=name in planned.replacing,
                former=None if name in named else formerly.get(name),
            )
            for name in planned.copied
        )
        bring_in = [rel for rel in new if rel is not None]
        new = (self._new(tables[name], known, publisher) for name in planned.uncopied)
        follow = [rel for rel in new if rel is not None]
        for name in planned.resynced:
            # as after a copy that was cut short: the rows stay until one commit replaces them
            known_rel = rels[name]
            anew = catalog_rows.RelRow(*name, "d", INVALID, known_rel.path, tables[name].relid, shape=known_rel.shape)
            bring_in.append(anew)
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
            self._log.warning("table cannot be copied afresh: it is not published", relation=".".join(name))
        refresh.take_up(
            self._catalog, self._name, asked[-1].number, bring_in=bring_in, follow=follow, remove=planned.removed
        )
        faults.reach("refresh_taken")

    def _rels(self) -> list[catalog_rows.RelRow]:
        return self._catalog.rels(self._name, catalog_rows.sync_name(self._name))

    def _new(
        self,
        table: PublishedTable,
        known: list[catalog_rows.RelRow],
        publisher: Publisher | None = None,
        *,
        replacing: bool = False,
        former: str | None = None,
    ) -> catalog_rows.RelRow | None:
        """Return the catalog row of an added table; with a publisher, of one that is not copied. None on an error.

        The table joins `known`, the subscription's tables. With `replacing` the copy replaces what its Delta table has,
        unless that is elsewhere than the `former` one, which was removed.
        """
        try:
            rels = self._sync.new_rels([table], known)
            if not rels:
                return None
            (rel,) = rels
            if publisher is None:
                rel = replace(rel, state="d") if replacing and former in {None, rel.path} else rel
                self._sync.check_copied_to(rel)
            else:
                rel = self._sync.uncopied(rel, table, publisher)
        except errors.TargetError as error:
            self._catalog.record_error(self._name, str(error), counter="sync", relation=table.qualified_name)
            self._log.error("table cannot be added", relation=table.qualified_name, error=str(error))
            return None
        known.append(rel)
        self._log.info("table is added", relation=table.qualified_name, copied=publisher is None)
        return rel
