"""`pgbridge skip`: ALTER SUBSCRIPTION … SKIP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.track.skip_lsn import parse

if TYPE_CHECKING:
    from bridge.commands.state import State
    from bridge.config import Subscription


def set_skip(subscription: Subscription, state: State, text: str) -> str:
    """Record which transaction the apply worker is to skip; return the sentence to print.

    Args:
        subscription: The subscription.
        state: Its state.
        text: The transaction's finish LSN, or "none" for no transaction.

    Raises:
        SkipError: The text is not an LSN, or the transaction is already applied.
    """
    name = subscription.name
    skip_lsn = parse(text, state.catalog.remote_lsn(name))
    state.catalog.set_skip_lsn(name, skip_lsn)
    if skip_lsn is None:
        return f'subscription "{name}" skips no transaction'
    return f'subscription "{name}" will skip the transaction that finished at {skip_lsn} ({state.when})'
