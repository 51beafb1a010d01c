"""What REFRESH PUBLICATION comes to: which tables are added, stop, or are copied afresh. Pure.

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
    """Tables by (namespace, name), sorted; none is in two of them.

    Attributes:
        copied: They are published and not subscribed yet: copied, then joined to the stream.
        uncopied: The same, to follow the stream at once with what their Delta tables hold.
        removed: They are subscribed and no longer published.
        resynced: They are subscribed, and copied afresh.
        unknown: They were to be copied afresh, and are not both subscribed and published.
        subscribed: The subscription's tables when all this is done.
    """

    copied: tuple[Name, ...] = ()
    uncopied: tuple[Name, ...] = ()
    removed: tuple[Name, ...] = ()
    resynced: tuple[Name, ...] = ()
    unknown: tuple[Name, ...] = ()
    subscribed: frozenset[Name] = frozenset()

    @property
    def empty(self) -> bool:
        """There is nothing to do."""
        return not (self.copied or self.uncopied or self.removed or self.resynced)


def plan(asked: Sequence[RefreshRow], published: Collection[Name], subscribed: Collection[Name]) -> Plan:
    """What requests come to, all together.

    Args:
        asked: In order. Of several for the publications as a whole the last one says whether added tables are copied;
            one that is to be copied afresh as well is.
        published: What the publications, or the definitions, publish now.
        subscribed: The subscription's tables, those that are being brought in among them.
    """
    whole = [row for row in asked if row.table is None]
    added = sorted(set(published) - set(subscribed)) if whole else []
    removed = sorted(set(subscribed) - set(published)) if whole else []
    afresh = {row.table for row in asked if row.table is not None}
    wanted = sorted(afresh - set(added) - set(removed))
    both = set(published) & set(subscribed)
    copied = set(added) if whole and whole[-1].copy_data else afresh
    return Plan(
        tuple(name for name in added if name in copied),
        tuple(name for name in added if name not in copied),
        tuple(removed),
        tuple(name for name in wanted if name in both),
        tuple(name for name in wanted if name not in both),
        frozenset(subscribed).union(added).difference(removed),
    )
