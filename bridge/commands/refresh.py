"""`pgbridge refresh`: says what will be done, and asks the worker to do it.

Documentation: ALTER SUBSCRIPTION … REFRESH PUBLICATION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.errors import ConfigError
from bridge.publication.definitions import load_optional
from bridge.publication.delta_columns import unsupported_tables
from bridge.receive.publications import apply_publications
from bridge.receive.publisher import Publisher, not_there
from bridge.sync.plan import plan
from bridge.track import refresh

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from bridge.config import Subscription
    from bridge.publication.delta_columns import Unsupported
    from bridge.publication.published_table import PublishedTable
    from bridge.sync.plan import Plan
    from bridge.track.catalog import Catalog


def ask(
    subscription: Subscription, catalog: Catalog, *, resync: Sequence[str], copy_data: bool | None, when: str
) -> list[str]:
    """Record a refresh, or with `resync` that these tables are copied afresh.

    Args:
        subscription: The subscription.
        catalog: Its catalog.
        resync: Tables as `namespace.name`, or as `name` in public; none for the publications as a whole.
        copy_data: Whether tables that were added are copied; None for what the configuration says.
        when: When it is done, for the text.

    Returns:
        Lines that say what will be done, with what was asked for and has not been taken up.

    Raises:
        ConfigError: A table to copy afresh is not one of the subscription's.
        PublisherError: The server cannot say what is published.
        PublicationError: The definitions cannot be re-applied to the server's tables.
    """
    name = subscription.name
    if catalog.remote_lsn(name) is None:
        return [f'subscription "{name}" has not begun yet: its first start takes up all that is published then']
    published, missing = _published(subscription)
    pending = refresh.asked(catalog, name)  # first: what is taken up meanwhile is in the tables, too
    with catalog.transaction():  # tables change hands
        rels = catalog.rels(name) + catalog.rels(refresh.sync_name(name))
    subscribed = {(rel.namespace, rel.name) for rel in rels}
    without = unsupported_tables(published, subscribed)
    known = plan(pending, published, subscribed).subscribed
    tables: list[tuple[str, str] | None] = [_find(text, known, name) for text in resync]
    tables = tables or [None]
    copied = subscription.copy_data if copy_data is None else copy_data
    wanted = [refresh.RefreshRow(number, table, copied) for number, table in enumerate(tables)]
    planned = plan([*pending, *wanted], published, subscribed)
    lines = _lines(planned, without)
    if planned.unknown:
        raise ConfigError(
            f'table "{".".join(planned.unknown[0])}" is not published any more', hint="without --resync it is removed"
        )
    warning = [f"WARNING:  {not_there(missing)}"] if missing else []
    if not lines:
        return [*warning, f'subscription "{name}": its tables are those that are published']
    refresh.ask(catalog, name, tables, copy_data=copied)
    return [*warning, f'subscription "{name}" is refreshed ({when})', *lines]


def _published(subscription: Subscription) -> tuple[dict[tuple[str, str], PublishedTable], list[str]]:
    """What is published, and which publications do not exist."""
    definitions = load_optional(subscription.publication_definitions)
    with Publisher(subscription.connection, application_name=f"{subscription.name}_refresh") as publisher:
        missing = publisher.missing(subscription.publications)
        if definitions is None:
            tables = publisher.tables(subscription.publications)
        else:
            applied = apply_publications(publisher, subscription.publications, definitions)
            applied.check()
            tables = applied.routing.tables()
    return {(table.namespace, table.name): table for table in tables}, missing


def _find(text: str, subscribed: Collection[tuple[str, str]], name: str) -> tuple[str, str]:
    for table in subscribed:
        if text == ".".join(table) or ("public", text) == table:
            return table
    raise ConfigError(
        f'table "{text}" is not one of subscription "{name}"',
        hint="pgbridge status shows its tables; one that was added to the publications comes with pgbridge refresh",
    )


def _lines(planned: Plan, without: Mapping[tuple[str, str], Unsupported]) -> list[str]:
    what = (
        (planned.copied, "added: it is copied, then follows the stream"),
        (planned.uncopied, "added: it follows the stream at once, with what its Delta table holds"),
        (planned.resynced, "copied afresh: its rows are replaced by one commit, then it follows the stream"),
        (planned.removed, "removed: it stops; its Delta table stays"),
    )
    taken = [f"  {'.'.join(table)}: {text}" for tables, text in what for table in tables if table not in without]
    return taken + [f"  {'.'.join(table)}: left out: {why.reason}" for table, why in without.items()]
