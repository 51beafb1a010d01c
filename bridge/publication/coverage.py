"""Whether the server's own publications send everything that the publications of a definitions file need.

What the server's publications leave out never arrives, and cannot be re-applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.errors import PublicationError
from bridge.publication.publication import ACTIONS
from bridge.publication.replica_identity import column_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bridge.publication.entry import Entry
    from bridge.publication.routing import Routing


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
    """What the server's publications lack for the wanted ones: each gap once, in the order of the wanted targets."""
    found: dict[Gap, None] = {}
    for target in wanted.targets.values():
        for source in wanted.sources(target.target):
            entry, sent = wanted.entry(source), server.entry(source)
            if entry is not None:
                found.update(dict.fromkeys(_gaps(wanted, entry, sent)))
    for sent in server.targets.values():
        try:
            wanted.route(sent.target)
        except PublicationError as error:
            found[Gap(str(error.args[0]), fatal=True)] = None
    return list(found)


def _gaps(wanted: Routing, entry: Entry, sent: Entry | None) -> Iterator[Gap]:
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
