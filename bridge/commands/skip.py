"""`pgbridge skip`: ALTER SUBSCRIPTION … SKIP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.track.catalog_rows import sync_name
from bridge.track.skip_lsn import parse

if TYPE_CHECKING:
    from bridge.commands.state import State
    from bridge.config import Subscription


def set_skip(subscription: Subscription, state: State, text: str) -> str:
    """Record which transaction is to be skipped, by the worker whose error it is; return the sentence to print.

    Args:
        subscription: The subscription.
        state: Its state.
        text: The transaction's finish LSN, or "none" for no transaction.

    Raises:
        InvalidLsn: The text is not an LSN.
        SkipError: The transaction is already applied.
    """
    name, sync, catalog = subscription.name, sync_name(subscription.name), state.catalog
    skip_lsn = parse(text, None)
    of_added = catalog.last_error(sync)  # of tables that are being added, which are behind the subscription
    owner = sync if skip_lsn and of_added and of_added.finish_lsn == skip_lsn else name
    skip_lsn = parse(text, catalog.remote_lsn(owner))
    catalog.set_skip_lsn(owner, skip_lsn)
    if skip_lsn is None:
        catalog.set_skip_lsn(sync, None)
        return f'subscription "{name}" skips no transaction'
    return f'subscription "{name}" will skip the transaction that finished at {skip_lsn} ({state.when})'
