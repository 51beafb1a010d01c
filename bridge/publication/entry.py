"""The rules by which one table's changes are published: the counterpart of pgoutput's RelationSyncEntry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.publication.published_table import PublishedColumn, PublishedTable
from bridge.runtime.errors import PublicationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bridge.publication.publication import Action
    from bridge.publication.tables import CatalogColumn, CatalogRelation


@dataclass(frozen=True, slots=True)
class Entry:
    """How the changes of one table are published.

    Attributes:
        source: The table whose rows change.
        target: The table they are published as: itself, or a partitioned table above it.
        publications: Names of the publications that publish it as this target; their row filters and column lists
            apply.
        actions: Everything that any publication publishes of the source. An action that none of `publications` has
            is published unfiltered, as by pgoutput.
        filters: For each published DML action the row filters, expressions over the target's columns; a row passes
            that passes one of them, and every row where there are none.
        copy_filters: The row filters of the initial copy, which disregards `publish`.
        columns: The published columns of the target, in its order.
        listed: Whether a column list names them; then a column that is added later is not published.
    """

    source: CatalogRelation
    target: CatalogRelation
    publications: tuple[str, ...]
    actions: frozenset[Action]
    filters: Mapping[Action, tuple[str, ...]]
    copy_filters: tuple[str, ...]
    columns: tuple[CatalogColumn, ...]
    listed: bool = True

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the published columns, in the target's order."""
        return tuple(column.name for column in self.columns)

    @property
    def via_root(self) -> bool:
        """Whether the changes are published as those of another table: a partitioned one above."""
        return self.source.relid != self.target.relid

    def projection(self, names: Sequence[str]) -> tuple[int, ...]:
        """Positions of the published columns among the columns of a Relation message, whose order may be another.

        Raises:
            PublicationError: The message lacks one.
        """
        positions = {name: position for position, name in enumerate(names)}
        if missing := [name for name in self.column_names if name not in positions]:
            listed = ", ".join(f'"{name}"' for name in missing)
            raise PublicationError(
                f'the stream does not carry column {listed} of table "{self.source.qualified_name}", '
                f'which publication "{self.publications[0]}" publishes',
                hint="publish the whole table on the server, or leave the column out of the definitions",
            )
        return tuple(positions[name] for name in self.column_names)

    def same_rules(self, other: Entry) -> bool:
        """Whether both sources are published alike: as the same target, with the same actions and row filters."""
        return (self.target.relid, self.actions, self.filters) == (other.target.relid, other.actions, other.filters)

    def published_table(self) -> PublishedTable:
        """The target as `Publisher.tables` describes it; the initial copy needs it."""
        target = self.target
        unpublished = (column for column in target.columns if column not in self.columns)
        return PublishedTable(
            target.relid,
            target.namespace,
            target.name,
            target.relkind,
            target.replica_identity,
            tuple(map(_published_column, self.columns)),
            self.copy_filters,
            tuple(_published_column(c) for c in unpublished if c.in_primary_key or c.in_replica_identity_index),
            max((column.attnum for column in target.columns), default=0),
        )


def _published_column(column: CatalogColumn) -> PublishedColumn:
    return PublishedColumn(
        column.name, column.type_oid, column.typmod, column.in_primary_key, column.in_replica_identity_index
    )
