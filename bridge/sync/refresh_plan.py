"""Decides which tables a refresh adds, removes, or copies again. Pure.

`bridge.sync.refresh` carries the plan out.

Source: `AlterSubscription_refresh` in PostgreSQL's subscriptioncmds.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bridge.track.refresh import RefreshRow

    Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """Tables by (namespace, name), sorted. No table is in two of copied, uncopied, removed, resynced and unknown.

    Attributes:
        copied: New tables that are copied before they follow the stream.
        uncopied: New tables that follow the stream at once, with the rows that their Delta tables have.
        removed: Subscribed tables that are no longer published.
        resynced: Subscribed tables that are copied again.
        gaps: Subscribed tables whose changes were not sent for a while, and that are not copied again for that.
        unknown: Tables that were to be copied again, but are not subscribed, or not published.
        subscribed: The subscription's tables after the refresh.
    """

    copied: tuple[Name, ...] = ()
    uncopied: tuple[Name, ...] = ()
    removed: tuple[Name, ...] = ()
    resynced: tuple[Name, ...] = ()
    unknown: tuple[Name, ...] = ()
    gaps: tuple[Name, ...] = ()
    subscribed: frozenset[Name] = frozenset()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.copied or self.uncopied or self.removed or self.resynced)


def plan(
    asked: Sequence[RefreshRow],
    published: Collection[Name],
    subscribed: Collection[Name],
    keeping: Collection[Name] = (),
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
    """
    whole = [row for row in asked if row.table is None]
    added = sorted(set(published) - set(subscribed)) if whole else []
    removed = sorted(set(subscribed) - set(published)) if whole else []
    copies = bool(whole) and whole[-1].copy_data
    both = set(published) & set(subscribed)
    back = {row.table for row in asked if row.unpublished and row.table in both and copies}
    named = {row.table for row in asked if row.table is not None and not row.unpublished}
    afresh = named | (back - set(keeping))
    wanted = sorted(afresh - set(added) - set(removed))
    copied = set(added) if copies else afresh
    return Plan(
        tuple(name for name in added if name in copied),
        tuple(name for name in added if name not in copied),
        tuple(removed),
        tuple(name for name in wanted if name in both),
        tuple(name for name in wanted if name not in both),
        tuple(sorted(back - afresh)),
        frozenset(subscribed).union(added).difference(removed),
    )
