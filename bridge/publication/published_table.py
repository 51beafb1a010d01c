"""A table as the publications of a subscription publish it: its columns, row filters and identity; the rules by action.

`PublishedTable` is what a copy and a target need. `Entry` has the rules by which the table's changes are published: the
counterpart of pgoutput's RelationSyncEntry.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.publication.shape import AS_PUBLISHED, TEXT, identifies, masks_of
from pgbridge.bridge.runtime.errors import PublicationError, TargetError
from pgbridge.bridge.runtime.warehouse import correct_name, unsupported_name
from pgbridge.bridge.sqltext.lexer import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pgbridge.bridge.publication.publication import Action
    from pgbridge.bridge.publication.shape import Mask, Shape
    from pgbridge.bridge.publication.tables import CatalogColumn, CatalogRelation

    PlaceOf = Callable[[str, str], tuple[str, str, str]]
    """Gives the warehouse, the schema and the name of a Delta table, by the published table's schema and name."""


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    """A published column, as the server's catalog has it now, and what its values become."""

    name: str
    type_oid: int
    typmod: int
    in_primary_key: bool
    in_replica_identity_index: bool
    mask: Mask | None = None
    renamed: str | None = None

    @property
    def target_name(self) -> str:
        """Its name in the Delta table."""
        return self.name if self.renamed is None else self.renamed

    @property
    def sent_type(self) -> tuple[int, int]:
        """The type, with its modifier, of the values that leave the mask, if there is one."""
        return (self.type_oid, self.typmod) if self.mask is None else TEXT


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as the subscription's publications, taken together, publish it.

    Attributes:
        relkind: r, or p for a partitioned table published as its root.
        replica_identity: d, n, f or i (`pg_class.relreplident`).
        columns: The published columns, in the order of attnum.
        row_filters: SQL expressions; a row passes that passes one of them, and every row if there are none.
        unpublished_keys: Columns of the primary key or the replica identity's index that are not published.
        last_attnum: The highest attnum of all its columns when this was read: a column with a higher one is younger.
    """

    relid: int
    namespace: str
    name: str
    relkind: str
    replica_identity: str
    columns: tuple[PublishedColumn, ...]
    row_filters: tuple[str, ...]
    unpublished_keys: tuple[PublishedColumn, ...] = ()
    last_attnum: int = field(default=0, compare=False)

    @property
    def qualified_name(self) -> str:
        """`namespace.name`, unquoted, as in messages."""
        return f"{self.namespace}.{self.name}"

    def shaped(self, shape: Shape) -> PublishedTable:
        """The table with columns that know their masks and their names in the Delta table."""
        columns = (
            replace(column, mask=shape.mask(column.name), renamed=shape.names.get(column.name))
            for column in self.columns
        )
        return self if shape == AS_PUBLISHED else replace(self, columns=tuple(columns))

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the primary key's columns; none if one of them is not published: a part identifies no row."""
        if any(column.in_primary_key for column in self.unpublished_keys):
            return ()
        return tuple(column.name for column in self.columns if column.in_primary_key)

    @property
    def index_columns(self) -> tuple[str, ...]:
        """Names of the columns of the replica identity's index; none if one of them is not published."""
        if any(column.in_replica_identity_index for column in self.unpublished_keys):
            return ()
        return tuple(column.name for column in self.columns if column.in_replica_identity_index)

    @property
    def row_key(self) -> tuple[str, ...]:
        """Names of the columns by which a change of a row tells which: the replica identity's, if it is an index."""
        return self.index_columns if self.replica_identity == "i" else self.primary_key

    @property
    def has_identity(self) -> bool:
        """Whether the table has a replica identity with all of its columns published."""
        if self.replica_identity == "i":
            return bool(self.index_columns)
        return self.replica_identity == "f" or (self.replica_identity == "d" and bool(self.primary_key))

    @property
    def cut_identity(self) -> frozenset[str]:
        """Names of the replica identity's key columns if some of them are not published; else none."""
        if self.replica_identity not in {"d", "i"} or self.has_identity:
            return frozenset()
        every = (*self.columns, *self.unpublished_keys)
        if self.replica_identity == "i":
            return frozenset(column.name for column in every if column.in_replica_identity_index)
        return frozenset(column.name for column in every if column.in_primary_key)


def check_shape(table: PublishedTable, shape: Shape, *, is_new: bool) -> None:
    """Check that a table can have a shape, and if it is new, that it has the shape's columns.

    What a table had that was copied before may have another name now, or be gone.

    Raises:
        TargetError: There is no such column; a masked one identifies rows; or two would have one name.
    """
    columns = {column.name: column for column in (*table.columns, *table.unpublished_keys)}
    for key, names in (("mask", shape.masks), ("rename_columns", shape.names)):
        for name in names if is_new else ():
            if name not in columns:
                raise TargetError(
                    f'table "{table.qualified_name}" has no published column "{name}"',
                    hint=f'correct {key} in tables."{table.qualified_name}": {correct_name(name, columns)}',
                )
    for column in columns.values():
        if shape.mask(column.name) is not None and (column.in_primary_key or column.in_replica_identity_index):
            raise identifies(table.qualified_name, column.name)
    if (why := one_name(table.qualified_name, [column.name for column in table.columns], shape)) is not None:
        raise TargetError(why.reason, hint=why.hint)


def not_masked(table: PublishedTable, shape: Shape, before: str) -> list[str]:
    """The names that a table's mask has, and neither the table nor the mask that it was copied with before.

    They may be of columns that come later, or mistyped.

    Args:
        before: The former shape's `description`.
    """
    known = {column.name for column in (*table.columns, *table.unpublished_keys)} | masks_of(before).keys()
    return [name for name in shape.masks if name not in known]


def one_name(relation: str, columns: Iterable[str], shape: Shape) -> Unsupported | None:
    """Why a shape is not possible that gives two columns one name, in whatever case; None if it gives none."""
    seen: dict[str, str] = {}
    for column in columns if shape.names else ():
        other = seen.setdefault(folded(shape.name(column)), column)
        if other != column:
            return Unsupported(
                f'columns "{other}" and "{column}" of table "{relation}" would both be "{shape.name(column)}"',
                f'correct rename_columns in tables."{relation}"',
            )
    return None


# --- Names that Delta or a catalog does not support, and the published tables that are left out because of them. Pure.
#

_RESERVED: Final = {
    # ParquetFileFormat.ROW_INDEX_TEMPORARY_COLUMN_NAME
    "_tmp_metadata_row_index": "Spark's Parquet reader",
    # DeltaParquetFileFormat.IS_ROW_DELETED_COLUMN_NAME
    "__delta_internal_is_row_deleted": "Delta's reader of deletion vectors",
    # MergeIntoCommandBase and MergeOutputGeneration: the names of columns beside the table's
    **dict.fromkeys(
        ("_file_name_", "_row_dropped_", "_row_id_", "_source_row_present_", "_target_row_present_"), "Delta's MERGE"
    ),
}
"""Names, in lower case, of columns that Spark and Delta add to a table's while they read or change it. They do not look
whether the table has one, and then cannot read the table, or not tell both apart. Of all names in their sources these
are those with which a way to commit fails; pgbridge's own columns carry positions, not names."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why Delta cannot hold a table.

    Attributes:
        reason: One sentence.
        hint: What to change on the server; then a refresh subscribes to the table.
    """

    reason: str
    hint: str


def unsupported(
    namespace: str, table: str, names: Sequence[str], place_of: PlaceOf | None = None
) -> Unsupported | None:
    """Why Delta, or a warehouse's catalog, cannot hold a table with columns of these names; None if it can.

    Args:
        place_of: Where it would be; None if that is not looked at.
    """
    relation = f"{namespace}.{table}"
    place = place_of(namespace, table) if place_of is not None else None
    if place is not None and (why := unsupported_name(*place)) is not None:
        return Unsupported(
            f'table "{relation}" cannot be in {place[0]}: {why}',
            f'set rename in tables."{relation}", or configure a path as the warehouse',
        )
    if not names:
        return Unsupported(
            f'table "{relation}" has no published column, and a Delta table needs one',
            f"add one: ALTER TABLE {quote_identifier(namespace)}.{quote_identifier(table)} ADD COLUMN …",
        )
    for name in names:
        if (user := _RESERVED.get(name.lower())) is not None:
            return Unsupported(
                f'column "{name}" of table "{relation}" has a name that {user} uses itself',
                "rename it, set rename_columns for the table, or publish it with a column list without it",
            )
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(folded(name), name)
        if other != name:
            return Unsupported(
                f'columns "{other}" and "{name}" of table "{relation}" differ only in case, '
                "which a Delta table cannot hold",
                "rename one of them, set rename_columns for the table, or publish it with a column list without one",
            )
    return None


def unsupported_table(table: PublishedTable, place_of: PlaceOf | None = None) -> Unsupported | None:
    """As `unsupported`, of a published table."""
    return unsupported(table.namespace, table.name, [column.target_name for column in table.columns], place_of)


def unsupported_tables(
    tables: Mapping[tuple[str, str], PublishedTable],
    subscribed: Iterable[tuple[str, str]],
    place_of: PlaceOf | None = None,
) -> dict[tuple[str, str], Unsupported]:
    """The published tables that cannot be held, without those that are subscribed: they have their target."""
    unsupported_by_name = {}
    for name in sorted(tables.keys() - set(subscribed)):
        why = unsupported_table(tables[name], place_of)
        if why is not None:
            unsupported_by_name[name] = why
    return unsupported_by_name


def folded(name: str) -> str:
    """A name with its case folded as Java's `equalsIgnoreCase` does, by which Spark compares names.

    Unlike `lower()` it unites letters with the same capital, as the two small sigmas, and leaves a letter alone whose
    capital is two letters (ß).
    """
    upper = (c.upper() if len(c.upper()) == 1 else c for c in name)
    return "".join(c.lower()[0] for c in upper)


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
