"""`pgbridge refresh`: checks what is to be done, records the request for the subscription's worker, and says it.

The worker carries the request out in `bridge.sync.refresh`; requests in the catalog are `bridge.catalog.refresh`.

Documentation: ALTER SUBSCRIPTION … REFRESH PUBLICATION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.catalog import refresh
from bridge.catalog.catalog_rows import sync_name
from bridge.publication.definitions import load_optional
from bridge.publication.published_table import PublishedTable, Unsupported, unsupported_tables
from bridge.receive.publications import apply_publications
from bridge.receive.publisher import Publisher, missing_message
from bridge.runtime import errors, remedies
from bridge.sync.refresh import Plan, plan

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from bridge.catalog.catalog import Catalog
    from bridge.config.config import Subscription


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
    published, missing = _published(subscription, catalog.rels_by_name(name, sync_name(name)).keys())
    pending = refresh.asked(catalog, name)  # read first: a request carried out meanwhile shows in the tables, too
    subscribed = catalog.rels_by_name(name, sync_name(name)).keys()
    unsupported = unsupported_tables(published, subscribed, subscription.warehouse)
    known = plan(pending, published, subscribed).subscribed | published.keys()
    failing = [owner for owner in (name, sync_name(name)) if catalog.last_error(owner) is not None]
    named = [_find(text, known, name) for text in resync]
    # one that waits because it was renamed may not be published any more: that is what a refresh is for
    gone = {(rel.namespace, rel.name) for rel in refresh.waiting(catalog, name)} - published.keys()
    tables: list[tuple[str, str] | None] = [table for table in named if table not in gone]
    tables += [None] if not named or gone.intersection(named) else []
    copied = subscription.copy_data if copy_data is None else copy_data
    wanted = [refresh.RefreshRow(number, table, copied) for number, table in enumerate(tables)]
    keeping = [table for table in known if subscription.mode_of(".".join(table)) != "mirror"]
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
    return {(table.namespace, table.name): table for table in tables}, missing


def _find(text: str, subscribed: Collection[tuple[str, str]], name: str) -> tuple[str, str]:
    for table in subscribed:
        if text == ".".join(table) or ("public", text) == table:
            return table
    raise errors.ConfigError(
        f'table "{text}" is not part of subscription "{name}"',
        hint="its tables are listed by: pgbridge status; if the publications have it now, run: "
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
