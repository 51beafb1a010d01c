"""ALTER SUBSCRIPTION: `pgbridge enable`, `disable` and `skip`; and `pgbridge reload`, which reads its options again."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.catalog import catalog_rows, lock, notes
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.runtime import errors, remedies
from pgbridge.bridge.track.progress import parse_skip_lsn

if TYPE_CHECKING:
    from pgbridge.bridge.commands.state import State
    from pgbridge.bridge.config.config import Config, Subscription

_PATIENCE_S: Final = 5.0
"""How long DISABLE waits for a worker to see it: one that pauses looks each second. An ENABLE before that would leave
the worker in its pause."""

_POLL_S: Final = 0.1


def set_enabled(subscription: Subscription, state: State, *, enabled: bool) -> str:
    """Enable or disable a subscription in the catalog, where the daemon looks; return the sentence to print."""
    name, row = subscription.name, state.catalog.subscription(subscription.name)
    with state.catalog.transaction():
        state.catalog.register(name, enabled=subscription.enabled)  # the file's value is older than the command
        state.catalog.set_enabled(name, enabled=enabled)
    when = state.when
    if enabled:
        again = waits(subscription, state) if row is not None and row.enabled else ""
        return f'subscription "{name}" enabled ({when}){again}'
    if state.running and not has_stopped(name, state, _PATIENCE_S):
        when = "after its batch under way"
    return f'subscription "{name}" disabled ({when})'


def waits(subscription: Subscription, state: State) -> str:
    """Say that a subscription pauses after an error, and what ends the pause; empty if it does not."""
    row, name = state.catalog.subscription(subscription.name), subscription.name
    if not state.running or row is None or row.state != "error":
        return ""
    return (
        f"; it pauses after an error, for {subscription.workers.retry_max_s:g} s at most. "
        f"To end the pause: {remedies.disable(name)}; {remedies.enable(name)}"
    )


def has_stopped(name: str, state: State, patience_s: float) -> bool:
    """Whether no worker of the daemon is at a disabled subscription; waits a while for that."""
    end_s = time.monotonic() + patience_s
    while (row := state.catalog.subscription(name)) is not None and row.state not in {"disabled", "stopped"}:
        if time.monotonic() > end_s:
            return False
        time.sleep(_POLL_S)
    return True


# --- `pgbridge skip`: ALTER SUBSCRIPTION … SKIP -----------------------------------------------------------------------


def set_skip(subscription: Subscription, state: State, text: str) -> str:
    """Record which transaction is to be skipped, by the worker whose error it is; return the sentence to print.

    Args:
        text: The transaction's finish LSN, or "none" for no transaction.

    Raises:
        InvalidLsn: The text is not an LSN.
        SkipError: The transaction is already applied.
    """
    name, sync, catalog = subscription.name, catalog_rows.sync_name(subscription.name), state.catalog
    skip_lsn = parse_skip_lsn(text, None)
    of_added = catalog.last_error(sync)  # of tables that are being added, which are behind the subscription
    owner = sync if skip_lsn and of_added and of_added.finish_lsn == skip_lsn else name
    skip_lsn = parse_skip_lsn(text, catalog.remote_lsn(owner))
    catalog.set_skip_lsn(owner, skip_lsn)
    if skip_lsn is None:
        catalog.set_skip_lsn(sync, None)
        return f'subscription "{name}" skips no transaction'
    return f'subscription "{name}" will skip the transaction that finished at {skip_lsn} ({state.when})'


# --- `pgbridge reload`: has a running daemon read the configuration file again, and says what it has made of it -------
# The daemon takes the request up in `bridge.service.reload`; requests in the catalog are `bridge.catalog.notes`.

_ANSWER_PATIENCE_S = 30.0
"""How long to wait for the daemon: it answers within a second, except while it starts Spark."""


def reload(config: Config) -> notes.Outcome:
    """Ask the daemon on the configuration's state directory, and wait for its answer.

    Raises:
        ConfigError: The daemon could not use the file.
        StateError: The state directory cannot be used.
    """
    not_running = notes.Outcome(
        0, (f"no daemon runs on {config.state_dir}: this takes effect at the daemon's next start",)
    )
    if not lock.is_running(config.state_dir):
        return not_running
    with closing(Catalog(catalog_path(config.state_dir))) as catalog:
        number = notes.ask(catalog)
        end_s = time.monotonic() + _ANSWER_PATIENCE_S
        while (outcome := notes.take_answer(catalog, number)) is None:
            if not lock.is_running(config.state_dir):
                return not_running
            if time.monotonic() > end_s:
                line = "the daemon has not answered yet: it takes this up once Spark runs; its log will say it"
                return notes.Outcome(1, (line,))
            time.sleep(_POLL_S)
    if outcome.code == notes.INVALID:
        raise errors.ConfigError("\n".join(outcome.lines))
    return outcome
