"""The catalog's part of the look at what is published: pictures of the followed tables, and the differences seen.

And the types that the tables had: the stream may have values of one that the server has dropped. All of it belongs to
the subscription, also while its tablesync worker has the table.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, NamedTuple

from pgbridge.bridge.publication.catalog_picture import Name, TablePicture, from_json, to_json
from pgbridge.bridge.publication.differences import Comparison, Difference
from pgbridge.bridge.publication.routing_then import Former
from pgbridge.protocol.values.pg_type import TypeInfo

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence

    from pgbridge.bridge.catalog.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Seen:
    """A difference, and when it was first seen, in seconds since 1970."""

    difference: Difference
    since_s: float


class Recorded(NamedTuple):
    """The differences that a look has seen first, and those that it has not seen any more."""

    new: list[Difference]
    over: list[Difference]


def pictures(catalog: Catalog, subscription: str) -> dict[Name, TablePicture]:
    """The tables' pictures, by (namespace, name)."""
    rows = catalog.rows("SELECT namespace, name, picture FROM followed WHERE subscription = ?", subscription)
    return {(namespace, name): from_json(picture) for namespace, name, picture in rows}


def formers(catalog: Catalog, subscription: str) -> dict[int, list[Former]]:
    """The partitions that looks have seen, by relid, the earliest first (`bridge.publication.routing_then`)."""
    known: dict[int, list[Former]] = {}
    for picture in pictures(catalog, subscription).values():
        present = (Former(part.relid, part.parent, int(part.xid or 0)) for part in picture.partitions)
        for then in (*picture.formers, *present):
            known.setdefault(then.relid, []).append(then)
    return {relid: sorted(ones, key=lambda former: former.until_lsn) for relid, ones in known.items()}


def seen(catalog: Catalog, subscription: str) -> list[Seen]:
    """The differences of the last look, by table."""
    rows = catalog.rows(
        "SELECT kind, namespace, name, subject, message, hint, since FROM difference WHERE subscription = ? "
        "ORDER BY namespace, name, since, kind, subject",
        subscription,
    )
    return [
        Seen(Difference(kind, (namespace, name), subject, message, hint), since)
        for kind, namespace, name, subject, message, hint, since in rows
    ]


def record(catalog: Catalog, subscription: str, compared: Comparison, now_s: float) -> Recorded:
    """Record what a look has seen. A difference that was seen before keeps its time."""
    before = {entry.difference.key: entry for entry in seen(catalog, subscription)}
    now = {new.key: new for new in compared.differences}
    recorded = Recorded(
        [new for key, new in now.items() if key not in before],
        [entry.difference for key, entry in before.items() if key not in now],
    )
    if compared.followed or now != {key: entry.difference for key, entry in before.items()}:
        with catalog.transaction() as db:
            _put(db, subscription, compared.followed)
            db.execute("DELETE FROM difference WHERE subscription = ?", (subscription,))
            db.executemany(
                "INSERT INTO difference (subscription, kind, namespace, name, subject, message, hint, since) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (subscription, new.kind, *new.relation, new.subject, new.message, new.hint, since_s)
                    for key, new in now.items()
                    for since_s in [before[key].since_s if key in before else now_s]
                ],
            )
    return recorded


def types(catalog: Catalog, subscription: str) -> dict[int, TypeInfo]:
    """The types that the tables' columns had or have, and that are not built in, by oid."""
    rows = catalog.rows("SELECT oid, info FROM known_type WHERE subscription = ?", subscription)
    return {oid: TypeInfo(oid, *json.loads(info)) for oid, info in rows}


def keep_types(catalog: Catalog, subscription: str, types: Sequence[TypeInfo]) -> None:
    """Note types, for when the server has dropped them and its stream still has values of them."""
    with catalog.transaction() as db:
        db.executemany(
            "INSERT OR REPLACE INTO known_type (subscription, oid, info) VALUES (?, ?, ?)",
            [(subscription, info.oid, json.dumps(astuple(info)[1:])) for info in types],
        )


def copied(catalog: Catalog, subscription: str, name: Name, picture: TablePicture | None) -> None:
    """A table was copied, and what was seen of it before is over. None if it was dropped before it was looked at."""
    with catalog.transaction() as db:
        forget(db, subscription, [name])
        _put(db, subscription, {name: picture} if picture is not None else {})


def forget(db: sqlite3.Connection, subscription: str, names: Iterable[Name]) -> None:
    """Forget what is known of tables, within the caller's transaction."""
    for table in ("followed", "difference"):
        db.executemany(
            f"DELETE FROM {table} WHERE subscription = ? AND namespace = ? AND name = ?",
            [(subscription, *name) for name in names],
        )


def _put(db: sqlite3.Connection, subscription: str, tables: Mapping[Name, TablePicture]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO followed (subscription, namespace, name, picture) VALUES (?, ?, ?, ?)",
        [(subscription, *name, to_json(picture)) for name, picture in tables.items()],
    )
