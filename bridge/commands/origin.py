"""`pgbridge origin`: pg_replication_origin_status, and with `--advance` pg_replication_origin_advance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from bridge.catalog.lock import STOP_FIRST, locked
from bridge.receive.publisher import Publisher
from bridge.runtime.errors import BridgeError, SkipError, StateError
from bridge.track.progress import given_lsn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bridge.catalog.catalog import Catalog
    from bridge.config.config import Config, Subscription
    from protocol.lsn import Lsn


def collect(subscriptions: Iterable[Subscription], catalog: Catalog) -> dict[str, Any]:
    """Return the document of `--json`.

    Returns:
        `{"origins": [{"subscription", "external_id", "remote_lsn", "batch"}]}`. LSNs are text. `remote_lsn` is null
        before the subscription's first start. `batch` is `{"start_lsn", "end_lsn", "undoing"}` for a batch that was
        begun and not finished, else null.
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
    """Render the document as a table."""
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
    """Set the origin's LSN by hand. Transactions that end before it and are not applied yet are never applied.

    Returns:
        The sentence to print.

    Raises:
        SkipError: The text is not an LSN, or the LSN is ahead of the publisher's flush position.
        StateError: The daemon is running, the origin is ahead of the LSN, or a batch is unfinished.
    """
    lsn = given_lsn(text)
    flush_lsn = _flush_lsn(subscription)
    if flush_lsn is not None and lsn > flush_lsn:
        raise SkipError(
            f"LSN {lsn} is ahead of the publisher's flush position {flush_lsn}: changes still to come would be lost"
        )
    try:
        with locked(config.state_dir, STOP_FIRST):
            before = catalog.remote_lsn(subscription.name)
            catalog.set_origin(subscription.name, lsn)
    except StateError as error:
        raise StateError(f'origin "{subscription.origin_name}": {error.message}', hint=error.hint) from error
    return f'origin "{subscription.origin_name}": {before} -> {lsn}; transactions that end in between are never applied'


def _flush_lsn(subscription: Subscription) -> Lsn | None:
    """The publisher's flush position; None when the publisher does not answer."""
    try:
        with Publisher(subscription.connection, application_name=f"{subscription.name}_origin") as publisher:
            return publisher.flush_lsn()
    except BridgeError:
        return None
