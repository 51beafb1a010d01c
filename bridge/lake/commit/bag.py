"""A target without a key, and its Delta table as Spark reads and changes it (see `bridge.lake.commit.merge_bag`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F

from pgbridge.bridge.lake.location import read_table
from pgbridge.bridge.lake.schema import canonical, is_variant, stored, stored_column
from pgbridge.bridge.lake.source import constant
from pgbridge.bridge.lake.writes import merge_into
from pgbridge.bridge.targets.location import quoted, sql_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgbridge.bridge.targets.target import TargetColumn


@dataclass(frozen=True, slots=True)
class Bag:
    """A target whose rows have no key.

    Attributes:
        is_small: Whether the changes are broadcast to look up the target's rows; else Spark sorts both by all columns.
        fills: The values of new rows in columns that are not replicated; Delta fills the others.
        generated: Names of columns that Delta computes from the others.
    """

    path: str
    columns: tuple[TargetColumn, ...]
    is_small: bool = False
    fills: Mapping[str, pa.Scalar] = field(default_factory=dict)
    generated: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """The replicated columns' names."""
        return [column.name for column in self.columns]

    @property
    def places(self) -> range:
        """The replicated columns' positions."""
        return range(len(self.columns))

    def identities(self, values: Sequence[str]) -> list[Column]:
        """`k_<i>`, which are equal exactly if the values are the same, for expressions of values by position.

        Of a document they have the text that its VARIANT has.
        """
        texts = [canonical(values[i], column) for i, column in enumerate(self.columns)]
        return [
            F.expr(identity(text, c.type.arrow)).alias(f"k_{i}")
            for i, (text, c) in enumerate(zip(texts, self.columns, strict=True))
        ]

    def stored_identities(self) -> list[Column]:
        """The same for the rows of the Delta table."""
        return [F.expr(stored_identity(quoted(c.name), c)).alias(f"k_{i}") for i, c in enumerate(self.columns)]

    def stored_values(self) -> list[Column]:
        """Rows `v_<i>` as the Delta table stores them, under these names."""
        return [F.expr(stored(f"v_{i}", column)).alias(f"v_{i}") for i, column in enumerate(self.columns)]

    def same(self, alias: str, other: str) -> Column:
        """The condition that the rows of two aliases are equal."""
        return reduce(and_, (F.col(f"{alias}.k_{i}").eqNullSafe(F.col(f"{other}.k_{i}")) for i in self.places))

    def small(self, frame: DataFrame) -> DataFrame:
        """Mark the side of a join that comes from the changes for broadcast, if it is small."""
        return F.broadcast(frame) if self.is_small else frame


def identity(value: str, arrow: pa.DataType) -> str:
    """An expression that is equal exactly if the values are the same; by Spark's `=`, 0.0 is -0.0."""
    if pa.types.is_floating(arrow):
        return f"CAST({value} AS STRING)"
    if pa.types.is_list(arrow) and pa.types.is_floating(arrow.value_type):
        return f"transform({value}, x -> CAST(x AS STRING))"
    return value


def stored_identity(value: str, column: TargetColumn) -> str:
    """`identity` of a value as the Delta table stores it; Spark compares no VARIANT."""
    return f"to_json({value})" if is_variant(column) else identity(value, column.type.arrow)


@dataclass(frozen=True, slots=True)
class BagTable:
    """A bag's Delta table before the changes.

    Attributes:
        rows: `c_<j>` by position in the table, and `k_<i>`.
        own: Names of the columns that are not replicated, nor generated, by position in the table.
    """

    bag: Bag
    rows: DataFrame
    names: list[str]
    own: Mapping[int, str]

    @classmethod
    def read(cls, spark: SparkSession, bag: Bag) -> Self:
        """Read the table."""
        rows = read_table(spark, bag.path)
        columns = [F.col(quoted(name)).alias(f"c_{j}") for j, name in enumerate(rows.columns)]
        keyed = rows.select(*columns, *bag.stored_identities())
        others = bag.generated.union(bag.names)
        own = {j: name for j, name in enumerate(rows.columns) if name not in others}
        return cls(bag, keyed, rows.columns, own)

    def deletes(self, rows: DataFrame) -> DataFrame:
        """The part of a MERGE that deletes all copies of rows `v_<i>`."""
        nothing = (F.lit(None).cast(self.rows.schema[f"c_{j}"].dataType).alias(f"c_{j}") for j in self.own)
        return rows.select(F.lit("delete").alias("action"), *self.bag.stored_values(), *nothing)

    def puts(self, rows: DataFrame) -> DataFrame:
        """The part of a MERGE that inserts new rows `v_<i>`."""
        return rows.select(F.lit("put").alias("action"), *self.bag.stored_values(), *self._fills())

    @property
    def filled(self) -> dict[int, str]:
        """Those of `own` that new rows have a value for."""
        return {j: name for j, name in self.own.items() if name in self.bag.fills}

    def _fills(self) -> list[Column]:
        return [
            constant(self.bag.fills.get(name), self.rows.schema[f"c_{j}"].dataType).alias(f"c_{j}")
            for j, name in self.own.items()
        ]

    def either(self, there: str, deletes: Column) -> list[Column]:
        """The values of a MERGE's source: of the target's rows, or of new rows `v_<i>`, or of those to delete.

        Args:
            there: The column that says whether it is a row of the target, with `c_<j>`.
            deletes: Whether the row is to be deleted.
        """
        place = {name: j for j, name in enumerate(self.names)}
        ours, theirs = self.bag.stored_values(), [f"c_{place[name]}" for name in self.bag.names]
        values = [
            F.when(F.col(there), F.col(column)).otherwise(new).alias(f"v_{i}")
            for i, (column, new) in enumerate(zip(theirs, ours, strict=True))
        ]
        own = zip(self.own_columns(), self._fills(), strict=True)
        return values + [F.when(F.col(there), F.col(name)).when(~deletes, fill).alias(name) for name, fill in own]

    def among(self, wanted: DataFrame) -> DataFrame:
        """The target's rows that equal one of these, `k_<i>`."""
        return self.rows.alias("t").join(self.bag.small(wanted).alias("s"), self.bag.same("t", "s"), "left_semi")

    def own_columns(self) -> list[str]:
        """The names `c_<j>` of the columns that are not replicated."""
        return [f"c_{j}" for j in self.own]

    def copies(self, wanted: DataFrame) -> DataFrame:
        """The target's rows that equal one of `wanted`, with its columns, and `copy`, which numbers equal rows."""
        keys = [f"k_{i}" for i in self.bag.places]
        joined = self.rows.alias("t").join(self.bag.small(wanted).alias("s"), self.bag.same("t", "s"))
        others = [name for name in wanted.columns if name not in keys]
        order = Window.partitionBy(*keys).orderBy(F.lit(0))
        return joined.select("t.*", *(f"s.{name}" for name in others)).withColumn("copy", F.row_number().over(order))

    def named(self, rows: DataFrame) -> DataFrame:
        """New rows `v_<i>` under the table's column names."""
        values = [stored_column(f"v_{i}", column) for i, column in enumerate(self.bag.columns)]
        fills = {j: fill for j, fill in zip(self.own, self._fills(), strict=True) if j in self.filled}
        return rows.select(*values, *(fill.alias(self.own[j]) for j, fill in fills.items()))

    def merge(self, source: DataFrame) -> bool:
        """Commit deletes and puts; False if the table has the batch already."""
        merged = merge_into(source, self.bag.path, lambda view: merge_statement(view, self.bag, self.own, self.filled))
        return merged is not None


def merge_statement(view: str, bag: Bag, own: Mapping[int, str], filled: Mapping[int, str]) -> str:
    """The MERGE: a row of the source with action `delete` deletes all equal rows; one with `keep` or `put` inserts one.

    A row that is kept has the target's `own` columns, one that is put those that are `filled`.
    """
    same = " AND ".join(
        f"{stored_identity('t.' + quoted(column.name), column)} <=> {stored_identity(f's.v_{i}', column)}"
        for i, column in enumerate(bag.columns)
    )

    def insert(action: str, others: Mapping[int, str]) -> str:
        names = ", ".join(quoted(name) for name in (*bag.names, *others.values()))
        values = ", ".join([*(f"s.v_{i}" for i in bag.places), *(f"s.c_{j}" for j in others)])
        return f"WHEN NOT MATCHED AND s.action = '{action}' THEN INSERT ({names}) VALUES ({values})"

    return (
        f"MERGE INTO {sql_name(bag.path)} AS t USING {view} AS s ON s.action = 'delete' AND {same} "
        f"WHEN MATCHED THEN DELETE {insert('keep', own)} {insert('put', filled)}"
    )
