"""A target whose rows have a key: how Spark finds a row by it, and which effects meet a row that they must not meet.

Conflicts are found by the commit itself, not before it. An existing row with the key of a new one makes the commit
fail, unless Delta leaves it out because it has the batch already; missing rows show in the commit's row counts. Only
then are the effects compared with the rows that there were.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, functions as F

from pgbridge.bridge.effects.conflicts import (
    DELETE_MISSING,
    INSERT_EXISTS,
    KEPT_KEYS,
    UPDATE_EXISTS,
    UPDATE_MISSING,
    Tally,
)
from pgbridge.bridge.effects.events import ARRIVED, BEGINS, INSERTED
from pgbridge.bridge.lake import commit_errors, schema
from pgbridge.bridge.targets.location import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pgbridge.bridge.batch.batch import TableChanges
    from pgbridge.bridge.effects.net_effect import NetEffect
    from pgbridge.bridge.targets.target import TargetColumn


@dataclass(frozen=True, slots=True)
class KeyedTarget:
    """A target whose rows have a key.

    Attributes:
        relation: `namespace.name`.
        key: Positions of the key's columns.
        overwrite: An existing row with the key of a new one is overwritten (`conflict = "apply_remote"`).
        keeps_beside: The Delta table has columns beside these whose values stay with their row (`Target.keeps_beside`).
        hides_metadata: It has a column of the name `bridge.lake.schema.METADATA`.
    """

    relation: str
    path: str
    columns: tuple[TargetColumn, ...]
    key: tuple[int, ...]
    overwrite: bool = False
    keeps_beside: bool = False
    hides_metadata: bool = False

    @classmethod
    def of(cls, changes: TableChanges, *, overwrite: bool) -> Self:
        """The target of changes, for which it has a key."""
        target = changes.target
        beside = target.keeps_beside(changes.columns)
        hides = schema.METADATA in {field.name for field in target.schema} | {column.name for column in changes.columns}
        return cls(target.qualified_name, target.path, changes.columns, changes.key, overwrite, beside, hides)

    @property
    def names(self) -> list[str]:
        """The replicated columns' names."""
        return [column.name for column in self.columns]

    def holds(self, names: Iterable[str]) -> bool:
        """Whether all columns of these names are replicated."""
        return set(names) <= set(self.names)

    @property
    def key_names(self) -> list[str]:
        """The key's columns."""
        return [self.columns[k].name for k in self.key]

    def columns_of(self, effect: NetEffect) -> list[str]:
        """Where a net effect has the keys that it is on, and the replicated columns' new values."""
        matches = [f"match_{k}" for k in self.key] if effect.shape.moved else []
        return matches + self.values_of(effect)

    def values_of(self, effect: NetEffect) -> list[str]:
        """Where a net effect has the replicated columns' new values: if no key changes, those of the key once only."""
        once = () if effect.shape.moved else self.key
        return [f"match_{i}" if i in once else f"new_{i}" for i in range(len(self.columns))]

    def source_of(self, effect: NetEffect) -> pa.Table:
        """What a query reads that writes rows anew: `columns_of`, `ended`, `begins`, and what of a row is unchanged."""
        effects = effect.table
        unchanged = [name for name in effects.column_names if name.startswith("unchanged_")]
        marks = [name for name in unchanged if pc.any(effects[name]).as_py()]
        begins = pa.array(np.isin(effects["first"].to_numpy(), BEGINS))
        return effects.select([*self.columns_of(effect), "ended", *marks]).append_column("begins", begins)

    def keys_of(self, rows: DataFrame) -> DataFrame:
        """The keys of rows of the target, in columns `t_<k>`."""
        return rows.select(*(F.col(quoted(self.columns[k].name)).alias(f"t_{k}") for k in self.key))

    def found(self, prefix: str) -> Column:
        """The condition that the columns `t_<k>` have the key in the columns `<prefix>_<k>`."""
        return reduce(and_, (F.col(f"t_{k}") == F.col(f"{prefix}_{k}") for k in self.key))

    def raising(self, name: str, prefix: str) -> str:
        """An expression, of the type of the key's first column, that raises a conflict with the key as its values."""
        columns = [(self.columns[k].name, f"{prefix}_{k}", self.columns[k].type.arrow) for k in self.key]
        return f"CAST({commit_errors.raise_conflict(name, self.relation, columns)} AS {self.key_type})"

    @property
    def key_type(self) -> str:
        """The type of the key's first column, as Spark's SQL has it."""
        return schema.spark_type(self.columns[self.key[0]].type.arrow).simpleString()


def conflicts(effects: DataFrame, before: DataFrame, keyed: KeyedTarget) -> Tally:
    """Count conflicts: compare effects with the keys that the target had before them.

    Args:
        effects: `match_<k>`, `first`, `updates` and `deletes` (see `bridge.effects.net_effect`).
    """
    here = F.col(f"t_{keyed.key[0]}").isNotNull()
    old = ~F.col("first").isin(*BEGINS)
    number = {
        INSERT_EXISTS: F.when(here & (F.col("first") == INSERTED), 1),
        UPDATE_EXISTS: F.when(here & (F.col("first") == ARRIVED), 1),
        UPDATE_MISSING: F.when(~here & old, F.col("updates")),
        DELETE_MISSING: F.when(~here & old, F.col("deletes")),
    }
    rows = effects.join(before.distinct(), keyed.found("match"), "left").select(
        *(f"match_{k}" for k in keyed.key),
        *(F.coalesce(count, F.lit(0)).alias(name) for name, count in number.items()),
    )
    tally = Tally(rows.agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in number)).collect()[0].asDict())
    for name, count in tally.counts.items():
        if count:
            kept = rows.filter(F.col(name) > 0).limit(KEPT_KEYS).select(*(f"match_{k}" for k in keyed.key))
            tally.keys[name] = [tuple(row.values()) for row in kept.toArrow().to_pylist()]
    return tally
