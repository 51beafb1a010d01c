"""The server's own publications, and what applies to a stream: read from the catalog as it is now."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from bridge.errors import PublisherError
from bridge.publication.publication import ACTIONS, Publication, PublicationTable
from bridge.publication.reapply import Applied, reapply
from bridge.receive.relations import read_relations

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bridge.receive.publisher import Publisher


def read_publications(publisher: Publisher, names: Sequence[str]) -> tuple[Publication, ...]:
    """The server's own publications, in the order of `names`, without those that do not exist (`Publisher.missing`).

    Row filters have the text of pg_get_expr. Every table is ONLY, because inheritors are members of their own.

    Raises:
        PublisherError: As `Publisher.missing`, or the catalog cannot be read.
    """
    names = publisher.existing(names)
    wanted = {"publications": list(names)}
    tables: dict[str, list[PublicationTable]] = defaultdict(list)
    excepted: dict[str, list[PublicationTable]] = defaultdict(list)
    schemas: dict[str, list[str]] = defaultdict(list)
    version = 15 if publisher.version >= 150000 else 14
    for row in publisher.rows(f"publication_members_{version}", wanted):
        if row["name"] is None:
            schemas[row["publication"]].append(row["namespace"])
        else:
            columns = None if row["columns"] is None else tuple(row["columns"])
            table = PublicationTable(row["namespace"], row["name"], True, columns, row["row_filter"])
            (excepted if row["excepted"] else tables)[row["publication"]].append(table)
    made = {row["name"]: row for row in publisher.rows("publications", wanted)}
    if gone := [name for name in names if name not in made]:
        raise PublisherError(f'publication "{gone[0]}" does not exist on the publisher', retry=True)
    return tuple(
        Publication(
            name,
            tuple(tables[name]),
            tuple(schemas[name]),
            made[name]["all_tables"],
            frozenset(action for action in ACTIONS if made[name][f"pub{action}"]),
            made[name]["via_root"],
            "stored" if made[name]["generated_columns"] == "s" else "none",
            tuple(excepted[name]),
            made[name]["all_sequences"],
        )
        for name in names
    )


def apply_publications(
    publisher: Publisher,
    names: Sequence[str],
    definitions: tuple[Publication, ...] | None,
    *,
    missing_ok: bool = False,
    followed: Collection[tuple[str, str]] = (),
    slot_name: str | None = None,
) -> Applied:
    """Read the catalog, and work out what applies to a subscription's stream.

    Args:
        publisher: The server.
        names: The server's publications that the stream has.
        definitions: The publications of the subscription's file; None without one.
        missing_ok: As for `reapply`.
        followed: As for `reapply`.
        slot_name: As for `read_relations`.

    Raises:
        PublicationError: The publications contradict the tables or each other.
        PublisherError: As `read_publications`.
    """
    relations = read_relations(publisher, slot_name)
    return reapply(
        definitions, read_publications(publisher, names), relations, missing_ok=missing_ok, followed=followed
    )
