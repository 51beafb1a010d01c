"""`pgbridge refresh`, `resync` and `drop`: a subscription's tables are to be others, it begins afresh, or it ends.

`refresh` checks what is to be done, records the request for the subscription's worker, and says it. `drop` is DROP
SUBSCRIPTION, `resync` the way back when changes are lost. Both stop the subscription's worker first, in whichever
process it runs, and drop its slots on the server.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog import catalog_rows, lock, maintenance, refresh, reset
from pgbridge.bridge.commands.alter import has_stopped
from pgbridge.bridge.config.tables import BEGINNING_ANEW
from pgbridge.bridge.publication.definitions import load_optional
from pgbridge.bridge.publication.published_table import PublishedTable, Unsupported, unsupported_tables
from pgbridge.bridge.receive.publications import apply_publications
from pgbridge.bridge.receive.publisher import Publisher, missing_message
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.runtime import errors, remedies
from pgbridge.bridge.sync.refresh import Plan, plan

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.commands.state import State
    from pgbridge.bridge.config.config import Subscription


def ask(
    subscription: Subscription,
    catalog: Catalog,
    *,
    resync: Sequence[str],
    copy_data: bool | None,
    when: str,
    waits: str = "",
) -> list[str]:
    """Record a request to refresh the subscription, or with `resync` to copy tables again.

    Args:
        resync: Tables to copy again, as `namespace.name`, or as `name` in public; empty to refresh the subscription. So
            it is, too, if one of them waits and is no longer published.
        copy_data: Whether added tables are copied; None for `copy_data` of the configuration.
        when: When the worker carries it out, for the message.
        waits: What to say of a worker that pauses, where no request ends the pause.

    Returns:
        Lines that say what will be done, for this request and for earlier ones not yet carried out.

    Raises:
        ConfigError: A table to copy again is not part of the subscription, or no longer published.
        PublisherError: The server cannot say what is published.
        PublicationError: The definitions cannot be re-applied to the server's tables.
    """
    name = subscription.name
    if catalog.remote_lsn(name) is None:
        return [f'subscription "{name}" has not started yet: its first start subscribes to all published tables{waits}']
    published, missing = _published(subscription, catalog.rels_by_name(name, catalog_rows.sync_name(name)).keys())
    pending = refresh.asked(catalog, name)  # read first: a request carried out meanwhile shows in the tables, too
    subscribed = catalog.rels_by_name(name, catalog_rows.sync_name(name)).keys()
    unsupported = unsupported_tables(published, subscribed, subscription.place_of)
    known = plan(pending, published, subscribed).subscribed | published.keys()
    failing = [owner for owner in (name, catalog_rows.sync_name(name)) if catalog.last_error(owner) is not None]
    named = [_find(text, known, name) for text in resync]
    # one that waits because it was renamed may not be published any more: that is what a refresh is for
    gone = {(rel.namespace, rel.name) for rel in refresh.waiting(catalog, name)} - published.keys()
    tables: list[tuple[str, str] | None] = [table for table in named if table not in gone]
    tables += [None] if not named or gone.intersection(named) else []
    copied = subscription.copy_data if copy_data is None else copy_data
    wanted = [refresh.RefreshRow(number, table, copied) for number, table in enumerate(tables)]
    keeping = [table for table in known if subscription.mode_of(".".join(table)) in BEGINNING_ANEW]
    planned = plan([*pending, *wanted], published, subscribed, keeping, refresh.removed(catalog, name))
    lines = _lines(planned, unsupported)
    for owner in failing if not resync else ():
        lines += [
            f"  {rel.qualified_name}: {'its copy is tried again' if rel.state in 'id' else 'goes on after its error'}"
            for rel in catalog.rels(owner)
            if (rel.namespace, rel.name) in published and (rel.state in "id" or owner != name)
        ]
    if planned.unknown:
        raise errors.ConfigError(
            f'table "{".".join(planned.unknown[0])}" is no longer published',
            hint=f"to remove it from the subscription, run: {remedies.refresh(name)}",
        )
    warning = [f"WARNING:  {missing_message(missing)}"] if missing else []
    if not lines and not pending:
        return [*warning, f'subscription "{name}": nothing to refresh, its tables are the published ones{waits}']
    unpublished = planned.removed if None in tables else ()
    refresh.ask(catalog, name, tables, copy_data=copied, unpublished=unpublished)
    return [*warning, f'subscription "{name}" is refreshed ({when})', *lines]


def published_tables(subscription: Subscription) -> Mapping[tuple[str, str], PublishedTable]:
    """Return the tables that a subscription would get now, by (namespace, name); raises as `ask` does."""
    return _published(subscription)[0]


def _published(
    subscription: Subscription, followed: Collection[tuple[str, str]] = ()
) -> tuple[dict[tuple[str, str], PublishedTable], list[str]]:
    """Return the published tables, and the names of publications that do not exist.

    Definitions may name tables that were `followed` and do not exist any more.
    """
    definitions = load_optional(subscription.publication_definitions)
    with (
        Publisher(subscription.connection, application_name=f"{subscription.name}_refresh") as publisher,
        publisher.snapshot(),
    ):
        missing = publisher.missing(subscription.publications)
        if definitions is None:
            tables = publisher.tables(subscription.publications)
        else:
            applied = apply_publications(publisher, subscription.publications, definitions, followed=followed)
            applied.check()
            tables = applied.routing.tables()
    shaped = (table.shaped(subscription.shape_of(table.qualified_name)) for table in tables)
    return {(table.namespace, table.name): table for table in shaped}, missing


def _find(text: str, subscribed: Collection[tuple[str, str]], name: str) -> tuple[str, str]:
    for table in subscribed:
        if text == ".".join(table) or ("public", text) == table:
            return table
    raise errors.ConfigError(
        f'table "{text}" is not part of subscription "{name}"',
        hint=f"its tables are listed by: {remedies.status()}; if the publications have it now, run: "
        f"{remedies.refresh(name)}",
    )


def _lines(planned: Plan, unsupported: Mapping[tuple[str, str], Unsupported]) -> list[str]:
    plain = [table for table in planned.copied if table not in planned.replacing]
    planned_as = (
        (plain, "added: copied, then follows the stream"),
        (planned.replacing, "added: the copy replaces what its Delta table has, then it follows the stream"),
        (planned.uncopied, "added without a copy: follows the stream at once"),
        (planned.resynced, "copied again: one commit replaces its rows, then it follows the stream"),
        (planned.gaps, "goes on, and lacks the changes of the time in which it was not published"),
        (planned.removed, "removed: stops following the stream; its Delta table stays"),
    )
    taken = [
        f"  {'.'.join(table)}: {text}" for tables, text in planned_as for table in tables if table not in unsupported
    ]
    return taken + [f"  {'.'.join(table)}: left out: {why.reason}" for table, why in unsupported.items()]


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
            f"tables as they are: {remedies.drop(name, '--force')}",
        )
    if keep_slot:
        slots = _slot_names(subscription, state)
    else:
        yield from _drop_slots(subscription, state, forget=True)
    rels = state.catalog.rels(name, catalog_rows.sync_name(name))
    tables = sum(rel.state != "i" for rel in rels)  # for the others there is none yet
    reset.forget(state.catalog, name)
    stay = f"its {tables} Delta tables stay in {subscription.warehouse}" if tables else "it followed no table"
    yield f'subscription "{name}" dropped; {stay}'
    if keep_slot:
        for slot in slots:
            yield f"a slot holds WAL on the server until you run there: SELECT pg_drop_replication_slot('{slot}');"
    alone = len(state.config.subscription) == 1
    end = "stop the daemon: it was the only subscription of" if alone else f"remove [subscription.{name}] from"
    yield f"{end} the configuration file"
    yield f"or, to begin it anew, {'move its tables away and ' if tables else ''}run: {remedies.enable(name)}"


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
    before = state.catalog.rels_by_name(name, catalog_rows.sync_name(name)).keys()
    tables = reset.start_afresh(state.catalog, name, published.keys())
    state.catalog.set_enabled(name, enabled=enabled)
    when = state.when if enabled else f"once you run: {remedies.enable(name)}"
    yield f'subscription "{name}" begins afresh ({when}); each table keeps its rows until its copy replaces them:'
    yield from (f"  {table}: copied again" for table in tables)
    left_out = unsupported_tables(published, before, subscription.place_of)
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
    if not lock.is_running(state.config.state_dir):  # asked after that: a daemon that starts from now on sees it
        return
    time.sleep(_SETTLE_S)
    if not has_stopped(name, state, _PATIENCE_S):
        raise errors.StateError(
            f'subscription "{name}" is disabled, but its batch under way has not ended after {_PATIENCE_S:.0f} s',
            hint="repeat the command later",
        )


def _unfinished(name: str, state: State) -> str | None:
    """Say what was begun in the subscription's tables and not finished; None if nothing was."""
    for owner in (name, catalog_rows.sync_name(name)):
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
    rows = [
        state.catalog.subscription(owner) for owner in (subscription.name, catalog_rows.sync_name(subscription.name))
    ]
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
        keep = f"to end it without the server: {remedies.drop(subscription.name, '--keep-slot')}"
        raise errors.PublisherError(error.message, hint=f"{error.hint}; {keep}" if error.hint else keep) from error
