"""`pgbridge origin`: pg_replication_origin_status, and with `--advance` pg_replication_origin_advance.

With `--upgraded` the origin becomes one of the server that pg_upgrade has made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from pgbridge.bridge.catalog.lock import STOP_FIRST, locked
from pgbridge.bridge.catalog.reset import check_finished, follow
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection, check_slot
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import BridgeError, PublisherError, SkipError, StateError
from pgbridge.bridge.runtime.listing import Listing
from pgbridge.bridge.track.progress import given_lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Config, Subscription
    from pgbridge.protocol.lsn import Lsn


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


def render(document: dict[str, Any]) -> Listing:
    """Render the document as a table."""
    table = Listing("subscription", "external_id", "remote_lsn", "batch under way")
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


def upgraded(config: Config, catalog: Catalog, subscription: Subscription) -> Iterator[str]:
    """Go on with the server that pg_upgrade has made of the former one; yields the lines to print.

    It relies on pg_upgrade, which refuses while a slot has not consumed everything; and on nobody having written to the
    new server before the slot was there. Tables keep their OIDs then, so another server is recognized by these.

    Raises:
        StateError: The daemon is running; or something is under way that the old server would have to finish.
        PublisherError: The server does not answer, it is not one that pg_upgrade made, or it lacks the slot.
    """
    name, slot_name = subscription.name, subscription.slot_name
    with locked(config.state_dir, STOP_FIRST):
        row, remote_lsn = catalog.subscription(name), catalog.remote_lsn(name)
        if row is None or remote_lsn is None:
            raise StateError(f'subscription "{name}" has no origin yet: it has never run')
        check_finished(catalog, name)
        with (
            Publisher(subscription.connection, application_name=f"{name}_origin") as publisher,
            ReplicationConnection(subscription.connection, application_name=f"{name}_origin") as replication,
        ):
            server = replication.history()
            if server.system_identifier == row.system_identifier:
                raise PublisherError(f"the server is the one that the subscription began with: {row.system_identifier}")
            slot_lsn = check_slot(
                slot_name, publisher.slot(slot_name), subscription=name, database=publisher.database, durable_lsn=None
            )
            if slot_lsn < remote_lsn:
                raise _not_upgraded(f'its slot "{slot_name}" is at {slot_lsn}, before the origin {remote_lsn}')
            relids = {
                (table.namespace, table.name): table.relid for table in publisher.tables(subscription.publications)
            }
        known = {key: rel.relid for key, rel in catalog.rels_by_name(name).items() if rel.relid is not None}
        moved = [key for key, relid in known.items() if relids.get(key, relid) != relid]
        if moved:
            raise _not_upgraded(f'table "{".".join(moved[0])}" has another OID, which pg_upgrade keeps')
        follow(catalog, name, server, slot_lsn)
    yield f"server: {row.system_identifier} -> {server.system_identifier}"
    yield f'origin "{subscription.origin_name}": {remote_lsn} -> {slot_lsn}'
    yield f"{len(known.keys() & relids.keys())} tables have the OIDs that they had; their rows are taken to be the same"
    yield f"start the daemon; to be sure of the rows, run then: {remedies.verify(name)}"


def _not_upgraded(reason: str) -> PublisherError:
    return PublisherError(
        f"the server was not made by pg_upgrade of the one that the subscription began with: {reason}",
        hint="check the connection string; another server needs another state_dir and warehouse",
    )


def _flush_lsn(subscription: Subscription) -> Lsn | None:
    """The publisher's flush position; None when the publisher does not answer."""
    try:
        with Publisher(subscription.connection, application_name=f"{subscription.name}_origin") as publisher:
            return publisher.flush_lsn()
    except BridgeError:
        return None
