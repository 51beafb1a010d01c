"""The catalog's part of the manifest: what the warehouse has to know of a subscription beside its tables' own logs.

Each table's log says up to where the table has everything. What no log says is in the manifest: which tables follow,
which wait or are to be copied, their columns as last seen, what is prepared, what an operator asked for. The whole is
one document for a subscription and its tablesync worker, because tables move from one to the other. Triggers note each
change of it. `bridge.recovery` writes it to the warehouse, and makes a lost catalog anew from it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pgbridge.bridge.catalog.catalog_rows import PreparedRow, RelRow, SubscriptionRow, sync_name
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence

    from pgbridge.bridge.catalog.database import Transactions

_COLUMNS: Final = {
    "subscription": (
        *("name", "enabled", "configured_enabled", "incarnation", "epoch", "slot_name", "slot_state"),
        *("system_identifier", "skip_lsn", "skip_timeline"),
    ),
    "subscription_rel": (
        *("subscription", "namespace", "name", "state", "lsn", "path", "relid", "waits", "waits_since", "shape"),
    ),
    "prepared": ("subscription", "file", "gid", "xid", "end_lsn", "relids"),
    "rel_column": ("subscription", "relid", "attnum", "name", "type_oid", "typmod", "state"),
    "followed": ("subscription", "namespace", "name", "picture"),
    "removed": ("subscription", "namespace", "name", "path"),
    "known_type": ("subscription", "oid", "info"),
    "timeline": ("subscription", "timeline", "begin_lsn"),
    "refresh": ("subscription", "namespace", "name", "copy_data", "unpublished", "joins"),
    "copied_range": ("subscription", "namespace", "name", "number", "key_column", "lower", "upper", "source", "lsn"),
}
"""What of the catalog is in the document. A table's position is in its log, and changes with each batch. Columns that
came later are the last ones: an earlier version's document lacks them."""

_IN_EARLIER: Final = {"joins": 1}
"""What columns that came later have in an earlier version's document; NULL if nothing is said. Nobody knows whether an
operator asked for a table by its name: so no copy replaces rows that the Delta table of a new one has."""

_OWNER: Final = "substr({row}.{name}, 1, instr({row}.{name} || ':', ':') - 1)"
"""The subscription of a row that may be its tablesync worker's."""


_OF_UNFINISHED_COPY: Final = "copied_range"
"""The table whose rows are of no use while a copy goes on: then they change from minute to minute."""


def triggers() -> Iterator[str]:
    """The statements that have each change of what is in the document noted."""
    for table, columns in _COLUMNS.items():
        events = {"INSERT": "NEW", "DELETE": "OLD"}
        if table != _OF_UNFINISHED_COPY:
            events[f"UPDATE OF {', '.join(columns[1:])}"] = "NEW"
        for event, row in events.items():
            yield f"""
            CREATE TRIGGER manifest_{table}_{event.split()[0].lower()} AFTER {event} ON {table}
            BEGIN
              UPDATE manifest SET changed = changed + 1
              WHERE subscription = {_OWNER.format(row=row, name=columns[0])};
            END
            """


@dataclass(frozen=True, slots=True)
class Due:
    """A document that the warehouse does not have yet.

    Attributes:
        change: The last change that it has.
        generation: How many recoveries the catalog comes after.
        document: JSON.
        digest: Of what it says, by which it is compared.
    """

    change: int
    generation: int
    document: str
    digest: str


def is_due(catalog: Transactions, subscription: str) -> bool:
    """Whether something of it has changed since it was written."""
    return bool(catalog.rows("SELECT 1 FROM manifest WHERE subscription = ? AND changed <> written", subscription))


def due(catalog: Transactions, subscription: str, boot_id: str) -> Due | None:
    """What is to be written to the warehouse before the server may forget anything; None if it has all of it.

    Args:
        boot_id: Of this machine, which is written with it.
    """
    if not is_due(catalog, subscription):
        return None
    with catalog.transaction():  # of one moment
        ((change, generation, digest),) = catalog.rows(
            "SELECT changed, generation, digest FROM manifest WHERE subscription = ?", subscription
        )
        names = (subscription, sync_name(subscription))
        tables = {table: _rows(catalog, table, names) for table in _COLUMNS}
        origins = catalog.rows(
            "SELECT subscription, remote_lsn, timeline FROM origin WHERE subscription IN (?, ?)", *names
        )
        now = hashlib.sha256(json.dumps(tables).encode()).hexdigest()
        document = Due(change, generation, json.dumps({"tables": tables, "origins": origins, "boot_id": boot_id}), now)
        if now == digest:
            written(catalog, subscription, document)
            return None
    return document


def _rows(catalog: Transactions, table: str, names: tuple[str, str]) -> list[list[Any]]:
    columns = ["iif(state = 's', 'r', state)" if name == "state" else name for name in _COLUMNS[table]]
    # requests in their order, which is that of their numbers; a recovery numbers them anew
    order = "id" if table == "refresh" else ", ".join(map(str, range(1, len(columns) + 1)))
    finished = " AND lsn IS NOT NULL AND files IS NULL" if table == _OF_UNFINISHED_COPY else ""
    sql = f"SELECT {', '.join(columns)} FROM {table} WHERE {_COLUMNS[table][0]} IN (?, ?){finished} ORDER BY {order}"
    return [list(row) for row in catalog.rows(sql, *names)]


def begin(catalog: Transactions, subscription: str) -> None:
    """A document is about to be written: from here on it is not known what the warehouse has, until `written`."""
    with catalog.transaction() as db:
        db.execute("UPDATE manifest SET digest = NULL WHERE subscription = ?", (subscription,))


def lost(catalog: Transactions, subscription: str) -> None:
    """The warehouse has no document: the next one is due."""
    with catalog.transaction() as db:
        db.execute("UPDATE manifest SET changed = changed + 1, digest = NULL WHERE subscription = ?", (subscription,))


def written(catalog: Transactions, subscription: str, document: Due) -> None:
    """The warehouse has this document, and it is durable there."""
    with catalog.transaction() as db:
        db.execute(
            "UPDATE manifest SET written = ?2, digest = ?3 WHERE subscription = ?1 AND written < ?2",
            (subscription, document.change, document.digest),
        )


def generation(catalog: Transactions, subscription: str) -> int:
    """How many recoveries a subscription's state comes after."""
    rows = catalog.rows("SELECT generation FROM manifest WHERE subscription = ?", subscription)
    return int(rows[0][0]) if rows else 0


def set_generation(catalog: Transactions, subscription: str, number: int) -> None:
    """Have what the catalog writes count after so many recoveries of other lives."""
    with catalog.transaction() as db:
        db.execute("UPDATE manifest SET generation = ? WHERE subscription = ?", (number, subscription))


def is_written(catalog: Transactions, subscription: str) -> bool:
    """Whether this catalog has written a document of the subscription, or was made from one."""
    return bool(catalog.rows("SELECT 1 FROM manifest WHERE subscription = ? AND written > 0", subscription))


@dataclass(frozen=True, slots=True)
class Manifest:
    """A document, as it is read from the warehouse.

    Attributes:
        tables: The rows of the catalog's tables.
        origins: (name, LSN, timeline) of the origins at that moment.
        boot_id: The machine's, at that moment.
    """

    tables: Mapping[str, list[list[Any]]]
    origins: list[tuple[str, int, int | None]]
    boot_id: str

    @classmethod
    def of(cls, document: str) -> Manifest:
        """Read a document."""
        read = json.loads(document)
        origins = [(name, lsn, timeline) for name, lsn, timeline in read["origins"]]
        return cls(read["tables"], origins, read["boot_id"])

    def _of(self, table: str, name: str) -> Iterator[dict[str, Any]]:
        for row in self.tables[table]:
            if row[0] == name:
                yield dict(zip(_COLUMNS[table], _filled(table, row), strict=True))

    def subscription(self, name: str) -> SubscriptionRow | None:
        """The row of a subscription, or of its tablesync worker; None if it had none."""
        row = next(self._of("subscription", name), None)
        if row is None:
            return None
        skip_lsn = None if row["skip_lsn"] is None else Lsn(row["skip_lsn"])
        slot = row["slot_name"], row["slot_state"], row["system_identifier"]
        return SubscriptionRow(
            *(name, bool(row["enabled"]), row["incarnation"], row["epoch"], *slot, skip_lsn),
            *("stopped", INVALID, 0, 0),
        )

    def origin(self, name: str) -> tuple[Lsn, int | None] | None:
        """The origin's LSN and timeline when the document was written; None if it had none."""
        return next(((Lsn(lsn), timeline) for owner, lsn, timeline in self.origins if owner == name), None)

    def rels(self, name: str) -> list[RelRow]:
        """The tables."""
        firsts: dict[tuple[str, str], Lsn] = {}
        for owner, namespace, table, *_, lsn in self.tables.get(_OF_UNFINISHED_COPY, []):
            if owner == name:
                firsts[namespace, table] = min(Lsn(lsn), firsts.get((namespace, table), Lsn(lsn)))
        return [
            RelRow(
                *(row["namespace"], row["name"], row["state"], Lsn(row["lsn"]), row["path"], row["relid"]),
                waits=row["waits"],
                waits_since_s=row["waits_since"],
                shape=row["shape"],
                first_lsn=firsts.get((row["namespace"], row["name"]), INVALID),
            )
            for row in self._of("subscription_rel", name)
        ]

    def prepared(self, name: str) -> list[PreparedRow]:
        """The transactions that were prepared and had not ended."""
        return [
            PreparedRow(
                *(row["file"], row["gid"], row["xid"], Lsn(row["end_lsn"])),
                None if row["relids"] is None else tuple(json.loads(row["relids"])),
            )
            for row in self._of("prepared", name)
        ]


def _filled(table: str, row: Sequence[Any]) -> list[Any]:
    """A row with the columns that an earlier version did not have."""
    return [*row, *map(_IN_EARLIER.get, _COLUMNS[table][len(row) :])]


def put_back(
    db: sqlite3.Connection,
    subscription: str,
    manifest: Manifest,
    origins: Mapping[str, tuple[Lsn, int | None]],
    generation: int,
) -> None:
    """Write what a document has into a catalog that has nothing of the subscription but its name.

    Args:
        origins: The LSN and the timeline of each origin, by name.
        generation: The recovery's own.
    """
    for table, columns in _COLUMNS.items():
        places, others = ", ".join("?" * len(columns)), ", ".join(f"{name} = excluded.{name}" for name in columns[1:])
        # the subscription's own row is there, with its name; others refer to it
        there = f"ON CONFLICT (name) DO UPDATE SET {others}" if table == "subscription" else ""
        rows = [_filled(table, row) for row in manifest.tables.get(table, [])]  # an earlier version's document
        db.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places}) {there}", rows)
        if table == "subscription":  # before its tables, which join at the origin
            begun = [(name, lsn, timeline) for name, (lsn, timeline) in origins.items()]
            db.executemany("INSERT INTO origin (subscription, remote_lsn, timeline) VALUES (?, ?, ?)", begun)
    names = "(subscription, namespace, name)"
    first_of = f"SELECT min(lsn) FROM copied_range WHERE {names} = (r.subscription, r.namespace, r.name)"
    db.executemany(
        f"UPDATE subscription_rel AS r SET first_lsn = coalesce(({first_of}), 0) WHERE subscription = ?",
        [(subscription,), (sync_name(subscription),)],
    )
    db.execute(
        "UPDATE manifest SET written = 1, changed = changed + 1, generation = ?2 WHERE subscription = ?1",
        (subscription, generation),
    )
