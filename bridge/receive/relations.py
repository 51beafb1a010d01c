"""The tables of the publisher's database, read from its catalog as `bridge.publication.tables` has them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from bridge.publication.tables import CatalogColumn, CatalogRelation, Collation, Relations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridge.receive.publisher import Publisher


def read_relations(publisher: Publisher, slot_name: str | None = None) -> Relations:
    """All tables of the database, as they are now.

    Args:
        publisher: The server.
        slot_name: The slot whose stream they are for: to tell how they were for a transaction of it.

    Raises:
        PublisherError: The catalog cannot be read.
    """
    rows = publisher.rows("relations", {"slot_name": slot_name})
    identities = {row["relid"]: row["replica_identity"] for row in rows if row["publishable"]}
    columns: dict[int, list[CatalogColumn]] = defaultdict(list)
    for row in publisher.rows("table_columns", {"relids": list(identities)}):
        columns[row["relid"]].append(_column(row, identities[row["relid"]]))
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
    schemas = frozenset(row["name"] for row in publisher.rows("schemas"))
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
