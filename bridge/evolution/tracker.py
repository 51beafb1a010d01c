"""The targets' columns as they will be when all batches formed so far are applied.

Batches are formed ahead of those that are applied. A change of a target's columns is planned when the first change
under the new definition is decoded, counts from then on, and is made when its batch is applied. A plan also depends on
the publisher's present catalog, so planning the same definition again may give another result. Therefore a batch that
changes columns and was interrupted is undone before anything is planned again, and the state catalog has the known
columns as of the origin's LSN.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from pgbridge.bridge.catalog.catalog_rows import ColumnRow
from pgbridge.bridge.evolution.attrmap import of_partition
from pgbridge.bridge.evolution.plan import Definition, Plan, plan
from pgbridge.bridge.publication.shape import AS_PUBLISHED, Shape
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.targets.target import added_names
from pgbridge.protocol.bulk.columns import RowMessages
from pgbridge.protocol.codec import messages, pgoutput

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import pyarrow as pa

    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.publication.tables import Attribute
    from pgbridge.bridge.targets.target import Target, TargetSchema
    from pgbridge.protocol.values.types import ColumnType


class TrackedState(NamedTuple):
    """The state at a point of the stream: tables' columns by relid, targets' columns by path."""

    known: Mapping[int, tuple[ColumnRow, ...]] = MappingProxyType({})
    schemas: Mapping[str, TargetSchema] = MappingProxyType({})


class DefinitionTracker:
    """Follows the definitions of one stream.

    Args:
        known: The published tables' columns, by relid, as of the origin's LSN.
        attributes: Returns a table's columns in the publisher's present catalog, for a transaction (`settled`).
        types: Resolves (type oid, typmod).
        warn: Called with the relation, how its target may differ from the server, and the command that removes the
            difference.
        parsed: Which types do not become strings in new columns, as in `new_type`.
        unrepresentable: Whether a default that the target's type cannot hold is an error, or NULL.
    """

    def __init__(
        self,
        subscription: str,
        *,
        known: Mapping[int, tuple[ColumnRow, ...]],
        attributes: Callable[[int, int | None], Sequence[Attribute]],
        types: Callable[[Sequence[tuple[int, int]]], list[ColumnType]],
        warn: Callable[[str, str, str], None] = lambda *_: None,
        parsed: Collection[str] = (),
        unrepresentable: Literal["error", "null"] = "error",
    ) -> None:
        self._unrepresentable: Literal["error", "null"] = unrepresentable
        self._parsed = parsed
        self._subscription = subscription
        self._attributes = attributes
        self._types = types
        self._warn = warn
        self._known = dict(known)
        self._schemas: dict[str, TargetSchema] = {}

    @property
    def state(self) -> TrackedState:
        """The state at this point."""
        return TrackedState(dict(self._known), dict(self._schemas))

    def restore(self, state: TrackedState) -> None:
        """Forget what was planned since this state."""
        self._known, self._schemas = dict(state.known), dict(state.schemas)

    def plan(
        self,
        relation: messages.Relation,
        types: Sequence[ColumnType],
        target: Target,
        *,
        replicated: Collection[str] | None,
        key: Collection[str],
        shape: Shape = AS_PUBLISHED,
        xid: int | None = None,
        root: int | None = None,
    ) -> Plan:
        """Plan how a target follows a definition. The plan counts from now on.

        Args:
            types: The types of its columns; text for those that are masked.
            replicated: Names of the replicated columns, which the target must have; None for all.
            shape: What the target has in place of the columns. All names in the plan, and those of known columns, are
                the target's.
            xid: The transaction that brings it.
            root: The oid of the table that the target is of; None if it is not known.

        Raises:
            NeedsResync: The target cannot follow it.
            PublisherError: The publisher's catalog cannot be read.
        """
        attributes = self._attributes(relation.relation_id, xid)
        known = self._known.get(relation.relation_id, ())
        if not known and root is not None and root in self._known:  # a partition that comes for the first time
            names = {shape.name(column.name) for column in relation.columns}
            live = {row.name for row in self._known[root] if row.state == "live"}
            if not live <= names:  # else nothing was renamed
                known = of_partition(self._known[root], self._attributes(root, xid), attributes)
        definition = Definition(
            (target.namespace, target.name),
            [replace(column, name=shape.name(column.name)) for column in relation.columns],
            types,
            None if replicated is None else {shape.name(name) for name in replicated},
            {shape.name(name) for name in key},
            known,
            [each if each.name is None else replace(each, name=shape.name(each.name)) for each in attributes],
            (relation.namespace or "pg_catalog", relation.name) == (target.namespace, target.name),
            self._types,
            value_from_text,
            self._parsed,
            self._unrepresentable,
            {shape.name(name): mask for name in shape.masks if (mask := shape.mask(name)) is not None},
            frozenset(map(shape.name, shape.masks)),
            added_names(target.mode),
        )
        planned = plan(definition, self._schema(target))
        self._known[relation.relation_id] = planned.known
        if planned.alterations and root is not None and root in self._known and root != relation.relation_id:
            self._known[root] = self._as_of_root(root, planned.known, shape, xid)
        self._schemas[target.path] = planned.schema
        remedy = remedies.resync(self._subscription, target.qualified_name)
        for warning in planned.warnings:
            self._warn(target.qualified_name, warning, remedy)
        return planned

    def _as_of_root(self, root: int, rows: Sequence[ColumnRow], shape: Shape, xid: int | None) -> tuple[ColumnRow, ...]:
        """The root's columns as they are known once one of its partitions has altered the target."""
        by_name = {row.name: row for row in rows if row.state != "gone"}
        known = {row.attnum: row for row in self._known[root]}
        for each in self._attributes(root, xid):
            if each.name is not None and (row := by_name.get(shape.name(each.name))) is not None:
                known[each.attnum] = replace(row, attnum=each.attnum)
        return tuple(known.values())

    def with_planned_schema(self, target: Target) -> Target:
        """Return a target with its columns after all plans so far."""
        return replace(target, schema=self._schema(target))

    def _schema(self, target: Target) -> TargetSchema:
        schema = self._schemas.get(target.path)
        if schema is None:
            schema = self._schemas[target.path] = target.schema
        return schema


def newly_known(before: TrackedState, after: TrackedState) -> dict[int, tuple[ColumnRow, ...]]:
    """Return the tables' columns that changed between two states, by relid."""
    return {relid: rows for relid, rows in after.known.items() if before.known.get(relid) != rows}


def copied_columns(table: PublishedTable, attributes: Sequence[Attribute]) -> list[ColumnRow]:
    """Return the columns of a table to copy, as the tracker knows them.

    Args:
        table: The table, as it was read before its copy.
        attributes: Its attributes now, while a lock keeps it from being altered.

    Returns:
        The columns; none if the table was altered since it was read. A column that was added is not in the copy, and
        must not be taken for one that is not published.
    """
    published = {column.name: (column.type_oid, column.typmod) for column in table.columns}
    alive = [(a.attnum, a.name, a.type_oid, a.typmod) for a in attributes if a.name is not None]
    if any(published.pop(name, (oid, typmod)) != (oid, typmod) for _, name, oid, typmod in alive) or published:
        return []
    if table.last_attnum and any(attnum > table.last_attnum for attnum, *_ in alive):
        return []
    names = {column.name for column in table.columns}
    return [ColumnRow(*column, "live" if column[1] in names else "hidden") for column in alive]


def value_from_text(type_: ColumnType, text: bytes) -> pa.Scalar:
    """Read a value from its text, as from a message of the stream.

    Raises:
        ProtocolError: The text is not a value of the type, or the target's type cannot hold it.
    """
    relation = messages.Relation(1, "", "", "d", (messages.Column("value", type_.oid, type_.typmod, is_key=False),))
    message = pgoutput.encode(messages.Insert(1, (messages.Value(messages.ValueKind.TEXT, text),)))
    return RowMessages([message]).decode(relation, [type_])["new_0"][0]
