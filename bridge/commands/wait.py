"""`pgbridge wait`: returns once Delta has what was committed before, as PostgreSQL's WAIT FOR LSN does on a standby."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.held import held
from pgbridge.bridge.catalog.lock import is_running
from pgbridge.bridge.monitor.document import tables_of
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection, refused_by
from pgbridge.bridge.receive.slot_status import sent_up_to
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import HINT, PublisherError, StateError
from pgbridge.bridge.track.progress import given_lsn

if TYPE_CHECKING:
    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.catalog.catalog_rows import RelRow
    from pgbridge.bridge.commands.state import State
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.protocol.lsn import Lsn

_LOOK_EVERY_S: Final = 0.05


def wait(state: State, subscription: Subscription, text: str | None, timeout_s: float) -> str:
    """Wait until every transaction that ends at or before an LSN is durable in all tables that are subscribed.

    Args:
        text: An LSN; None for what the publisher has committed when the command begins.
        timeout_s: How long to wait, in seconds.

    Returns:
        The sentence to print.

    Raises:
        InvalidLsn: The text is not an LSN.
        StateError: It was not reached in time, or the subscription is disabled.
        BridgeError: The publisher does not say what is committed.
    """
    begun_s = time.monotonic()
    name, catalog = subscription.name, state.catalog
    lsn = _committed_soon(subscription, catalog, begun_s + timeout_s) if text is None else given_lsn(text)
    while (missing := _missing(catalog, name, lsn)) is not None:
        row = catalog.subscription(name)
        if row is not None and not row.enabled:
            raise StateError(f'subscription "{name}" is disabled, and {missing}', hint=f"run: {remedies.enable(name)}")
        # looked at again, because a refresh may have been taken up in between; each ends the wait for somebody
        if _waiting(catalog, name) and not refresh.asked(catalog, name) and (rels := _waiting(catalog, name)):
            why, _, hint = _said(rels[0]).partition(HINT)
            raise StateError(f'subscription "{name}": {why}', hint=hint)
        if (left_s := begun_s + timeout_s - time.monotonic()) <= 0:
            raise _late(state, name, f"after {timeout_s:g} s {missing}")
        time.sleep(min(_LOOK_EVERY_S, left_s))
    return f"{name}: Delta has every transaction up to {lsn} ({time.monotonic() - begun_s:.1f} s)"


def _committed_soon(subscription: Subscription, catalog: Catalog, end_s: float) -> Lsn:
    """As `_committed`, of a server that may just be away, or have no WAL sender left."""
    while True:
        try:
            return _committed(subscription, catalog)
        except PublisherError as error:
            if not error.retry or time.monotonic() >= end_s:
                raise
            time.sleep(_LOOK_EVERY_S)


def _committed(subscription: Subscription, catalog: Catalog) -> Lsn:
    """An LSN that no transaction which has committed ends after, whatever its synchronous_commit.

    Raises:
        PublisherError: It says nothing, because the server does not have what is durable here.
    """
    conninfo, application_name = subscription.connection, f"{subscription.name}_wait"
    positions = held(catalog, subscription.name)  # before the server is asked: the daemon goes on
    with (
        Publisher(conninfo, application_name=application_name) as publisher,
        ReplicationConnection(conninfo, application_name=application_name) as replication,
    ):
        lsn, server = sent_up_to(publisher.insert_lsn()), replication.history()
        if server.started_us != publisher.started_us():
            raise PublisherError("the connection string has just led to two servers", retry=True)
    if positions is not None and (refused := refused_by(positions, server, subscription.name)) is not None:
        raise refused
    return lsn


def _missing(catalog: Catalog, name: str, lsn: Lsn) -> str | None:
    """What is missing for all tables to be at an LSN, as part of a sentence; None if nothing is."""
    remote_lsn = catalog.remote_lsn(name)
    if remote_lsn is None:
        return "it has never streamed"
    if remote_lsn < lsn:
        return f"Delta has the transactions up to {remote_lsn}, not up to {lsn}"
    if refresh.asked(catalog, name):  # before the tables: it is gone when they are there
        return "a refresh that was asked for has not been taken up"
    return ", ".join(_said(rel) for rel in tables_of(catalog, name) if not rel.follows) or None


def _waiting(catalog: Catalog, name: str) -> list[RelRow]:
    return [rel for rel in tables_of(catalog, name) if rel.waits is not None]


def _said(rel: RelRow) -> str:
    why = "is being copied" if rel.waits is None else f"waits for its resync: {rel.waits}"
    return f"table {rel.qualified_name} {why}"


def _late(state: State, name: str, what: str) -> StateError:
    error = state.catalog.last_error(name)
    if not is_running(state.config.state_dir):  # it may have started, or ended, meanwhile
        hint = f"no daemon runs; run: {remedies.run()}"
    elif error is not None:
        hint = f"its last error: {error.message}"
    else:
        hint = f"see {remedies.status()}; wait again, or with a greater --timeout"
    return StateError(f'subscription "{name}": {what}', hint=hint)
