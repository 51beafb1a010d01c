"""Routes the changes of a relation to their target, by name: the server has applied its publications already."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pgbridge.bridge.publication.shape import AS_PUBLISHED, Shape
from pgbridge.bridge.runtime import errors, remedies

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pgbridge.bridge.batch.range_cut import RangeCut
    from pgbridge.bridge.batch.row_filters import RowFilters, ServerFilters
    from pgbridge.bridge.evolution.alterations import Alteration
    from pgbridge.bridge.publication.replica_identity import Refusal
    from pgbridge.bridge.targets.target import Target
    from pgbridge.protocol.codec.messages import Relation
    from pgbridge.protocol.lsn import Lsn
    from pgbridge.protocol.values.value_array import Bytes


ACTIONS = frozenset({"insert", "update", "delete", "truncate"})


class Then(NamedTuple):
    """What is known of a table in a transaction that was skipped, for its replay.

    Attributes:
        operations: What each row message has become by the row filters, 0 for nothing; None if there were none.
        added: The columns that the transaction itself has added to the table.
    """

    operations: Bytes | None
    added: tuple[Alteration, ...]


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscribed table whose initial copy is complete.

    Attributes:
        lsn: The target already has the transactions that committed before it (`srsublsn`).
        primary_key: Names of the published primary key's columns: the key under REPLICA IDENTITY FULL, as it was then
            (`Definitions.with_primary_key`).
        actions: The published actions: some of insert, update, delete, truncate.
        columns: Names of the published columns; None for all that the stream has.
        filters: The row filters that Spark computes; None for none.
        cut_identity: Names of the replica identity's columns, if not all of them are published.
        relid: The published table's oid; None if unknown.
        server_filters: The row filters that a server computes; None for none. Never beside `filters`.
        within_partition: The stream's replica identity is unique within a partition of the table only, so it identifies
            none of the table's rows.
        then: What the filters have decided, in a replay; then it has no filters.
        cut: Beyond `lsn`, by range of the key: what the target already has. None for nothing.
        shape: What the target has in place of the columns. Values of masked ones are masked in the stream, as texts.
    """

    target: Target
    lsn: Lsn
    primary_key: tuple[str, ...] = ()
    actions: frozenset[str] = ACTIONS
    columns: frozenset[str] | None = None
    filters: RowFilters | None = None
    cut_identity: frozenset[str] = frozenset()
    relid: int | None = None
    server_filters: ServerFilters | None = None
    within_partition: bool = False
    then: Then | None = None
    cut: RangeCut | None = None
    shape: Shape = AS_PUBLISHED


class Followed(NamedTuple):
    """A definition that a batch's rows have come under, and the table that these went to; None if to none."""

    relation: Relation
    subscribed: Subscribed | None
    alterations: tuple[Alteration, ...]


def key_of(relation: Relation, subscribed: Subscribed) -> tuple[int, ...]:
    """Positions of the columns that identify a row: the replica identity's, or under FULL the primary key's.

    Empty if the identity is unique within a partition only; or if a column list leaves one of them out, because a part
    of a key identifies no row. Such a table has only INSERTs (`CheckCmdReplicaIdentity`). A message that was sent
    before the column list, or before a column of the key was renamed, has the whole key.
    """
    if relation.replica_identity == "f":
        names = {column.name for column in relation.columns}
        if not subscribed.primary_key or not names.issuperset(subscribed.primary_key):
            return ()
        return tuple(i for i, column in enumerate(relation.columns) if column.name in subscribed.primary_key)
    if subscribed.within_partition:
        return ()
    key = tuple(i for i, column in enumerate(relation.columns) if column.is_key)
    cut = subscribed.cut_identity.difference(column.name for column in relation.columns)
    return () if cut and len(key) < len(subscribed.cut_identity) else key


class RenamedTable(NamedTuple):
    """A subscribed table that has another name in the stream.

    Attributes:
        lsn: Changes before it are in the table's copy (`srsublsn`), whatever name the table had.
        error: Says that later changes cannot be applied, and what to do.
    """

    lsn: Lsn
    error: errors.TargetError


class Routes:
    """Routes each relation to the target of its name.

    Args:
        subscribed: The subscribed tables whose copy is complete, by (namespace, name).
        cut_identities: Asks the server for the tables whose replica identity is not wholly published
            (`Subscribed.cut_identity`).
        replaced: Called when another table has a subscribed table's name, as after DROP and CREATE: with that name,
            and the command that copies the table afresh.
        others: Makes a subscribed table of any other one that is published, by its namespace and name: each name that
            the stream brings is a table of its own. None: such changes are ignored, and a renamed table is an error.
        waiting: The names of the subscription's tables that wait for their resync, by relid.

    Attributes:
        names: The names of subscribed and waiting tables, by the relid that each has in the stream.
        may_filter: Whether rows may be filtered here.
    """

    may_filter: ClassVar[bool] = False

    def __init__(
        self,
        subscribed: Mapping[tuple[str, str], Subscribed],
        cut_identities: Callable[[], Mapping[tuple[str, str], frozenset[str]]] | None = None,
        *,
        subscription: str = "",
        changed: Callable[[], None] = lambda: None,
        others: Callable[[str, str], Subscribed] | None = None,
        waiting: Mapping[int, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        self.subscribed = subscribed
        self._others = others
        self._cut_identities = cut_identities
        self._keys: dict[int, frozenset[str]] = {}
        self._subscription = subscription
        self._changed = changed
        self.names = dict(waiting)
        self.names |= {table.relid: name for name, table in subscribed.items() if table.relid is not None}

    def begin(self) -> None:
        """Forget what transactions have announced: a batch begins, whose transactions are decoded from their start."""

    def announced(self, relation: Relation, xid: int, *, again: Callable[[], bool]) -> None:
        """A transaction announces a relation; `again` says whether its own ALTER TABLE can have come before."""

    def at(self, relids: Collection[int], xid: int, lsn: Lsn, *, truncated: bool = False) -> None:
        """What is asked next is about a transaction that commits at `lsn`, and about its TRUNCATE or rows of these."""

    def route(self, relation: Relation) -> Subscribed | None:
        """The subscribed table that a relation's changes go to; None for no table.

        Raises:
            TargetError: They cannot be applied exactly.
        """
        if self._cut_identities is not None and self._key_shrank(relation):
            cut = self._cut_identities()
            self.subscribed = {
                name: replace(table, cut_identity=cut.get(name, frozenset())) for name, table in self.subscribed.items()
            }
        return self.table(*name_of(relation))

    @property
    def every_change(self) -> bool:
        """Whether there is a table of which every change is kept."""
        return self._others is not None or any(table.target.every_change for table in self.subscribed.values())

    def table(self, namespace: str, name: str) -> Subscribed | None:
        """The subscribed table of a name."""
        table = self.subscribed.get((namespace, name))
        return self._others(namespace, name) if table is None and self._others is not None else table

    def copy_afresh(self, relation: str) -> str:
        """The command that copies a table afresh."""
        return remedies.resync(self._subscription, relation)

    def _key_shrank(self, relation: Relation) -> bool:
        """Whether the key has fewer columns than before: it is another key, or a column is no longer published."""
        key = frozenset(column.name for column in relation.columns if column.is_key)
        before = self._keys.get(relation.relation_id, key)
        self._keys[relation.relation_id] = key
        return key < before

    def renamed_table(self, relation: Relation) -> RenamedTable | None:
        """The subscribed table that now has this relation's name; None if it has its own. PostgreSQL stops there.

        One that took the name of another table is that table's, too: rows of both come under one name.
        """
        return self._renamed_from(relation.relation_id, name_of(relation))

    def _renamed_from(self, relid: int, name: tuple[str, str]) -> RenamedTable | None:
        ours = self.names.get(relid, name)
        tables = [table for table in (ours, name) if table in self.subscribed]
        if self._others is not None or ours == name or not tables:
            return None
        old, new = ".".join(ours), ".".join(name)
        if name in self.subscribed:
            message = f'table "{old}" now has the name of another table of the subscription, "{new}"'
            hint = f"copy both afresh: {remedies.resync(self._subscription, old, new)}"
        else:
            message = f'logical replication target relation "{new}" does not exist'
            hint = (
                f'table "{old}" was renamed. To copy it afresh under its new name, run: '
                f"{remedies.refresh(self._subscription)}; or rename it back, and run: "
                f"{remedies.resync(self._subscription, old)}"
            )
        return RenamedTable(self.subscribed[tables[0]].lsn, errors.TargetError(message, hint=hint))

    def remember_relid(self, relation: Relation) -> None:
        """Note the relid of a relation whose changes count; it may differ from the one that its name had before."""
        name = name_of(relation)
        if relation.relation_id in self.names or name not in self.subscribed or self._others is not None:
            return
        before = [relid for relid, ours in self.names.items() if ours == name]
        for relid in before:
            del self.names[relid]
        self.names[relation.relation_id] = name
        if before:
            self._changed()

    def truncated(self, relations: Sequence[Relation]) -> list[Subscribed]:
        """The subscribed tables that one TRUNCATE message empties."""
        return [table for relation in relations if (table := self.route(relation)) is not None]

    def identity_refusals(
        self, relation: Relation, definition_of: Callable[[int], Relation | None]
    ) -> Sequence[Refusal]:
        """Why UPDATEs or DELETEs of a relation cannot be applied exactly: their old tuple lacks a column.

        `definition_of` gives the last definition of an oid that the stream has announced.
        """
        del relation, definition_of
        return ()

    def reread_catalog(self) -> None:
        """Called when the server announces a relation again, because something about the table has changed."""
        self._changed()


def name_of(relation: Relation) -> tuple[str, str]:
    """(namespace, name). In the message, the namespace is empty for pg_catalog."""
    return relation.namespace or "pg_catalog", relation.name
