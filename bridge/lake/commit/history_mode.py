"""Commits a table's changes as versions of rows in one MERGE: all of them (SCD type 2), or the last of each row.

A change becomes an event of its key; a key change becomes two, the end of the old key and the beginning of the new one.
The target's valid version of each key comes before all events. Of the events of one transaction only the last state
counts: no reader could see another one. Each state ends where the next one of its key begins.

An unchanged TOAST value, and a column that the stream does not carry, is the one of the version before. After a key
change that is a version of the old key.

An UPDATE of a row that the target does not have is left out, as in the mirror, also if it changes the key. An INSERT of
a row that it has ends the version that was valid: conflicts are not detected.

Soft deletes keep of all these versions the last of each key, whether it is valid or has ended. So which rows there are
does not depend on how transactions were batched.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window, WindowSpec, functions as F

from pgbridge.bridge.effects.events import DELETE, INSERT, NO_OLD, TRUNCATE, UPDATE
from pgbridge.bridge.lake import forms, location, retry, schema, source
from pgbridge.bridge.lake.commit.bag import stored_identity
from pgbridge.bridge.lake.writes import append_rows, merge_into
from pgbridge.bridge.targets.location import quoted, sql_name
from pgbridge.bridge.targets.target import added_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgbridge.bridge.batch.batch import TableChanges
    from pgbridge.bridge.targets.filled import Filling
    from pgbridge.bridge.targets.target import Mode, Target, TargetColumn

_THERE, _BEGIN, _CHANGE, _END = range(4)
"""The kinds of events: the target has the row; it begins, changes, or ends."""

_BEFORE_ALL: Final = -1
_NUMBER: Final = "the number of the deleted row among those with its key"


def apply_versions(spark: SparkSession, changes: TableChanges) -> None:
    """Commit one table's changes as versions.

    Args:
        changes: Changes of a target whose rows have versions. Without a key they are INSERTs and TRUNCATEs.

    Raises:
        PySparkException, Py4JError: The commit failed (see `bridge.lake`).
    """
    if changes.empty:
        return  # only its columns have changed
    columns, key = changes.columns, changes.key
    frame = schema.stored_changes(source.as_frame(spark, changes.changes), columns)
    if any(field.filled == "default" for field in changes.target.schema):
        frame = _with_defaults(frame, columns, location.filled_of(spark, changes.target.path))
    table = _Versions(spark, changes.target, columns, key, frame)
    truncates = _truncates(frame) if _may_truncate(changes) else []
    events = table.events(truncated=bool(truncates))
    looked_up = source.checkpointed(events) if changes.changes_keys else None
    if looked_up is not None:
        events = table.without_missing(looked_up)
    if changes.needs_fold:
        events = table.with_moved_values(events)
    versions = table.versions(table.resolved(events))
    if looked_up is not None:
        versions = table.unless_changed(versions, looked_up)
    if not key and not truncates:
        append_rows(versions.filter("NOT close").select(*table.inserted()), table.path)
        return
    merge_into(versions, table.path, lambda view: table.statement(view, min(truncates, default=None)))


def _with_defaults(frame: DataFrame, columns: Sequence[TargetColumn], filled: Mapping[str, Filling]) -> DataFrame:
    """Give new rows the DEFAULT of columns that only the target has."""
    own = {i: column for i, column in enumerate(columns) if column.type.oid == 0}
    defaults = {
        f"new_{i}": F.expr(filled[column.name].default).cast(schema.spark_type(column.type.arrow))
        for i, column in own.items()
        if filled[column.name].default and not schema.is_variant(column)
    }
    if not defaults:  # Spark Connect takes no empty withColumns
        return frame
    born = F.col("op") == INSERT
    return frame.withColumns({name: F.when(born, value).otherwise(F.col(name)) for name, value in defaults.items()})


def _truncates(frame: DataFrame) -> list[tuple[int, int]]:
    """Commit LSN and commit time, in microseconds since 1970, of each TRUNCATE."""
    rows = frame.filter(F.col("op") == TRUNCATE).select("commit_lsn", F.unix_micros("commit_time")).collect()
    return [(int(lsn), int(time_us)) for lsn, time_us in rows]


def _may_truncate(changes: TableChanges) -> bool:
    """Whether there may be TRUNCATEs."""
    return bool(pc.any(pc.equal(changes.changes["op"], TRUNCATE), min_count=0).as_py())


class _Versions:
    """A table of versions and the changes to it.

    Args:
        key: Positions of the key's columns; without any, each change is a row of its own.

    Attributes:
        toast: Positions of the columns that may be as in the version before.
    """

    def __init__(
        self,
        spark: SparkSession,
        target: Target,
        columns: tuple[TargetColumn, ...],
        key: tuple[int, ...],
        frame: DataFrame,
    ) -> None:
        self.path = target.path
        self._mode: Mode = target.mode
        self._added = added_names(target.mode)
        self.toast = [i for i in range(len(columns)) if f"unchanged_{i}" in frame.columns]
        self._spark = spark
        self._columns = columns
        self._key = key
        self._frame = frame
        self._keys = [f"key_{k}" for k in range(len(key) or 2)]

    def events(self, *, truncated: bool) -> DataFrame:
        """All events: key, `at` (their order), the commit's LSN and time, `kind`, `moved`, and the values of the row.

        `new_<i>` has a value, and for columns in `toast`, `known_<i>` a struct of it, NULL if it is not known.
        """
        frame, has_old = self._frame, any(name.startswith("old_") for name in self._frame.columns)
        op = F.col("op")
        moved = F.lit(False)
        if has_old and self._key:
            differs = reduce(or_, (~F.col(f"old_{k}").eqNullSafe(F.col(f"new_{k}")) for k in self._key))
            moved = (op == UPDATE) & (F.col("old") != NO_OLD) & differs
        changed = frame.filter(op != TRUNCATE)
        kind = F.when(op == DELETE, _END).when((op == INSERT) | moved, _BEGIN).otherwise(_CHANGE)
        keyed = self._key_columns(F.when(op == DELETE, "old").otherwise("new"), has_old=has_old)
        events = changed.select(*keyed, *self._position(1), kind.alias("kind"), moved.alias("moved"), *self._values())
        if has_old and self._key:
            left = self._key_columns(F.lit("old"), has_old=True)
            nothing = self._values(known=False)
            ends = changed.filter(moved).select(
                *left, *self._position(0), F.lit(_END).alias("kind"), F.lit(True).alias("moved"), *nothing
            )
            events = events.unionByName(ends)
        keys = events.select(*self._keys).distinct()
        if truncated:
            emptied = frame.filter(op == TRUNCATE).select(*self._position(1), *self._values(known=False))
            ends = keys.crossJoin(emptied).withColumns({"kind": F.lit(_END), "moved": F.lit(False)})
            events = events.unionByName(ends)
        return events.unionByName(self._there(keys)) if self._key else events

    def _key_columns(self, image: Column, *, has_old: bool) -> list[Column]:
        if not self._key:
            return [F.col("commit_lsn").alias("key_0"), F.col("ordinal").alias("key_1")]
        return [
            (
                F.when(image == "old", F.col(f"old_{k}")).otherwise(F.col(f"new_{k}")) if has_old else F.col(f"new_{k}")
            ).alias(name)
            for k, name in zip(self._key, self._keys, strict=True)
        ]

    @staticmethod
    def _position(half: int) -> list[Column]:
        """Of the two events of a key change, the end of the old key comes first."""
        at = F.struct("commit_lsn", "ordinal", F.lit(half).alias("half")).alias("at")
        return [at, F.col("commit_lsn"), F.col("commit_time")]

    def _values(self, *, known: bool = True) -> list[Column]:
        values = []
        for i in range(len(self._columns)):
            new = F.col(f"new_{i}")
            values.append(new)
            if i in self.toast:
                carried = ~F.col(f"unchanged_{i}") if known else F.lit(False)
                values.append(F.when(carried, F.struct(new.alias("value"))).alias(f"known_{i}"))
        return values

    def _there(self, keys: DataFrame) -> DataFrame:
        """The valid versions of these keys, each as the event before all others."""
        table = forms.valid_rows(self._mode, location.read_table(self._spark, self.path))
        names = [quoted(column.name) for column in self._columns]
        values = []
        for i, name in enumerate(names):
            values.append(F.col(name).alias(f"new_{i}"))
            if i in self.toast:
                values.append(F.struct(F.col(name).alias("value")).alias(f"known_{i}"))
        valid = table.select(
            *(F.col(names[k]).alias(name) for k, name in zip(self._key, self._keys, strict=True)),
            F.struct(
                F.lit(_BEFORE_ALL).cast("bigint").alias("commit_lsn"),
                F.lit(_BEFORE_ALL).cast("bigint").alias("ordinal"),
                F.lit(0).alias("half"),
            ).alias("at"),
            F.lit(_BEFORE_ALL).cast("bigint").alias("commit_lsn"),
            F.lit(None).cast("timestamp").alias("commit_time"),
            F.lit(_THERE).alias("kind"),
            F.lit(False).alias("moved"),
            *values,
        )
        return valid.join(keys, self._keys, "left_semi")

    # --- values -------------------------------------------------------------------------------------------------------

    def _in_order(self, *further: str) -> WindowSpec:
        return Window.partitionBy(*self._keys, *further).orderBy("at")

    def resolved(self, events: DataFrame) -> DataFrame:
        """The events that count, each with the values of its row after it, or at its end the last ones.

        `alive` says whether there was such a row just before the event.
        """
        order = self._in_order()
        shapes = F.when(F.col("kind") != _CHANGE, F.col("kind"))
        before = F.last(shapes, ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, -1))
        alive = F.coalesce(before != _END, F.lit(False))
        begun = F.count(F.when(F.col("kind") == _BEGIN, 1)).over(order)
        counting = events.withColumns({"alive": alive, "life": begun}).filter(
            (F.col("kind") != _CHANGE) | F.col("alive")
        )
        within = self._in_order("life")
        known = {f"known_{i}": F.last(f"known_{i}", ignorenulls=True).over(within) for i in self.toast}
        return counting.withColumns(known) if known else counting

    def without_missing(self, events: DataFrame) -> DataFrame:
        """Leave out the key changes of rows that are not there, with both their events.

        What such a change would have begun, another key change may end; so this goes on while it finds any.
        """
        while True:
            missing = self._moved_ends(events).filter(~F.col("alive")).select("end_lsn", "end_ordinal")
            if missing.isEmpty():
                return events
            of_missing = F.col("moved") & self._of_same_change()
            events = source.checkpointed(events.join(missing, of_missing, "left_anti"))

    def with_moved_values(self, events: DataFrame) -> DataFrame:
        """Give the beginnings of key changes the values that they leave as they were: the old key's, at its end.

        That key may have begun by a key change, too; so this goes on while it finds values.

        Args:
            events: A copy.
        """
        begins = F.col("moved") & (F.col("kind") == _BEGIN)
        unknown = reduce(or_, (F.col(f"known_{i}").isNull() for i in self.toast))
        left = events.filter(begins & unknown).count()
        while left:
            values = (F.col(f"known_{i}").alias(f"end_{i}") for i in self.toast)
            ends = self._moved_ends(events).select("end_lsn", "end_ordinal", *values)
            joined = events.join(ends, begins & self._of_same_change(), "left")
            known = {f"known_{i}": F.coalesce(F.col(f"known_{i}"), F.col(f"end_{i}")) for i in self.toast}
            events = source.checkpointed(joined.withColumns(known).select(*events.columns))
            before, left = left, events.filter(begins & unknown).count()
            if left == before:
                break  # after an INSERT that lacks them it would never end
        return events

    def _moved_ends(self, events: DataFrame) -> DataFrame:
        """The ends of key changes, as `resolved`; `end_lsn` and `end_ordinal` say of which change."""
        ends = self.resolved(events).filter(F.col("moved") & (F.col("kind") == _END))
        return ends.withColumns({"end_lsn": F.col("at.commit_lsn"), "end_ordinal": F.col("at.ordinal")})

    @staticmethod
    def _of_same_change() -> Column:
        return (F.col("at.commit_lsn") == F.col("end_lsn")) & (F.col("at.ordinal") == F.col("end_ordinal"))

    def unless_changed(self, versions: DataFrame, events: DataFrame) -> DataFrame:
        """Versions that are not committed if the valid ones which the target had among these events have changed.

        Args:
            events: A copy of all events.
        """
        there = F.col("kind") == _THERE
        values = [F.expr(stored_identity(f"new_{i}", self._columns[i])).alias(f"new_{i}") for i in self.toast]
        keys = events.filter(~there).select(*self._keys).distinct()
        looked_up = events.filter(there).select(*self._keys, *values)
        return retry.unless_changed(versions, looked_up, self._there(keys).select(*self._keys, *values))

    # --- versions -----------------------------------------------------------------------------------------------------

    def versions(self, events: DataFrame) -> DataFrame:
        """The rows that the MERGE inserts, and (`close`) the valid versions that it ends."""
        latest = F.row_number().over(Window.partitionBy(*self._keys, "commit_lsn").orderBy(F.col("at").desc()))
        states = events.withColumn("latest", latest).filter("latest = 1")
        order = Window.partitionBy(*self._keys).orderBy("commit_lsn")
        from_lsn, to_lsn, from_, to = self._added
        chained = states.select(
            *self._keys,
            F.col("kind"),
            *(
                F.col(f"known_{i}.value" if i in self.toast else f"new_{i}").alias(f"new_{i}")
                for i in range(len(self._columns))
            ),
            F.col("commit_lsn").alias(from_lsn),
            F.lead("commit_lsn").over(order).alias(to_lsn),
            F.col("commit_time").alias(from_),
            F.lead("commit_time").over(order).alias(to),
        )
        close = F.col("kind") == _THERE
        counts = F.col("kind").isin(_BEGIN, _CHANGE) | (close & F.col(to_lsn).isNotNull())
        versions = chained.filter(counts).withColumn("close", close).drop("kind")
        if not self._last_only:
            return versions
        last = F.row_number().over(Window.partitionBy(*self._keys).orderBy(F.col(from_lsn).desc()))
        kept = versions.withColumn("last", last).filter("last = 1").drop("last")
        # each comes a second time, for the deleted rows that it takes the place of
        return kept.withColumn("clear", F.explode(F.array(F.lit(False), F.lit(True))))

    @property
    def _last_only(self) -> bool:
        return self._mode == "soft_deletes" and bool(self._key)

    def inserted(self) -> list[Column]:
        """The columns of new rows, as the table has them."""
        values = [F.col(f"new_{i}").alias(column.name) for i, column in enumerate(self._columns)]
        return [*values, *map(F.col, self._added)]

    def statement(self, view: str, truncate: tuple[int, int] | None) -> str:
        """The MERGE statement.

        Args:
            truncate: The first TRUNCATE, which ends the versions of all other keys: its commit LSN and time.
        """
        _, to_lsn, _, to = self._added
        names = [quoted(column.name) for column in self._columns]
        matching = [f"t.{names[k]} = s.{name}" for k, name in zip(self._key, self._keys, strict=False)]
        values = dict(zip(names, (f"s.new_{i}" for i in range(len(names))), strict=True))
        values |= {name: f"s.{name}" for name in self._added}
        ends = f"UPDATE SET t.{to_lsn} = s.{to_lsn}, t.{to} = s.{to}"
        if self._last_only:
            matching.append(f"s.clear = (t.{to_lsn} IS NOT NULL)")
            clauses = [
                "WHEN MATCHED AND s.clear THEN DELETE",
                f"WHEN MATCHED AND s.close THEN {ends}",
                f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = {value}' for name, value in values.items())}",
            ]
        else:
            matching += ["s.close", f"t.{to_lsn} IS NULL"]
            clauses = [f"WHEN MATCHED THEN {ends}"]
        is_new = f"NOT s.close{' AND NOT s.clear' if self._last_only else ''}"
        clauses.append(
            f"WHEN NOT MATCHED AND {is_new} THEN INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
        )
        if truncate is not None:
            lsn, time_us = truncate
            clauses.append(
                f"WHEN NOT MATCHED BY SOURCE AND t.{to_lsn} IS NULL "
                f"THEN UPDATE SET t.{to_lsn} = {lsn}, t.{to} = TIMESTAMP_MICROS({time_us})"
            )
        condition = " AND ".join(matching)
        return f"MERGE INTO {sql_name(self.path)} AS t USING {view} AS s ON {condition} {' '.join(clauses)}"


def with_deleted_rows(rows: DataFrame, path: str, key: Sequence[str], snapshot_lsn: int) -> DataFrame:
    """The rows of a copy into a table of soft deletes, with those that are deleted there or must have been by now.

    Args:
        rows: As `forms.copied_rows_as` gives them. They are read once.
        key: The key's columns. Without any, or without values of them, the rows that are there are replaced, and only
            deleted ones stay.
        snapshot_lsn: The rows that the copy lacks were deleted before it.
    """
    spark, names = rows.sparkSession, rows.columns
    _, to_lsn, _, _ = added_names("soft_deletes")
    rows = source.checkpointed(rows)
    there = location.read_table(spark, path)
    # columns that only the table has: deleted rows keep their values, Delta computes those of the other kinds
    own = {
        name: F.expr(filling.default or "NULL").cast(there.schema[name].dataType)
        for name, filling in location.filled_of(spark, path).items()
        if name not in names and filling.how in {"null", "default"}
    }
    # of a row from before a column of the key was added, nothing tells whether the copy has it
    has_key = reduce(and_, (F.col(quoted(name)).isNotNull() for name in key), F.lit(bool(key)))
    left = (there.join(rows, list(key), "left_anti") if key else there).filter(has_key | F.col(to_lsn).isNotNull())
    kept = left.withColumn(to_lsn, F.coalesce(F.col(to_lsn), F.lit(snapshot_lsn - 1).cast("bigint")))
    if key:  # the table may have had another one
        last = F.row_number().over(Window.partitionBy(*map(quoted, key)).orderBy(F.col(to_lsn).desc()))
        kept = kept.withColumn(_NUMBER, last).filter((F.col(_NUMBER) == 1) | ~has_key)
    return (rows.withColumns(own) if own else rows).unionByName(kept.select([quoted(name) for name in (*names, *own)]))
