"""What `pgbridge verify`, or the daemon's own verification, has last found of each table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pgbridge.bridge.catalog.catalog_rows import RelRow
    from pgbridge.bridge.catalog.database import Transactions


@dataclass(frozen=True, slots=True)
class Begun:
    """A table that is verified part by part, as far as it was.

    Attributes:
        column: The key's column by which it is divided.
        lower: The value, as text, that the next part begins with.
        lsn: As of which the first part was compared.
        at_s: What was committed before was compared: seconds since 1970, by the server's clock.
        version: The Delta table's, then.
        rows: How many rows differ in the parts that were compared, by how they do.
        partly: There are more of them.
        left_out: Some keys were left out, because their last changes were not applied yet.
        caveat: See `VerifiedRow`.
    """

    column: str
    lower: str
    lsn: int
    at_s: float
    version: int
    rows: dict[str, int] = field(default_factory=dict)
    partly: bool = False
    left_out: bool = False
    caveat: str | None = None


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """A table's last verification.

    Attributes:
        copied_lsn: Where the table joined the stream (`RelRow.lsn`): another copy of it is another table.
        tried_s: When a part of it, or all, was last compared, or tried to be: seconds since 1970.
        lsn: As of which the table was last found equal; None if it never was.
        at_s: What was committed before was compared then: seconds since 1970, by the server's clock.
        version: The Delta table's version that is equal; None if the last verification did not find it equal.
        differs: What differs; None for nothing. One that could not tell changes nothing in this.
        differs_lsn: As of which.
        caveat: What is not compared, or may differ by the configuration's will; None for nothing.
        could_not: Why the last verification could not tell; None if it could.
        begun: How far one in parts has come; None if none is under way.
    """

    namespace: str
    name: str
    path: str
    copied_lsn: Lsn
    tried_s: float
    lsn: Lsn | None = None
    at_s: float | None = None
    version: int | None = None
    differs: str | None = None
    differs_lsn: Lsn | None = None
    caveat: str | None = None
    could_not: str | None = None
    begun: Begun | None = None


_COLUMNS = "namespace, name, path, copied_lsn, tried, lsn, at, version, differs, differs_lsn, caveat, could_not, begun"
_NEW = ", ".join(f"{column} = excluded.{column}" for column in _COLUMNS.split(", ")[2:])


def rows(catalog: Transactions, subscription: str, rels: Iterable[RelRow]) -> dict[RelRow, VerifiedRow]:
    """What is known of tables as they are now, without those that follow no stream or were copied since."""
    known = catalog.rows(f"SELECT {_COLUMNS} FROM verified WHERE subscription = ?", subscription)
    by_name = {(row[0], row[1]): row for row in known}
    current = ((rel, by_name.get((rel.namespace, rel.name))) for rel in rels if rel.follows)
    return {rel: _row(row) for rel, row in current if row is not None and row[3] == rel.lsn}


def _row(row: tuple[Any, ...]) -> VerifiedRow:
    namespace, name, path, copied, tried_s, lsn, at_s, version, differs, differs_lsn, caveat, could_not, begun = row
    return VerifiedRow(
        *(namespace, name, path, Lsn(copied), tried_s, None if lsn is None else Lsn(lsn), at_s, version),
        *(differs, None if differs_lsn is None else Lsn(differs_lsn), caveat, could_not),
        begun=None if begun is None else Begun(**json.loads(begun)),
    )


def put(catalog: Transactions, subscription: str, row: VerifiedRow) -> None:
    """Note a table's verification. The warehouse is told if it was found equal."""
    with catalog.transaction() as db:
        db.execute(
            f"INSERT INTO verified (subscription, {_COLUMNS}) VALUES ({', '.join('?' * 14)}) "
            "ON CONFLICT (subscription, namespace, name) DO UPDATE SET "
            f"recorded = recorded AND lsn IS excluded.lsn AND at IS excluded.at, {_NEW}",
            (
                *(subscription, row.namespace, row.name, row.path, row.copied_lsn, row.tried_s, row.lsn, row.at_s),
                *(row.version, row.differs, row.differs_lsn, row.caveat, row.could_not),
                None if row.begun is None else json.dumps(asdict(row.begun)),
            ),
        )


# --- what the warehouse is to know ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Equal:
    """Tables that were found equal.

    Attributes:
        tables: (namespace, name, path) of each.
        lsn: As of which they were compared.
        at_s: Everything that was committed before was compared: seconds since 1970, by the server's clock.
    """

    tables: tuple[tuple[str, str, str], ...]
    lsn: Lsn
    at_s: float


def unrecorded(catalog: Transactions, subscription: str) -> Sequence[Equal]:
    """What the table of commits does not have yet."""
    equal = catalog.rows(
        "SELECT lsn, at, json_group_array(json_array(namespace, name, path)) FROM verified "
        "WHERE subscription = ? AND lsn IS NOT NULL AND NOT recorded GROUP BY lsn, at ORDER BY at",
        subscription,
    )
    return [
        Equal(tuple((namespace, name, path) for namespace, name, path in json.loads(tables)), Lsn(lsn), at_s)
        for lsn, at_s, tables in equal
    ]


def recorded(catalog: Transactions, subscription: str, equal: Equal) -> None:
    """The table of commits has it."""
    with catalog.transaction() as db:
        db.execute(
            "UPDATE verified SET recorded = 1 WHERE subscription = ? AND lsn = ? AND at = ?",
            (subscription, equal.lsn, equal.at_s),
        )
