"""`pgbridge enable` and `pgbridge disable`: ALTER SUBSCRIPTION … ENABLE and DISABLE."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from bridge import remedies

if TYPE_CHECKING:
    from bridge.commands.state import State
    from bridge.config import Subscription


_PATIENCE_S: Final = 5.0
"""How long DISABLE waits for a worker to see it: one that pauses looks each second. An ENABLE before that would leave
the worker in its pause."""

_POLL_S: Final = 0.1


def set_enabled(subscription: Subscription, state: State, *, enabled: bool) -> str:
    """Enable or disable a subscription in the catalog, where the daemon looks; return the sentence to print."""
    name, row = subscription.name, state.catalog.subscription(subscription.name)
    state.catalog.set_enabled(name, enabled=enabled)
    when = state.when
    if enabled:
        again = waits(subscription, state) if row is not None and row.enabled else ""
        return f'subscription "{name}" enabled ({when}){again}'
    if state.running and not _has_stopped(name, state):
        when = "after its batch under way"
    return f'subscription "{name}" disabled ({when})'


def waits(subscription: Subscription, state: State) -> str:
    """Say that a subscription pauses after an error, and what ends the pause; empty if it does not."""
    row, name = state.catalog.subscription(subscription.name), subscription.name
    if not state.running or row is None or row.state != "error":
        return ""
    return (
        f"; it pauses after an error, for {subscription.retry_max_s:g} s at most. "
        f"To end the pause: {remedies.disable(name)}; {remedies.enable(name)}"
    )


def _has_stopped(name: str, state: State) -> bool:
    """Whether no worker of the daemon is at a subscription; waits a while for that."""
    end_s = time.monotonic() + _PATIENCE_S
    while (row := state.catalog.subscription(name)) is not None and row.state not in {"disabled", "stopped"}:
        if time.monotonic() > end_s:
            return False
        time.sleep(_POLL_S)
    return True
