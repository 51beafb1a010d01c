"""`pgbridge drop` and `pgbridge resync`: DROP SUBSCRIPTION, and the way back when changes are lost.

Both stop the subscription's worker first, in whichever process it runs, and drop its slots on the server.
"""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from bridge.catalog import maintenance, reset
from bridge.catalog.catalog_rows import sync_name
from bridge.catalog.lock import is_running
from bridge.commands.alter import has_stopped
from bridge.commands.refresh import published_tables
from bridge.publication.published_table import unsupported_tables
from bridge.receive.publisher import Publisher
from bridge.receive.slot import ReplicationConnection
from bridge.runtime import errors, remedies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bridge.commands.state import State
    from bridge.config.config import Subscription

_PATIENCE_S = 300.0
"""How long a batch under way may take to end."""

_SLOT_PATIENCE_S = 20.0
"""How long a reader of a slot may take to go away."""

_SETTLE_S = 1.5
"""A worker that looked at the catalog just before has recorded its state by then."""


def drop(subscription: Subscription, state: State, *, keep_slot: bool, force: bool) -> Iterator[str]:
    """End a subscription for good. Its Delta tables stay.

    Args:
        keep_slot: Leave the slots on the server, as DROP SUBSCRIPTION after SET (slot_name = NONE) does.
        force: Also when a batch was begun and not finished, so that tables may hold a part of it.

    Yields:
        Lines to print.

    Raises:
        StateError: A batch or an OPTIMIZE is unfinished, or a batch does not end.
        PublisherError: The server cannot be reached, or a slot is in use. Nothing is forgotten then.
    """
    name = subscription.name
    _stop(subscription, state)
    if not force and (unfinished := _unfinished(name, state)) is not None:
        raise errors.StateError(
            unfinished,
            hint="enable the subscription and run the daemon until that is finished or undone; or, to leave the "
            f"tables as they are: pgbridge drop {shlex.quote(name)} --force",
        )
    if keep_slot:
        slots = _slot_names(subscription, state)
    else:
        yield from _drop_slots(subscription, state, forget=True)
    rels = state.catalog.rels(name, sync_name(name))
    tables = sum(rel.state != "i" for rel in rels)  # for the others there is none yet
    reset.forget(state.catalog, name)
    stay = f"its {tables} Delta tables stay in {subscription.warehouse}" if tables else "it followed no table"
    yield f'subscription "{name}" dropped; {stay}'
    if keep_slot:
        for slot in slots:
            yield f"a slot holds WAL on the server until you run there: SELECT pg_drop_replication_slot('{slot}');"
    yield f"remove [subscription.{name}] from the configuration file; {remedies.enable(name)} would begin it anew"


def resync(subscription: Subscription, state: State) -> Iterator[str]:
    """Begin a subscription afresh: with another slot, and all tables copied again, each replaced by one commit.

    Yields:
        Lines to print.

    Raises:
        BridgeError: The server cannot be reached, is another one, or says that nothing can be copied; or a slot that
            is not pgbridge's to drop has confirmed prepared transactions. Nothing is changed then.
    """
    name = subscription.name
    published = published_tables(subscription)
    row = state.catalog.subscription(name)
    enabled = row is not None and row.enabled
    if not subscription.create_slot and state.catalog.prepared(name):
        raise errors.StateError(
            f'the slot "{subscription.slot_name}" has confirmed prepared transactions, and is not sent their changes '
            "again: a slot that stays would bring their COMMIT PREPARED alone",
            hint="drop that slot on the server, remove create_slot = false from the configuration file, and run "
            f"{remedies.start_afresh(name)} again",
        )
    try:
        _stop(subscription, state)
        yield from _drop_slots(subscription, state)
    except errors.BridgeError:
        state.catalog.set_enabled(name, enabled=enabled)  # as it was: its slot must not be left unread
        raise
    before = state.catalog.rels_by_name(name, sync_name(name)).keys()
    tables = reset.start_afresh(state.catalog, name, published.keys())
    state.catalog.set_enabled(name, enabled=enabled)
    when = state.when if enabled else f"once you run: {remedies.enable(name)}"
    yield f'subscription "{name}" begins afresh ({when}); each table keeps its rows until its copy replaces them:'
    yield from (f"  {table}: copied again" for table in tables)
    left_out = unsupported_tables(published, before, subscription.warehouse)
    how = "copied" if subscription.copy_data else "without a copy"
    for table in sorted(published.keys() - before):
        yield f"  {'.'.join(table)}: " + (
            f"left out: {left_out[table].reason}" if table in left_out else f"added: {how}"
        )
    for table in sorted(before - published.keys()):
        yield f"  {'.'.join(table)}: not published any more; its Delta table stays"


def _stop(subscription: Subscription, state: State) -> None:
    """Disable a subscription, and wait until no worker of a running daemon is at it.

    Raises:
        StateError: Its batch takes too long. It remains disabled.
    """
    name = subscription.name
    state.catalog.set_enabled(name, enabled=False)
    if not is_running(state.config.state_dir):  # asked after that: a daemon that starts from now on sees it
        return
    time.sleep(_SETTLE_S)
    if not has_stopped(name, state, _PATIENCE_S):
        raise errors.StateError(
            f'subscription "{name}" is disabled, but its batch under way has not ended after {_PATIENCE_S:.0f} s',
            hint="repeat the command later",
        )


def _unfinished(name: str, state: State) -> str | None:
    """Say what was begun in the subscription's tables and not finished; None if nothing was."""
    for owner in (name, sync_name(name)):
        if (batch := state.catalog.batch(owner)) is not None:
            return (
                f"a batch from {batch.start_lsn} to {batch.end_lsn} was begun and not finished: "
                "tables may hold a part of it"
            )
    if (optimize := maintenance.standing(state.catalog, name)) is not None:
        return f"an OPTIMIZE of {optimize.path} was begun and not finished"
    return None


def _slot_names(subscription: Subscription, state: State) -> list[str]:
    """Return the slots that the subscription and its tablesync worker have or had."""
    rows = [state.catalog.subscription(owner) for owner in (subscription.name, sync_name(subscription.name))]
    known = [row.slot_name for row in rows if row is not None and row.slot_name is not None]
    return list(dict.fromkeys(known))


def _drop_slots(subscription: Subscription, state: State, *, forget: bool = False) -> Iterator[str]:
    """Drop the subscription's slots, if the server is the one that it began with.

    Raises:
        PublisherError: The server cannot be reached, or a slot remains in use.
    """
    names = _slot_names(subscription, state)
    if not names:
        return
    kept = () if subscription.create_slot or forget else (subscription.slot_name,)  # it is not ours to make anew
    row = state.catalog.subscription(subscription.name)
    end_s = time.monotonic() + _SLOT_PATIENCE_S
    conninfo, application_name = subscription.connection, f"{subscription.name}_drop"
    slot = names[0]
    try:
        with (
            Publisher(conninfo, application_name=application_name) as publisher,
            ReplicationConnection(
                conninfo, application_name=application_name, stopping=lambda: time.monotonic() > end_s
            ) as replication,
        ):
            server = replication.history()
            if row is not None and row.system_identifier not in {None, server.system_identifier}:
                raise errors.PublisherError(  # noqa: TRY301 - the hint below is for it, too
                    f"the connection leads to another server: it has system identifier {server.system_identifier}, "
                    f"the subscription began with {row.system_identifier}",
                    hint="check the connection string; nothing was changed on either server",
                )
            for slot in names:
                if slot not in kept and publisher.slot(slot) is not None:
                    replication.drop_slot(slot)
                    yield f'dropped replication slot "{slot}" on the publisher'
    except errors.SyncError as error:  # it has waited long enough
        raise errors.PublisherError(
            f'replication slot "{slot}" is in use by another process on the server',
            hint="stop its reader; the server notices within wal_sender_timeout that a killed daemon is gone",
            retry=True,
        ) from error
    except errors.PublisherError as error:
        if not forget:
            raise
        keep = f"to end it without the server: pgbridge drop {shlex.quote(subscription.name)} --keep-slot"
        raise errors.PublisherError(error.message, hint=f"{error.hint}; {keep}" if error.hint else keep) from error
