"""`pgbridge enable` and `pgbridge disable`: ALTER SUBSCRIPTION … ENABLE and DISABLE."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.commands.state import State
    from bridge.config import Subscription


def set_enabled(subscription: Subscription, state: State, *, enabled: bool) -> str:
    """Enable or disable a subscription in the catalog, where the daemon looks; return the sentence to print."""
    state.catalog.set_enabled(subscription.name, enabled=enabled)
    return f'subscription "{subscription.name}" {"enabled" if enabled else "disabled"} ({state.when})'
