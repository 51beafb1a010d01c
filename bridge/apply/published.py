"""The tables that a subscription gets from its publisher, read from the server's catalog before each stream."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pgbridge.bridge.batch.reapplied_routes import ReappliedRoutes
from pgbridge.bridge.batch.routes import Routes, Subscribed
from pgbridge.bridge.catalog import catalog_rows, followed as followed_tables
from pgbridge.bridge.lake.changes.verdicts import EntryFilterCompiler
from pgbridge.bridge.publication.definitions import load_optional
from pgbridge.bridge.publication.routing_then import PartitionFacts
from pgbridge.bridge.receive import publications, server_facts
from pgbridge.bridge.receive.publisher import Publisher, missing_message, quoted_name, quoted_table
from pgbridge.bridge.runtime import errors, remedies

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.publication.publication import Publication
    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.publication.reapply import Applied
    from pgbridge.bridge.publication.routing import Routing
    from pgbridge.bridge.publication.tables import CatalogRelation, Relations
    from pgbridge.bridge.receive.filter_server import FilterServer


@dataclass
class Published:
    """The tables that a subscription gets from its publisher, as the server's catalog was when it was read.

    Attributes:
        subscription: The subscription.
        publisher: Its server, asked again for tables that are new.
        tables: The published tables, by (namespace, name): by the definitions, else by the server's publications.
        binary_readable: Whether the values of all columns of the stream can be read in binary form, and none is masked.
        types: How values of these (type oid, typmod) are decoded; the server is asked for types that are new.
        state: What tells whether the publications have been altered since (`Publisher.publication_state`).
    """

    subscription: Subscription
    publisher: Publisher
    tables: Mapping[tuple[str, str], PublishedTable]
    binary_readable: bool
    types: server_facts.ServerTypes
    state: str
    _definitions: tuple[Publication, ...] | None
    _applied: Applied | None
    _filter_server: FilterServer | None = None

    @classmethod
    def read(
        cls,
        subscription: Subscription,
        publisher: Publisher,
        log: FilteringBoundLogger,
        filter_server: FilterServer | None = None,
        followed: Collection[tuple[str, str]] = (),
        types: server_facts.ServerTypes | None = None,
    ) -> Published:
        """Read the server's catalog.

        Args:
            subscription: The subscription.
            publisher: Its server.
            log: The worker's logger.
            filter_server: Computes row filters that have no translation, if the subscription is configured so; and
                others, for the rows with a value that Spark has no equal of.
            followed: (namespace, name) of the subscription's tables: the definitions may name them although they do
                not exist any more, because the stream may still have rows of them.
            types: Resolves the types of their columns; None to know none from before.

        Raises:
            PublisherError: The server cannot answer, or before PostgreSQL 18, a publication does not exist.
            PublicationError: The definitions cannot be re-applied to the server's tables.
            ConfigError: A row filter has no exact translation, or the definitions file cannot be used.
        """
        definitions = load_optional(subscription.publication_definitions)
        applied, types = None, types or server_facts.ServerTypes(publisher)
        with publisher.snapshot():
            state = publisher.publication_state(subscription.publications)
            if missing := publisher.missing(subscription.publications):
                log.warning(
                    missing_message(missing),
                    hint="create it on the publisher, from then on the stream has its changes; "
                    f"then run: {remedies.refresh(catalog_rows.owner_of(subscription.name))}",
                )
            if definitions is not None:
                applied = publications.apply_publications(
                    publisher,
                    subscription.publications,
                    definitions,
                    followed=followed,
                    slot_name=subscription.slot_name,
                )
                applied.check()
                for gap in applied.gaps:
                    log.warning("the stream lacks something that the definitions publish", gap=gap.message)
                for refusal in applied.refusals:
                    log.warning(refusal.warning, hint=refusal.hint)
            tables = applied.routing.tables() if applied else publisher.tables(subscription.publications)
            columns = [column for table in (applied.stream.tables() if applied else tables) for column in table.columns]
            resolved = types([(column.type_oid, column.typmod) for column in columns])
        textual = {column.name for column, type_ in zip(columns, resolved, strict=True) if not type_.binary}
        if subscription.binary and textual:
            log.info(
                "values are transferred as text: some types cannot be read in binary form",
                columns=sorted(textual),
            )
        by_name = {
            (table.namespace, table.name): table.shaped(subscription.shape_of(table.qualified_name)) for table in tables
        }
        readable = not textual and not subscription.masks  # a mask takes the text
        published = cls(subscription, publisher, by_name, readable, types, state, definitions, applied, filter_server)
        published.routes({})  # refuses a filter that cannot be computed, before a slot is created
        return published

    def current(self, read: Callable[[], Published]) -> Published:
        """What is published now: this one, unless a publication was altered since. Then it is read again.

        To ask waits for nobody who locks a table, as reading does.
        """
        altered = self.publisher.publication_state(self.subscription.publications) != self.state
        return read() if altered else self

    def routes(
        self,
        subscribed: Mapping[tuple[str, str], Subscribed],
        changed: Callable[[], None] = lambda: None,
        others: Callable[[str, str], Subscribed] | None = None,
        catalog: Catalog | None = None,
        log: FilteringBoundLogger | None = None,
    ) -> Routes:
        """Return where the stream's changes go.

        Args:
            subscribed: The tables that follow the stream.
            changed: As in `Routes`.
            others: As in `Routes`.
            catalog: The state catalog, which has what looks have seen; None if nothing is to be routed.
            log: The worker's logger.
        """
        name = catalog_rows.owner_of(self.subscription.name)
        rels = catalog.rels(self.subscription.name) if catalog is not None else ()
        waiting = {rel.relid: (rel.namespace, rel.name) for rel in rels if rel.relid and rel.waits is not None}
        if self._applied is None:

            def cut_identities() -> dict[tuple[str, str], frozenset[str]]:
                tables = self.publisher.tables(self.subscription.publications)
                return {(table.namespace, table.name): table.cut_identity for table in tables}

            return Routes(
                subscribed, cut_identities, subscription=name, changed=changed, others=others, waiting=waiting
            )

        def look() -> Routing:
            names, slot_name = self.subscription.publications, self.subscription.slot_name
            return publications.apply_publications(
                self.publisher, names, self._definitions, missing_ok=True, slot_name=slot_name
            ).routing

        server = self._filter_server if self.subscription.filter_server is not None else None
        routing = self._applied.routing
        compiler = EntryFilterCompiler(self.types, server, routing.relations.encoding, self._filter_server)
        return ReappliedRoutes(
            subscribed,
            routing,
            compiler,
            look,
            facts=PartitionFacts(
                partial(followed_tables.formers, catalog, name) if catalog is not None else dict,
                self.publisher.partition_ancestors,
                partial(_doubted, name, log, set()),
            ),
            subscription=name,
            changed=changed,
            others=others,
            waiting=waiting,
        )


def _doubted(
    subscription: str, log: FilteringBoundLogger | None, said: set[str], roots: Sequence[str], table: str
) -> None:
    """Log once that a table may have been a partition."""
    if log is not None and table not in said:
        said.add(table)
        log.warning(
            "rows of a table that may have been a partition are not applied: it was attached and detached, or dropped, "
            "while changes waited",
            relation=table,
            roots=list(roots),
            hint=f"if it was a partition, copy its root afresh: {remedies.resync(subscription, *roots)}",
        )


def kept_types(publisher: Publisher, catalog: Catalog, subscription: str) -> server_facts.ServerTypes:
    """The server's types, and those that the subscription's tables had before the server dropped them."""
    kept = followed_tables.types(catalog, subscription)
    return server_facts.ServerTypes(publisher, kept, partial(followed_tables.keep_types, catalog, subscription))


def unpublished(
    subscription: Subscription, tables: Iterable[PublishedTable], publisher: Publisher
) -> errors.PublicationError | None:
    """Return the error for tables of the configuration that the subscription does not get; None for none.

    A table of another name would be made in the subscription's own mode, which cannot be changed afterwards. Where a
    publication does not exist yet, its tables are not known, and nothing is refused.
    """
    published = [table.qualified_name for table in tables]
    names = sorted(subscription.tables.keys() - set(published))
    if not names or publisher.missing(subscription.publications):
        return None
    relations = publications.read_relations(publisher)
    existing = {table.qualified_name: table for table in relations.by_relid.values()}
    faults = [_fault(name, existing.get(name), published, subscription, relations) for name in names]
    key = f"subscription.{subscription.name}.tables"
    lines = [f'{key}."{name}": {fault}' for name, (fault, _) in zip(names, faults, strict=True)]
    hints = dict.fromkeys(hint for _, hint in faults)
    return errors.PublicationError("\n".join(lines), hint="; ".join(hints) + "; or remove it from the configuration")


def _fault(
    name: str,
    table: CatalogRelation | None,
    published: Sequence[str],
    subscription: Subscription,
    relations: Relations,
) -> tuple[str, str]:
    """Why a subscription does not get a table, and what to do."""
    if table is None:
        folded = {known.lower(): known for known in published}
        close = difflib.get_close_matches(name.lower(), folded, 1)
        return "there is no such table", f'name "{folded[close[0]]}"' if close else "correct the name"
    if not table.publishable:
        return "it cannot be published, because it is no permanent table", "name a table"
    roots = [root.qualified_name for root in relations.ancestors(table) if root.qualified_name in published]
    if roots:
        return f"its changes are published as those of {roots[-1]}", f'write tables."{roots[-1]}"'
    if (file := subscription.publication_definitions) is not None:
        return f"it exists, but {file} does not publish it", f"add it to {file}"
    statement = (
        f"ALTER PUBLICATION {quoted_name(subscription.publications[0])} ADD TABLE "
        f"{quoted_table(table.namespace, table.name)};"
    )
    return "it exists, but is not published to this subscription", f"run on the server: {statement}"
