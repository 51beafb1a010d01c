"""A table as the publications of a subscription, taken together, publish it: its columns, row filters and identity."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    """A published column, as the server's catalog has it now."""

    name: str
    type_oid: int
    typmod: int
    in_primary_key: bool
    in_replica_identity_index: bool


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
