"""What `pgbridge verify`, or the daemon's own verification, has last found of each table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.catalog.catalog_rows import RelRow
    from bridge.catalog.database import Transactions


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
    """

    column: str
    lower: str
    lsn: int
    at_s: float
    version: int
    rows: dict[str, int]
    partly: bool


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """A table's last verification.

    Attributes:
        tried_s: When it ended, in seconds since 1970.
        lsn: As of which the table was last found equal; None if it never was.
        at_s: What was committed before was compared then: seconds since 1970, by the server's clock.
        version: The Delta table's version that is equal; None if the last verification did not find it equal.
        differs: What differs; None for nothing. One that could not tell changes nothing in this.
        differs_lsn: As of which.
        could_not: Why the last verification could not tell; None if it could.
        begun: How far one in parts has come; None if none is under way.
    """

    namespace: str
    name: str
    path: str
    tried_s: float
    lsn: Lsn | None = None
    at_s: float | None = None
    version: int | None = None
    differs: str | None = None
    differs_lsn: Lsn | None = None
    could_not: str | None = None
    begun: Begun | None = None

    @property
    def qualified_name(self) -> str:
        """`namespace.name`."""
        return f"{self.namespace}.{self.name}"

    def differing(self, rel: RelRow) -> str | None:
        """What differs in the table as it is now: one that was copied since is another."""
        current = rel.follows and self.differs_lsn is not None and rel.lsn <= self.differs_lsn
        return self.differs if current else None


_COLUMNS = "namespace, name, path, tried, lsn, at, version, differs, differs_lsn, could_not, begun"


def rows(catalog: Transactions, subscription: str) -> dict[tuple[str, str], VerifiedRow]:
    """What is known of a subscription's tables, by (namespace, name)."""
    known = catalog.rows(f"SELECT {_COLUMNS} FROM verified WHERE subscription = ?", subscription)
    return {
        (namespace, name): VerifiedRow(
            *(namespace, name, path, tried_s),
            *(None if lsn is None else Lsn(lsn), at_s, version),
            *(differs, None if differs_lsn is None else Lsn(differs_lsn), could_not),
            begun=None if begun is None else Begun(**json.loads(begun)),
        )
        for namespace, name, path, tried_s, lsn, at_s, version, differs, differs_lsn, could_not, begun in known
    }


def put(catalog: Transactions, subscription: str, row: VerifiedRow) -> None:
    """Note a table's verification. The warehouse is told if it was found equal."""
    with catalog.transaction() as db:
        db.execute(
            f"INSERT INTO verified (subscription, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (subscription, namespace, name) DO UPDATE SET path = excluded.path, tried = excluded.tried, "
            "recorded = recorded AND lsn IS excluded.lsn AND at IS excluded.at, lsn = excluded.lsn, at = excluded.at, "
            "version = excluded.version, differs = excluded.differs, differs_lsn = excluded.differs_lsn, "
            "could_not = excluded.could_not, begun = excluded.begun",
            (
                *(subscription, row.namespace, row.name, row.path, row.tried_s, row.lsn, row.at_s, row.version),
                *(row.differs, row.differs_lsn, row.could_not),
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
