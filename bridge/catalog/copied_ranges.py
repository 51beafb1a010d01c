"""The catalog's part of a copy that goes on: the ranges of a key into which a large table's copy is divided.

Each range is read under a snapshot, and its data files stay where they are if the copy is cut short; the next attempt
reads the others under a later one. One commit adds the files of all. From then on the ranges say which changes of the
stream the table does not have yet, until the stream has passed the last snapshot.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog.catalog_rows import sync_name
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Sequence

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.catalog.catalog_rows import RelRow

_OF_TABLE = "subscription = ? AND namespace = ? AND name = ?"


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """A range of a table's key.

    Attributes:
        lower: The least value in it, as PostgreSQL writes it; None for no bound.
        upper: The least value above it.
        lsn: That of the snapshot under which it was read; None if it was not read yet.
        files: Its data files, as Delta's `add` actions in JSON.
    """

    number: int
    lower: str | None
    upper: str | None
    lsn: Lsn | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RangedCopy:
    """The ranges of a table.

    Attributes:
        key_column: The column that they are ranges of.
        source: What is copied to what, in short: a copy of another one has nothing in common with this one.
        ranges: Adjacent ones, from no bound to no bound.
    """

    key_column: str
    source: str
    ranges: tuple[CopiedRange, ...]

    @property
    def missing(self) -> list[CopiedRange]:
        """The ranges that are still to be read."""
        return [each for each in self.ranges if each.lsn is None]


def read(catalog: Catalog, name: str, table: tuple[str, str]) -> RangedCopy | None:
    """The ranges of a table; None if its copy has none."""
    rows = catalog.rows(
        "SELECT key_column, source, number, lower, upper, lsn, files FROM copied_range "
        f"WHERE {_OF_TABLE} ORDER BY number",
        *(name, *table),
    )
    if not rows:
        return None
    ranges = [
        CopiedRange(number, lower, upper, None if lsn is None else Lsn(lsn), tuple(json.loads(files or "[]")))
        for _, _, number, lower, upper, lsn, files in rows
    ]
    return RangedCopy(rows[0][0], rows[0][1], tuple(ranges))


def lsns(catalog: Catalog, name: str, rel: RelRow) -> list[Lsn]:
    """The LSNs of the snapshots under which ranges of a table were read; none if it was read at once."""
    rows = catalog.rows(
        f"SELECT DISTINCT lsn FROM copied_range WHERE {_OF_TABLE} AND lsn IS NOT NULL", name, rel.namespace, rel.name
    )
    return [Lsn(lsn) for (lsn,) in rows]


def begin(catalog: Catalog, name: str, table: tuple[str, str], copy: RangedCopy) -> None:
    """A table's copy begins with these ranges, in place of any others."""
    rows = [
        (name, *table, each.number, copy.key_column, each.lower, each.upper, copy.source, each.lsn)
        for each in copy.ranges
    ]
    with catalog.transaction() as db:
        forget(db, name, [table])
        db.executemany(
            "INSERT INTO copied_range (subscription, namespace, name, number, key_column, lower, upper, source, lsn) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )


def done(catalog: Catalog, name: str, table: tuple[str, str], number: int, lsn: Lsn, files: Sequence[str]) -> None:
    """A range is read, and its files are durable; a StateError if the copy is another one by now."""
    with catalog.transaction() as db:
        updated = db.execute(
            f"UPDATE copied_range SET lsn = ?, files = ? WHERE {_OF_TABLE} AND number = ?",
            (lsn, json.dumps(files), name, *table, number),
        )
        if updated.rowcount != 1:
            raise StateError(f'the ranges of table "{".".join(table)}" were forgotten while it was copied')


def finish(catalog: Catalog, name: str, table: tuple[str, str]) -> None:
    """The table has all ranges. They are forgotten if all are of one snapshot; else those of one become one."""
    copy = read(catalog, name, table)
    joined: list[CopiedRange] = []
    for each in copy.ranges if copy is not None else ():
        if joined and joined[-1].lsn == each.lsn:
            last = joined[-1]
            joined[-1] = CopiedRange(last.number, last.lower, each.upper, last.lsn)
        else:
            joined.append(CopiedRange(each.number, each.lower, each.upper, each.lsn))
    if copy is not None and len(joined) > 1:
        begin(catalog, name, table, RangedCopy(copy.key_column, copy.source, tuple(joined)))
    else:
        with catalog.transaction() as db:
            forget(db, name, [table])


def are_read(catalog: Catalog, name: str) -> bool:
    """Whether ranges of copies that are not done were read."""
    return bool(catalog.rows("SELECT 1 FROM copied_range WHERE subscription = ? AND files IS NOT NULL LIMIT 1", name))


def hand_over(db: sqlite3.Connection, subscription: str, rels: Iterable[RelRow], lsn: Lsn) -> None:
    """Tables of the tablesync worker, which have all up to an LSN, become the subscription's."""
    sync, given = sync_name(subscription), {(rel.namespace, rel.name): rel for rel in rels}
    forget(db, subscription, given)
    forget(db, sync, [name for name, rel in given.items() if not rel.first_lsn])
    db.executemany(
        f"UPDATE copied_range SET subscription = ?, lsn = max(lsn, ?) WHERE {_OF_TABLE}",
        [(subscription, lsn, sync, *name) for name in given],
    )


def forget(db: sqlite3.Connection, name: str, tables: Collection[tuple[str, str]]) -> None:
    """Forget the ranges of tables of a subscription, or of a tablesync worker: they are copied otherwise, or gone."""
    db.executemany(f"DELETE FROM copied_range WHERE {_OF_TABLE}", [(name, *table) for table in tables])
