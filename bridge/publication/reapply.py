"""Publications of a definitions file, re-applied to the stream of the server's own; or those alone, without a file.

`bridge.receive.publications` reads the catalog for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbridge.bridge.publication.publication import ACTIONS, Publication
from pgbridge.bridge.publication.replica_identity import Refusal, column_names, partition_refusals, refusals
from pgbridge.bridge.publication.routing import Routing
from pgbridge.bridge.runtime.errors import PublicationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pgbridge.bridge.publication import published_table, tables

# --- Whether the server's own publications send everything that the publications of a definitions file need -----------
# What the server's publications leave out never arrives, and cannot be re-applied.


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that the definitions need and the stream does not carry.

    Attributes:
        message: What is missing, in one sentence.
        fatal: Whether the changes that arrive cannot be routed or filtered correctly; else only fewer arrive.
    """

    message: str
    fatal: bool


def gaps(wanted: Routing, server: Routing) -> list[Gap]:
    """Return what the server's publications lack for the wanted ones: each gap once, in the wanted targets' order."""
    gaps_in_order: dict[Gap, None] = {}
    for target in wanted.targets.values():
        for source in wanted.sources(target.target):
            entry, sent = wanted.entry(source), server.entry(source)
            if entry is not None:
                gaps_in_order.update(dict.fromkeys(_gaps(wanted, entry, sent)))
    for sent in server.targets.values():
        try:
            wanted.route(sent.target)
        except PublicationError as error:
            gaps_in_order[Gap(str(error.args[0]), fatal=True)] = None
    return list(gaps_in_order)


def _gaps(wanted: Routing, entry: published_table.Entry, sent: published_table.Entry | None) -> Iterator[Gap]:
    name = entry.source.qualified_name
    if sent is None:
        yield Gap(f'no publication on the server publishes table "{name}"', fatal=False)
        return
    above = {entry.target.relid}
    above |= {relation.relid for relation in wanted.relations.inheritors(entry.target)}
    if sent.target.relid not in above:
        yield Gap(
            f'the server publishes changes of table "{name}" as "{sent.target.qualified_name}", '
            f'but the definitions publish them as "{entry.target.qualified_name}"',
            fatal=True,
        )
    if missing := [action for action in ACTIONS if action in entry.actions - sent.actions]:
        listed = ", ".join(missing).upper()
        yield Gap(f'the publications on the server do not publish {listed} of table "{name}"', fatal=False)
    if any(sent.filters.values()):
        yield Gap(f'the publications on the server have a row filter on table "{name}"', fatal=False)
    filter_columns = frozenset().union(*(column_names(text) for filters in entry.filters.values() for text in filters))
    for column in entry.target.columns:
        if column.generated == "v" and column.name in filter_columns:
            yield Gap(
                f'a row filter uses virtual generated column "{column.name}" of table "{name}", which no stream '
                "carries: use the column's expression in the filter instead",
                fatal=True,
            )
    needed = {
        *entry.column_names,
        *(c.name for c in entry.target.columns if c.generated != "v" and c.name in filter_columns),
    }
    if columns := [name for name in sorted(needed) if name not in sent.column_names]:
        listed = ", ".join(f'"{column}"' for column in columns)
        yield Gap(f'the publications on the server do not publish column {listed} of table "{name}"', fatal=True)


# --- Publications of a definitions file, re-applied to the stream of the server's own; or those -----------------------


@dataclass(frozen=True, slots=True)
class Applied:
    """The rules that apply to a subscription's stream.

    Attributes:
        routing: By the definitions, or by the server's publications where there are none.
        stream: By the server's publications: as which tables, and how, changes arrive.
        gaps: What the definitions need and the stream does not carry.
        refusals: UPDATEs and DELETEs that the server would refuse if the definitions were its own publications.
    """

    routing: Routing
    stream: Routing
    gaps: tuple[Gap, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    @property
    def sequences(self) -> tuple[str, ...]:
        """A sentence on each publication FOR ALL SEQUENCES, the server's and those of definitions."""
        of_server, of_definitions = (
            dict.fromkeys(each.publication.name for each in members if each.publication.all_sequences)
            for members in (self.stream.memberships, self.routing.memberships)
        )
        what = "ALL SEQUENCES, which no stream carries"
        ways = dict.fromkeys(of_definitions, f"{what}; in a file of definitions it means nothing")
        ways |= dict.fromkeys(of_server, f"{what}: target.sequences_every_s has their values written")
        return tuple(f'publication "{name}" has {way}' for name, way in ways.items())

    def check(self) -> None:
        """Refuse definitions that the stream cannot serve.

        Raises:
            PublicationError: The stream does not carry what they need.
        """
        for gap in self.gaps:
            if gap.fatal:
                raise PublicationError(
                    gap.message, hint="publication_definitions need a stream of whole, unfiltered tables"
                )


def reapply(
    definitions: Sequence[Publication] | None,
    server_publications: Sequence[Publication],
    relations: tables.Relations,
    *,
    missing_ok: bool = False,
    followed: Collection[tuple[str, str]] = (),
) -> Applied:
    """Work out what applies to a subscription's stream.

    Args:
        definitions: The publications of the subscription's file; None without one.
        server_publications: The server's publications that the stream has.
        relations: The server's tables.
        missing_ok: Pass over tables of the definitions that do not exist: while the stream runs, one may just have
            been dropped.

    Raises:
        PublicationError: The publications contradict the tables or each other.
    """
    stream = Routing(server_publications, relations, missing_ok=True)
    if definitions is None:
        return Applied(stream, stream)
    routing = Routing(definitions, relations, missing_ok=missing_ok, followed=followed)
    refused = (*refusals(routing), *partition_refusals(routing, stream))
    return Applied(routing, stream, tuple(gaps(routing, stream)), refused)
