"""What the other subscriptions of a configuration still need of a subscription's server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.check.server import Needs
from bridge.errors import ConfigError
from bridge.receive.connection import conninfo_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bridge.check.subscription import Known
    from bridge.config import Subscription

_PLACE = ("service", "host", "hostaddr", "port")


def others_need(subscriptions: Iterable[Subscription], one: Subscription, known: Known) -> Needs:
    """Return the slots and WAL senders that enabled subscriptions other than `one` need and do not have yet.

    A server is known by its host and port as the connection strings have them: slots belong to all of its databases.
    """
    place = _place(one)
    slots = senders = 0
    for other in subscriptions:
        if other.name == one.name or _place(other) != place:
            continue
        row = known.catalog.subscription(other.name) if known.catalog is not None else None
        if not (other.enabled if row is None else row.enabled):
            continue
        has_slot = known.catalog is not None and known.catalog.remote_lsn(other.name) is not None
        slots += not has_slot and other.create_slot
        senders += not (known.running and row is not None and row.state == "streaming")
    return Needs(slots, senders)


def _place(subscription: Subscription) -> tuple[object, ...]:
    try:
        parameters = conninfo_parameters(subscription.connection)
    except ConfigError:  # its own check says so
        return (subscription.connection,)
    return tuple(parameters.get(key) for key in _PLACE)
