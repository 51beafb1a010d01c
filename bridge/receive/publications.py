"""The server's own publications, and what applies to a stream: read from the catalog as it is now."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pgbridge.bridge.publication.publication import ACTIONS, Publication, PublicationTable
from pgbridge.bridge.publication.reapply import Applied, reapply
from pgbridge.bridge.publication.tables import CatalogColumn, CatalogRelation, Collation, Relations

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pgbridge.bridge.receive.publisher import Publisher

# --- The tables of the publisher's database, read from its catalog as `bridge.publication.tables` has them ------------


def read_relations(publisher: Publisher, slot_name: str | None = None) -> Relations:
    """All tables of the database, as they are now.

    Args:
        slot_name: The slot whose stream they are for: to tell how they were for a transaction of it.

    Raises:
        PublisherError: The catalog cannot be read.
    """
    columns: dict[int, list[CatalogColumn]] = defaultdict(list)
    with publisher.snapshot():
        rows = publisher.rows("relations", {"slot_name": slot_name})
        identities = {row["relid"]: row["replica_identity"] for row in rows if row["publishable"]}
        for row in publisher.rows("table_columns", {"relids": list(identities)}):
            columns[row["relid"]].append(_column(row, identities[row["relid"]]))
        schemas = frozenset(row["name"] for row in publisher.rows("schemas"))
    made = {
        row["relid"]: CatalogRelation(
            **{
                **row,
                "parents": tuple(row["parents"]),
                "partition_key": tuple(row["partition_key"]),
                "columns": tuple(columns[row["relid"]]),
            }
        )
        for row in rows
    }
    return Relations(made, schemas, publisher.version, publisher.encoding, publisher.insert_lsn())


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


# --- The server's own publications, and what applies to a stream ------------------------------------------------------


def read_publications(publisher: Publisher, names: Sequence[str]) -> tuple[Publication, ...]:
    """The server's own publications, in the order of `names`, without those that do not exist (`Publisher.missing`).

    Row filters have the text of pg_get_expr. Every table is ONLY, because inheritors are members of their own.

    Raises:
        PublisherError: As `Publisher.missing`, or the catalog cannot be read.
    """
    tables: dict[str, list[PublicationTable]] = defaultdict(list)
    excepted: dict[str, list[PublicationTable]] = defaultdict(list)
    schemas: dict[str, list[str]] = defaultdict(list)
    version = 15 if publisher.version >= 150000 else 14
    with publisher.snapshot():
        names = publisher.existing(names)
        wanted = {"publications": list(names)}
        members = publisher.rows(f"publication_members_{version}", wanted)
        made = {row["name"]: row for row in publisher.rows("publications", wanted)}
    for row in members:
        if row["name"] is None:
            schemas[row["publication"]].append(row["namespace"])
        else:
            columns = None if row["columns"] is None else tuple(row["columns"])
            table = PublicationTable(row["namespace"], row["name"], True, columns, row["row_filter"])
            (excepted if row["excepted"] else tables)[row["publication"]].append(table)
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
        names: The server's publications that the stream has.
        definitions: The publications of the subscription's file; None without one.

    Raises:
        PublicationError: The publications contradict the tables or each other.
        PublisherError: As `read_publications`.
    """
    with publisher.snapshot():
        relations, of_server = read_relations(publisher, slot_name), read_publications(publisher, names)
    return reapply(definitions, of_server, relations, missing_ok=missing_ok, followed=followed)
