"""What is known of subscriptions before their servers are asked: by the state directory, and by the file itself."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog.catalog_rows import sync_name
from pgbridge.bridge.check.server import Needs
from pgbridge.bridge.lake.log.local_log import real_location
from pgbridge.bridge.receive import connection
from pgbridge.bridge.runtime import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.catalog.catalog_rows import RelRow
    from pgbridge.bridge.config.config import Subscription

_PLACE = ("service", "host", "hostaddr", "port")


class Owners:
    """Which subscription a Delta table or a slot belongs to: by the catalog, or because it was looked at first.

    It is for one check, whose subscriptions may be looked at by several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[tuple[str, ...], str] = {}

    def of_tables(self, paths: Sequence[str], name: str, catalog: Catalog | None) -> dict[str, str]:
        """Other subscriptions than `name` that write to Delta tables, by those of the paths that are theirs."""
        begun = catalog.taken(name, real_location) if catalog is not None else {}
        owners = {path: begun.get(real_location(path)) or self._first((real_location(path),), name) for path in paths}
        return {path: owner for path, owner in owners.items() if owner is not None}

    def of_slot(self, system_identifier: str, slot_name: str, name: str, catalog: Catalog | None) -> str | None:
        """Another subscription that streams from a server's slot; None if it is the first that wants it."""
        if catalog is not None:
            owner = catalog.slot_owner(slot_name, system_identifier, but=name, exists=True)
            if owner is not None:
                return owner
        return self._first((system_identifier, slot_name), name)

    def _first(self, key: tuple[str, ...], name: str) -> str | None:
        with self._lock:
            owner = self._owners.setdefault(key, name)
        return None if owner == name else owner


@dataclass(frozen=True, slots=True)
class Known:
    """The facts that the state directory has.

    Attributes:
        catalog: Its catalog; None if it does not exist yet.
        running: Whether a daemon holds it.
        owners: What belongs to which subscription, shared by all that are looked at.
    """

    catalog: Catalog | None
    running: bool
    owners: Owners = field(default_factory=Owners)

    def tables(self, subscription: str) -> dict[tuple[str, str], RelRow]:
        """A subscription's tables, by (namespace, name); none before its first start."""
        return self.catalog.rels_by_name(subscription, sync_name(subscription)) if self.catalog is not None else {}


def is_enabled(subscription: Subscription, catalog: Catalog | None) -> bool:
    """Whether the subscription runs, by the catalog if it knows the subscription."""
    row = catalog.subscription(subscription.name) if catalog is not None else None
    return subscription.enabled if row is None else row.enabled


def others_need(subscriptions: Iterable[Subscription], subscription: Subscription, known: Known) -> Needs:
    """Return the slots and WAL senders that enabled subscriptions other than the given one need and do not have yet.

    A server is known by its host and port as the connection strings have them: slots belong to all of its databases.
    """
    place = _place(subscription)
    slots = senders = 0
    for other in subscriptions:
        if other.name == subscription.name or _place(other) != place:
            continue
        row = known.catalog.subscription(other.name) if known.catalog is not None else None
        if not is_enabled(other, known.catalog):
            continue
        has_slot = known.catalog is not None and known.catalog.remote_lsn(other.name) is not None
        slots += not has_slot and other.create_slot
        senders += not (known.running and row is not None and row.state == "streaming")
    return Needs(slots, senders)


def _place(subscription: Subscription) -> tuple[object, ...]:
    try:
        parameters = connection.conninfo_parameters(subscription.connection)
    except errors.ConfigError:  # its own check says so
        return (subscription.connection,)
    return tuple(parameters.get(key) for key in _PLACE)
