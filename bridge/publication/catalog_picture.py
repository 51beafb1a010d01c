"""The catalog's facts about publications and tables that no message of the stream announces.

`sql/catalog_picture.sql` reads them all at once, `bridge.publication.differences` compares them with those of the time
when a table was copied.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pgbridge.bridge.publication.routing_then import Former

if TYPE_CHECKING:
    from collections.abc import Mapping

Name = tuple[str, str]

ACTIONS = {"i": "INSERT", "u": "UPDATE", "d": "DELETE", "t": "TRUNCATE"}


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a table, at any level.

    Attributes:
        name: `namespace.name`.
        parent: The relid of the partitioned table that it is a partition of.
        is_leaf: Whether it has rows of its own.
        attached: Whether it existed before it became a partition.
        has_rows: Whether it has rows now; only looked at if it was attached.
        xid: The transaction in which it became a partition: another one if it was detached meanwhile.
    """

    relid: int
    name: str
    parent: int
    is_leaf: bool
    attached: bool
    has_rows: bool
    xid: str = ""


@dataclass(frozen=True, slots=True)
class TypeInUse:
    """A type that was created on the server, and whose values' text depends on the catalog.

    Attributes:
        name: `namespace.name`.
        typtype: e for an enum, c for a composite type.
        parts: An enum's labels by their oids, or a composite's attributes by their numbers.
    """

    name: str
    typtype: str
    parts: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class TablePicture:
    """The facts about a table, apart from its columns.

    Attributes:
        identity: d, n, f or i (`pg_class.relreplident`).
        nullable: Columns of the replica identity whose NOT NULL constraint is not validated.
        members: What has the table in the stream, by the relid that it is published as: members of publications as
            the statement's header describes them, or a publication's oid. A partitioned table may be there as its
            partitions.
        rules: For each publication and relid the digests of the column list and the row filter, empty for none.
        actions: The published actions: some of i, u, d, t.
        partitions: Of a partitioned table, at any level.
        unsent: Names of the partitions, or of the table itself, whose changes the stream does not have.
        types: Enums and composite types that its columns consist of, by oid.
        formers: Partitions that it had at a look, as long as the stream may still send what was written to them.
    """

    relid: int
    name: Name
    identity: str
    nullable: tuple[str, ...] = ()
    members: Mapping[int, frozenset[str]] = field(default_factory=dict)
    rules: frozenset[tuple[str, int, str, str]] = frozenset()
    actions: str = ""
    partitions: tuple[Partition, ...] = ()
    unsent: tuple[str, ...] = ()
    types: Mapping[int, TypeInUse] = field(default_factory=dict)
    formers: tuple[Former, ...] = ()


def to_json(picture: TablePicture) -> str:
    """Return a table's picture as the state catalog keeps it; `unsent` is not kept."""
    return json.dumps(
        {
            "relid": picture.relid,
            "name": picture.name,
            "identity": picture.identity,
            "nullable": picture.nullable,
            "members": {relid: sorted(members) for relid, members in picture.members.items()},
            "rules": sorted(picture.rules),
            "actions": picture.actions,
            "partitions": [
                [
                    partition.relid,
                    partition.name,
                    partition.parent,
                    partition.is_leaf,
                    partition.attached,
                    partition.has_rows,
                    partition.xid,
                ]
                for partition in picture.partitions
            ],
            "types": {oid: [kind.name, kind.typtype, list(kind.parts.items())] for oid, kind in picture.types.items()},
            "formers": picture.formers,
        }
    )


def from_json(text: str) -> TablePicture:
    """Return a table's picture from `to_json`'s text."""
    kept = json.loads(text)
    return TablePicture(
        kept["relid"],
        tuple(kept["name"]),
        kept["identity"],
        tuple(kept["nullable"]),
        # they were numbers before schemas were members
        {int(relid): frozenset(map(str, members)) for relid, members in kept["members"].items()},
        frozenset((publication, relid, columns, rows) for publication, relid, columns, rows in kept["rules"]),
        kept["actions"],
        tuple(Partition(*values) for values in kept["partitions"]),
        types={int(oid): TypeInUse(name, kind, dict(parts)) for oid, (name, kind, parts) in kept["types"].items()},
        formers=tuple(Former(*values) for values in kept.get("formers", ())),
    )


@dataclass(frozen=True)
class CatalogPicture:
    """The answer of `sql/catalog_picture.sql`.

    Attributes:
        document: As its header describes it.
        lsn: What commits from here on commits later than what the document has.
    """

    document: Mapping[str, Any]
    lsn: int = 0

    @cached_property
    def publications(self) -> Mapping[str, tuple[int, str, bool]]:
        """The publications that exist, by name: oid, actions, publish_via_partition_root."""
        return {name: (oid, actions, root) for name, (oid, actions, root) in self._part("publications").items()}

    @cached_property
    def _published(self) -> Mapping[int, list[tuple[str, list[str], str, str]]]:
        """Publication, members and digests, by relid."""
        rows: dict[int, list[tuple[str, list[str], str, str]]] = {}
        for relid, publication, members, columns, row_filter in self.document["published"] or ():
            of_it = members or [str(self.publications[publication][0])]
            rows.setdefault(relid, []).append((publication, of_it, columns or "", row_filter or ""))
        return rows

    @cached_property
    def names(self) -> Mapping[int, Name]:
        """The names of all tables that were looked at, by relid."""
        return {int(relid): tuple(table["name"]) for relid, table in self._part("tables").items()}

    @cached_property
    def targets(self) -> Mapping[Name, int]:
        """The tables that subscribers get, by name: without the partitions of a table that is published itself."""
        below = {
            partition[0]
            for relid in self._published
            for partition in self._part("tables").get(str(relid), {"partitions": ()})["partitions"]
        }
        return {self.names[relid]: relid for relid in self._published if relid in self.names and relid not in below}

    def table(self, relid: int) -> TablePicture | None:
        """Return a table's picture; None if there is no such table any more."""
        table = self._part("tables").get(str(relid))
        if table is None:
            return None
        partitions = tuple(Partition(*values) for values in table["partitions"])
        above = {relid, *table["ancestors"]}
        leaves = [partition for partition in partitions if partition.is_leaf]
        parents = {partition.relid: partition.parent for partition in partitions}
        sources, unsent = {relid for relid in above if relid in self._published}, []
        for leaf in leaves if not sources else ():
            at: int | None = leaf.relid
            while at is not None and at not in self._published:
                at = parents.get(at)
            if at is None:
                unsent.append(leaf.name)
            else:
                sources.add(at)
        if not sources and not leaves:
            unsent.append(".".join(table["name"]))
        rows = [(source, *row) for source in sources for row in self._published[source]]
        members: dict[int, set[str]] = {}
        for source, _, of_it, _, _ in rows:
            members.setdefault(source, set()).update(of_it)
        actions = {action for _, publication, _, _, _ in rows for action in self.publications[publication][1]}
        return TablePicture(
            relid,
            tuple(table["name"]),
            table["identity"],
            tuple(table["nullable"]),
            {source: frozenset(of_it) for source, of_it in members.items()},
            frozenset((publication, source, columns, rule) for source, publication, _, columns, rule in rows),
            "".join(action for action in ACTIONS if action in actions),
            partitions,
            tuple(unsent),
            self._types(table["types"]),
        )

    def published_below(self, picture: TablePicture) -> bool:
        """Whether a table's partitions are published, as tables of their own."""
        return any(partition.relid in self._published for partition in picture.partitions)

    def published_above(self, relid: int) -> bool:
        """Whether a partition is published as a table above it."""
        return any(ancestor in self._published for ancestor in self._part("tables")[str(relid)]["ancestors"])

    def _types(self, oids: list[int]) -> dict[int, TypeInUse]:
        """The enums and composite types among types and what they consist of."""
        known, waiting, seen = self._part("types"), list(oids), set()
        types: dict[int, TypeInUse] = {}
        while waiting:
            oid = waiting.pop()
            if oid in seen or str(oid) not in known:
                continue
            seen.add(oid)
            name, typtype, parts, made_of = known[str(oid)]
            waiting += made_of or ()
            if parts is not None:
                types[oid] = TypeInUse(name, typtype, dict(parts))
        return types

    def _part(self, name: str) -> dict[str, Any]:
        part: dict[str, Any] = self.document[name] or {}
        return part


def parse(text: str, lsn: int = 0) -> CatalogPicture:
    """Return the picture of `sql/catalog_picture.sql`'s answer."""
    return CatalogPicture(json.loads(text), lsn)
