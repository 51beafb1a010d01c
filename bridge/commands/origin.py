"""What `pgbridge origin` shows and does: pg_replication_origin_status and pg_replication_origin_advance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from bridge.errors import BridgeError, SkipError, StateError
from bridge.receive.publisher import Publisher
from bridge.track.lock import locked
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bridge.config import Config, Subscription
    from bridge.track.catalog import Catalog


def collect(subscriptions: Iterable[Subscription], catalog: Catalog) -> dict[str, Any]:
    """The origins.

    Returns:
        `{"origins": [{"subscription", "external_id", "remote_lsn", "batch"}]}`: LSNs are text; `remote_lsn` is null
        before the subscription's start; `batch` is `{"start_lsn", "end_lsn", "undoing"}` of a batch that was begun
        and not finished, else null.
    """
    origins = []
    for subscription in subscriptions:
        remote_lsn = catalog.remote_lsn(subscription.name)
        batch = catalog.batch(subscription.name)
        origins.append(
            {
                "subscription": subscription.name,
                "external_id": subscription.origin_name,
                "remote_lsn": None if remote_lsn is None else str(remote_lsn),
                "batch": batch
                and {"start_lsn": str(batch.start_lsn), "end_lsn": str(batch.end_lsn), "undoing": batch.undoing},
            }
        )
    return {"origins": origins}


def render(document: dict[str, Any]) -> Table:
    """The same for people."""
    table = Table(box=None, pad_edge=False)
    for heading in ("subscription", "external_id", "remote_lsn", "batch under way"):
        table.add_column(heading, overflow="fold")
    for entry in document["origins"]:
        batch = entry["batch"]
        begun = f"{batch['start_lsn']} to {batch['end_lsn']}" if batch else "-"
        begun += " (being undone)" if batch and batch["undoing"] else ""
        table.add_row(*map(Text, (entry["subscription"], entry["external_id"], entry["remote_lsn"] or "-", begun)))
    return table


def advance(config: Config, catalog: Catalog, subscription: Subscription, text: str) -> str:
    """Move the origin on by hand: what ends before it and was not applied is never applied.

    Args:
        config: The configuration.
        catalog: Its catalog.
        subscription: Whose origin.
        text: The LSN.

    Returns:
        What happened, in a sentence.

    Raises:
        SkipError: It is no LSN, or the publisher has not written so far.
        StateError: The daemon is running, the origin is further, or a batch is under way.
    """
    try:
        lsn = Lsn.parse(text)
    except ValueError as error:
        raise SkipError(str(error)) from error
    flush_lsn = _flush_lsn(subscription)
    if flush_lsn is not None and lsn > flush_lsn:
        raise SkipError(
            f"{lsn} is beyond what the publisher has written ({flush_lsn}): what is still to come would be left out"
        )
    try:
        with locked(config.state_dir):
            before = catalog.remote_lsn(subscription.name)
            catalog.set_origin(subscription.name, lsn)
    except StateError as error:
        raise StateError(f'origin "{subscription.origin_name}": {error.message}', hint=error.hint) from error
    return f'origin "{subscription.origin_name}": {before} -> {lsn}; what ends in between is left out'


def _flush_lsn(subscription: Subscription) -> Lsn | None:
    """The publisher's; None when it does not answer."""
    try:
        with Publisher(subscription.connection, application_name=f"{subscription.name}_origin") as publisher:
            return publisher.flush_lsn()
    except BridgeError:
        return None
