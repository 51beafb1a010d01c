"""The changes of a batch to one target, as one Arrow table.

Columns carry positions, not names, so that no column's name can collide with the bridge's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.batch.row_filters import PASSED
from bridge.apply.effects.operations import INSERT, KEY_TUPLE, OLD_TUPLE, UPDATE
from bridge.changes.schema import POSITION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bridge.apply.batch.row_filters import RowFilters
    from bridge.apply.effects.net_effect import NetEffect
    from bridge.apply.evolution.alterations import Alteration
    from bridge.apply.target.target import Target, TargetColumn


class Stage(Protocol):
    """Holds changes outside of Python's memory."""

    def put(self, table: pa.Table) -> Any:
        """Store rows; returns a DataFrame of them that does not need `table` any more."""

    def union(self, pieces: Sequence[tuple[Any, list[Renaming]]]) -> Any:
        """One DataFrame of all pieces, the columns of each renamed."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Changes that Spark holds, in the columns of `TableChanges.changes`: memory would not hold all of the batch's."""

    frame: Any
    column_names: list[str]
    inserts_only: bool
    needs_fold: bool
    key_changes: bool = False


@dataclass(slots=True)
class TableChanges:
    """The changes of a batch to one target that one commit applies, in order.

    While they are collected: the changes under one definition of the published table.

    Attributes:
        columns: The replicated columns, and columns that only row filters look at. Positions count them from 0.
        key: Positions of the columns that identify a row; empty where none do.
        changes: Arrow table: `seq` int64 (position in the batch, ascending), `op` int16 (`INSERT`, `UPDATE`,
            `DELETE`), `old` int16 (`NO_OLD`, `KEY_TUPLE`, `OLD_TUPLE`), `new_<i>` and `old_<i>` in the column's
            type (NULL where the message has no such tuple), `unchanged_<i>` bool for columns with at least one
            unchanged TOAST value that the stream does not carry, `unheld_<i>` and `oldunheld_<i>` as in
            `bridge.apply.delta.unrepresentable`, and `passed` bool if a server's filters have let some pass, whose `op`
            is what they become. Where every change is kept also the columns of
            `bridge.changes.schema.POSITION`, `old_<i>` of all columns, and rows with `op` `TRUNCATE`. Or `Staged`, with
            the same columns.
        truncated: Whether the target is emptied first.
        filters: The row filters that Spark computes; None where every change counts.
        published: Names of the replicated columns; None for all.
        alterations: Changes of the target's columns that come first; `target` has the columns after them.
        lost: In how many rows a value is NULL that the stream does not carry, because an UPDATE became an INSERT.
        fills: Constants of columns that were added after these changes: new rows have them. Empty where `changes` has
            those columns.
        effect: In a joined batch, the net effect of the changes on their keys; `changes` is empty then.
    """

    target: Target
    columns: tuple[TargetColumn, ...]
    key: tuple[int, ...]
    changes: pa.Table | Staged
    truncated: bool = False
    filters: RowFilters | None = None
    published: frozenset[str] | None = None
    alterations: tuple[Alteration, ...] = ()
    lost: int = 0
    fills: Mapping[str, pa.Scalar] = field(default_factory=dict)
    effect: NetEffect | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing is left for Spark to decide: no filter, and no value that its column cannot hold."""
        found = self.changes
        if isinstance(found, Staged) or self.filters:
            return False
        if self.published is not None and not self.published.issuperset(column.name for column in self.columns):
            return False
        return not any(name.startswith(("unheld_", "oldunheld_")) for name in found.column_names)

    @property
    def foldable(self) -> bool:
        """Whether the net effect on each key can be computed here."""
        return bool(self.key) and self.settled and not self.target.every_change

    @property
    def inserts_only(self) -> bool:
        """Whether all changes are INSERTs."""
        if self.effect is not None:
            return self.effect.shape.begins_only
        return self.changes.inserts_only if isinstance(self.changes, Staged) else inserts_only(self.changes)

    @property
    def needs_fold(self) -> bool:
        """Whether a key change carries an unchanged TOAST value: Spark then has them folded change by change."""
        return self.changes.needs_fold if isinstance(self.changes, Staged) else needs_fold(self.changes, self.key)

    @property
    def key_changes(self) -> bool:
        """Whether there are UPDATEs of the key."""
        return self.changes.key_changes if isinstance(self.changes, Staged) else key_changes(self.changes, self.key)

    @property
    def commits(self) -> bool:
        """Whether applying them makes a commit: more than the table's columns may change."""
        return self.truncated or not self.empty

    @property
    def empty(self) -> bool:
        """Whether there are no changes; what is staged is never empty."""
        if self.effect is not None:
            return not len(self.effect.table)
        return not isinstance(self.changes, Staged) and not len(self.changes)


def inserts_only(changes: pa.Table) -> bool:
    """Whether all changes are INSERTs."""
    return bool((changes["op"].to_numpy() == INSERT).all())


def needs_fold(changes: pa.Table, key: Sequence[int] = ()) -> bool:
    """Whether a key change carries an unchanged TOAST value, or leaves a column that the stream lacks as it was."""
    marks = [changes[name] for name in changes.column_names if name.startswith("unchanged_")]
    if not marks or not _has_old_rows(changes):
        return False
    keyed = _keyed(changes, key)
    return any(pc.any(pc.and_(keyed, mark)).as_py() for mark in marks)


def key_changes(changes: pa.Table, key: Sequence[int]) -> bool:
    """Whether there are UPDATEs of the key (its positions)."""
    return _has_old_rows(changes) and bool(pc.any(_keyed(changes, key), min_count=0).as_py())


def _has_old_rows(changes: pa.Table) -> bool:
    """Whether there are old tuples. Mostly there are none, and this is a quick look."""
    return bool(changes["old"].to_numpy().any())


def _keyed(changes: pa.Table, key: Sequence[int]) -> pa.ChunkedArray:
    """Mark the UPDATEs of the key: those with a key tuple, and those whose whole old row has another key."""
    updates = pc.equal(changes["op"], UPDATE)
    keyed = pc.equal(changes["old"], KEY_TUPLE)
    whole = pc.equal(changes["old"], OLD_TUPLE)
    for k in key if {f"old_{k}" for k in key} <= set(changes.column_names) else ():
        old, new = changes[f"old_{k}"], changes[f"new_{k}"]
        nested = pa.types.is_nested(old.type)  # Arrow does not compare lists
        keyed = pc.or_(keyed, whole if nested else pc.and_(whole, pc.fill_null(pc.not_equal(old, new), False)))
    return pc.and_(updates, keyed)


class Renaming(NamedTuple):
    """How a column of changes comes from one under an earlier definition.

    Attributes:
        name: The column under the last definition.
        source: The column under the earlier definition; None where that lacks it.
        value: Its value where there is no source; None for NULL.
        widened: Whether the source has another type and is cast.
    """

    name: str
    source: str | None
    type: pa.DataType
    value: pa.Scalar | None = None
    widened: bool = False

    @property
    def keeps(self) -> bool:
        """Whether it marks values that the target keeps, because the earlier definition lacks the column."""
        return self.source is None and self.name.startswith("unchanged_")


def renaming(
    names: Sequence[str],
    columns: tuple[TargetColumn, ...],
    last: tuple[TargetColumn, ...],
    fills: Mapping[str, pa.Scalar] = MappingProxyType({}),
) -> list[Renaming]:
    """How the columns of changes come from those under an earlier definition.

    Without a source, `new_<i>` is its column's constant in `fills`, or NULL, and `unchanged_<i>` is true in UPDATEs.

    Args:
        names: The columns of the changes.
        columns: The table's columns under the earlier definition.
        last: The table's columns under the last definition.
        fills: Constants of columns that were added since.
    """
    positions = {column.name: i for i, column in enumerate(columns)}
    found = [Renaming(name, name, pa.int64() if name == "seq" else pa.int16()) for name in ("seq", "op", "old")]
    found += [Renaming(name, name, arrow) for name, arrow in (*POSITION, (PASSED, pa.bool_())) if name in names]
    for i, column in enumerate(last):
        here = positions.get(column.name)
        if here is None:
            value = fills.get(column.name)
            found += [
                Renaming(f"new_{i}", None, column.type.arrow, value),
                Renaming(f"unchanged_{i}", None, pa.bool_()),
            ]
            continue
        widened = not columns[here].type.arrow.equals(column.type.arrow)
        types = {"new": column.type.arrow, "old": column.type.arrow, "unchanged": pa.bool_()}
        types |= {"unheld": pa.string(), "oldunheld": pa.string()}
        found += [
            Renaming(f"{kind}_{i}", f"{kind}_{here}", type_, widened=kind in {"new", "old"} and widened)
            for kind, type_ in types.items()
            if f"{kind}_{here}" in names
        ]
    return found


def renamed(table: pa.Table, names: Sequence[Renaming]) -> pa.Table:
    """The changes with their columns under the last definition."""
    columns: dict[str, Any] = {}
    for name, source, arrow, value, widened in names:
        if source is not None:
            columns[name] = table[source].cast(arrow) if widened else table[source]
        elif name.startswith("unchanged_"):
            columns[name] = pc.equal(table["op"], UPDATE)
        elif value is not None:
            columns[name] = pa.repeat(value.cast(arrow), len(table))
        else:
            columns[name] = pa.nulls(len(table), arrow)
    return pa.table(columns)
