"""What of the publisher's catalog decides on publishing: its tables, how they hang together, and its publications.

Wider than `Publisher.tables`, which asks the server what its publications come to: from these facts
`bridge.filter` works it out for any publications, those of a file too.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from bridge.errors import PublisherError
from bridge.publication.publication import ACTIONS, Publication, PublishedBy
from bridge.publication.tables import CatalogColumn, CatalogRelation, Collation, Relations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bridge.receive.publisher import Publisher


def read_relations(publisher: Publisher) -> Relations:
    """All tables of the database, as they are now.

    Raises:
        PublisherError: The catalog cannot be read.
    """
    rows = publisher.rows("relations")
    identities = {row["relid"]: row["replica_identity"] for row in rows if row["publishable"]}
    columns: dict[int, list[CatalogColumn]] = defaultdict(list)
    for row in publisher.rows("relation_columns", {"relids": list(identities)}):
        columns[row["relid"]].append(_column(row, identities[row["relid"]]))
    made = {
        row["relid"]: CatalogRelation(
            **{**row, "parents": tuple(row["parents"]), "columns": tuple(columns[row["relid"]])}
        )
        for row in rows
    }
    schemas = frozenset(row["name"] for row in publisher.rows("schemas"))
    return Relations(made, schemas, publisher.version, publisher.encoding)


def _column(row: Mapping[str, Any], replica_identity: str) -> CatalogColumn:
    in_identity = {
        "d": row["in_primary_key"],
        "i": row["in_replica_identity_index"],
        "f": True,
        "n": False,
    }[replica_identity]
    collation = None
    if row["collation"] is not None:
        collation = Collation(
            row["collation"],
            row["collation_deterministic"],
            row["collation_provider"],
            row["collation_ctype"],
            row["collation_bytewise"],
        )
    return CatalogColumn(
        row["attnum"],
        row["name"],
        row["type_oid"],
        row["typmod"],
        row["generated"],
        row["in_primary_key"],
        row["in_replica_identity_index"],
        in_identity,
        collation,
    )


def read_publications(publisher: Publisher, names: Sequence[str]) -> tuple[Publication, ...]:
    """The server's own publications, in the order of `names`; without those that do not exist (`Publisher.missing`).

    A filter is what pg_get_expr makes of it; every table is ONLY, because inheritors are members of their own.

    Raises:
        PublisherError: As `Publisher.missing`, or the catalog cannot be read.
    """
    names = publisher.existing(names)
    wanted = {"publications": list(names)}
    tables: dict[str, list[PublishedBy]] = defaultdict(list)
    schemas: dict[str, list[str]] = defaultdict(list)
    version = 15 if publisher.version >= 150000 else 14
    for row in publisher.rows(f"publication_members_{version}", wanted):
        if row["name"] is None:
            schemas[row["publication"]].append(row["namespace"])
        else:
            columns = None if row["columns"] is None else tuple(row["columns"])
            table = PublishedBy(row["namespace"], row["name"], True, columns, row["row_filter"])
            tables[row["publication"]].append(table)
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
        )
        for name in names
    )
