"""The targets' columns as they will be when all that was formed is applied, and how they follow the stream.

Batches are formed ahead of those that are applied: a change of a target's columns is planned when the first change
under the new definition is decoded, is counted on from then on, and is made when its batch is applied. The publisher's
catalog, which the plan also goes by, is as of now: planned again, the same definition may come to something else. So a
batch that changes columns, and was cut short, is taken back before anything is planned again, and what is known of the
columns stands in the state catalog as of the origin's LSN.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from bridge import remedies
from bridge.apply.evolution.plan import Definition, Plan, plan
from bridge.errors import TargetError
from bridge.track.rows import ColumnRow
from protocol.columns import RowMessages
from protocol.messages import Column, Insert, Relation, Value, ValueKind
from protocol.pgoutput import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import pyarrow as pa

    from bridge.apply.target.target import Target, TargetSchema
    from bridge.publication.published_table import PublishedTable
    from bridge.publication.tables import Attribute
    from protocol.values.types import ColumnType


class State(NamedTuple):
    """What is known at a point of the stream: columns by relid, targets' columns by path."""

    known: Mapping[int, tuple[ColumnRow, ...]] = MappingProxyType({})
    schemas: Mapping[str, TargetSchema] = MappingProxyType({})


class DefinitionTracker:
    """Follows the definitions of one stream.

    Args:
        subscription: For the command that is the remedy.
        known: What is known of the published tables' columns, by relid, as of the origin's LSN.
        attributes: What the publisher's catalog has of a table's columns now.
        types: Resolves (type oid, typmod).
        schema_of: Reads a Delta table's columns.
        warn: Called with a relation, what its target will not have as the server has it, and the command against it.
    """

    def __init__(
        self,
        subscription: str,
        *,
        known: Callable[[], Mapping[int, tuple[ColumnRow, ...]]],
        attributes: Callable[[int], Sequence[Attribute]],
        types: Callable[[Sequence[tuple[int, int]]], list[ColumnType]],
        schema_of: Callable[[str], TargetSchema | None],
        warn: Callable[[str, str, str], None] = lambda *_: None,
    ) -> None:
        self._subscription = subscription
        self._load = known
        self._attributes = attributes
        self._types = types
        self._schema_of = schema_of
        self._warn = warn
        self._known = dict(known())
        self._schemas: dict[str, TargetSchema] = {}
        self._opened_again = False

    @property
    def state(self) -> State:
        """What is known now."""
        return State(dict(self._known), dict(self._schemas))

    def back_to(self, state: State) -> None:
        """Forget what was planned since."""
        self._known, self._schemas = dict(state.known), dict(state.schemas)

    def open_again(self) -> None:
        """The targets were taken back to where the origin is."""
        self._known, self._schemas, self._opened_again = dict(self._load()), {}, True

    def plan(
        self,
        relation: Relation,
        types: Sequence[ColumnType],
        target: Target,
        *,
        wanted: Collection[str] | None,
        key: Collection[str],
    ) -> Plan:
        """Plan what a definition makes of its target, and count on it.

        Args:
            relation: The definition.
            types: How its columns' values are read.
            target: Where it goes.
            wanted: Names of the columns that the target shall have; None for all.
            key: Names of those that identify a row.

        Raises:
            TargetError: The target cannot follow.
            PublisherError: The publisher's catalog cannot be read.
        """
        definition = Definition(
            target.qualified_name,
            relation.columns,
            types,
            wanted,
            key,
            self._known.get(relation.relation_id, ()),
            self._attributes(relation.relation_id),
            (relation.namespace or "pg_catalog", relation.name) == (target.namespace, target.name),
            self._types,
            value_of,
        )
        remedy = remedies.resync(self._subscription, target.qualified_name)
        try:
            found = plan(definition, self._schema(target))
        except TargetError as error:
            raise TargetError(error.message, hint=error.hint or f"copy the table afresh: {remedy}") from error
        self._known[relation.relation_id] = found.known
        self._schemas[target.path] = found.schema
        for warning in found.warnings:
            self._warn(target.qualified_name, warning, remedy)
        return found

    def opened(self, target: Target) -> Target:
        """A target with its columns as they will be."""
        return replace(target, schema=self._schema(target))

    def _schema(self, target: Target) -> TargetSchema:
        schema = self._schemas.get(target.path)
        if schema is None:
            schema = (self._schema_of(target.path) if self._opened_again else None) or target.schema
            self._schemas[target.path] = schema
        return schema


def learned(before: State, after: State) -> dict[int, tuple[ColumnRow, ...]]:
    """What is known of columns that was not before, by relid."""
    return {relid: rows for relid, rows in after.known.items() if before.known.get(relid) != rows}


def columns_of(table: PublishedTable, attributes: Sequence[Attribute]) -> list[ColumnRow]:
    """What is known of a table that was just copied; nothing, if it was altered meanwhile."""
    published = {column.name: (column.type_oid, column.typmod) for column in table.columns}
    alive = [(a.attnum, a.name, a.type_oid, a.typmod) for a in attributes if a.name is not None]
    if any(published.pop(name, (oid, typmod)) != (oid, typmod) for _, name, oid, typmod in alive) or published:
        return []
    names = {column.name for column in table.columns}
    return [ColumnRow(*column, "live" if column[1] in names else "hidden") for column in alive]


def value_of(type_: ColumnType, text: str) -> pa.Scalar:
    """A value from its text, as it would stand in the stream.

    Raises:
        ProtocolError: It is none of the type, or the target's type cannot hold it.
    """
    relation = Relation(1, "", "", "d", (Column("value", type_.oid, type_.typmod, is_key=False),))
    message = encode(Insert(1, (Value(ValueKind.TEXT, text.encode()),)))
    return RowMessages([message]).decode(relation, [type_])["new_0"][0]
