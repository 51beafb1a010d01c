"""Applies a transaction that was skipped to the tables as they are now, long after its turn.

Rows that the transaction inserts overwrite rows with their keys, and what it updates or deletes may have changed since:
so a preview tells first what would happen, without a commit. Each table gets a commit for each part of its changes, as
in a batch, with a stamp of the transaction, so that a replay that was cut short goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession, functions as F

from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.effects import divided, events
from pgbridge.bridge.lake import commit_errors, location, retry, schema, table, table_position
from pgbridge.bridge.lake.commit.apply_table import apply_table
from pgbridge.bridge.lake.commit.change_frame import append_changes
from pgbridge.bridge.lake.commit.conflicts import KeyedTarget
from pgbridge.bridge.lake.commit.execute import leaves_missing
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.source import arrow_source, scratch_file
from pgbridge.bridge.runtime import errors, remedies
from pgbridge.bridge.skipped.kept_transaction import KeptRoutes, KeptTransaction
from pgbridge.bridge.targets.location import quoted
from pgbridge.bridge.targets.target import Target
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pgbridge.bridge.batch.batch import TableChanges
    from pgbridge.bridge.catalog.catalog_rows import RelRow
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.effects.conflicts import Conflicts
    from pgbridge.bridge.effects.net_effect import NetEffect
    from pgbridge.protocol.values.types import ColumnType

_READY: Final = frozenset("sr")
"""The states of a table that follows the stream, or is about to."""


@dataclass(frozen=True, slots=True)
class TablePreview:
    """What the replay would do to a table.

    Attributes:
        relation: `namespace.name`.
        changes: The transaction's changes of it, by command.
        lost: In how many rows a value becomes NULL, because the stream did not carry it.
        truncated: How many rows it would lose first, by TRUNCATE; None without one.
        rows: What happens to rows; None if that is not known before, because the table has no key, or because the
            result depends on each change in turn.
    """

    relation: str
    path: str
    changes: dict[str, int]
    truncated: int | None
    rows: Preview | None
    lost: int = 0


@dataclass(frozen=True, slots=True)
class TableReplayed:
    """What the replay did to a table.

    Attributes:
        relation: `namespace.name`.
        conflicts: Changes that met a row, or did not find one, by the conflict's name.
    """

    relation: str
    conflicts: dict[str, int] = field(default_factory=dict)


class Replay:
    """The replay of one transaction.

    Args:
        spark: A session of its own.
        app_id: Delta's application id of the subscription's commits.
        remote_lsn: The origin's LSN: snapshots of earlier LSNs are without the transaction.
        kept: What was kept of it.
        types: How values of these (type oid, typmod) are decoded.
        rels: The subscription's tables, by (namespace, name).
        copying: Those that its tablesync worker has.

    Attributes:
        copied_since: The tables that have it already, because they were copied after it.

    Raises:
        SkipError: It was skipped in another life of the subscription; or a table is not subscribed any more, is another
            one by now, or is being copied.
    """

    def __init__(
        self,
        spark: SparkSession,
        subscription: Subscription,
        *,
        app_id: str,
        remote_lsn: Lsn,
        kept: KeptTransaction,
        types: Callable[[Sequence[tuple[int, int]]], list[ColumnType]],
        rels: Mapping[tuple[str, str], RelRow],
        copying: Collection[tuple[str, str]] = (),
    ) -> None:
        self._spark = spark
        self._subscription = subscription
        self._kept = kept
        self._types = types
        self._remote_lsn = remote_lsn
        self._finish_lsn = kept.transaction.commit_lsn
        # of the server that had the transaction: pg_upgrade makes another one, and no other life of the subscription
        self._app_id = f"{kept.origin}/replay-{str(self._finish_lsn).replace('/', '-')}"
        self.copied_since: list[str] = []
        self._paths: dict[tuple[str, str], str] = {}
        upgraded = kept.origin != app_id
        if upgraded and kept.origin.rpartition("/")[2] != app_id.rpartition("/")[2]:
            raise errors.SkipError(
                f'the transaction was skipped before subscription "{subscription.name}" began afresh',
                hint="the tables were copied since then, from the server as it was at that time",
            )
        for relation, then in kept.tables.items():
            name, rel = ".".join(relation), rels.get(relation)
            if rel is not None and None not in {rel.relid, then.relid} and rel.relid != then.relid:
                raise errors.SkipError(
                    f'table "{name}" is another table by now than the one that the transaction changed',
                    hint=self._by_hand,
                )
            if rel is None and relation not in copying:
                raise errors.SkipError(
                    f'table "{name}" is not subscribed any more, so its changes cannot be replayed', hint=self._by_hand
                )
            if rel is not None and rel.waits is not None:
                raise errors.SkipError(
                    f'table "{name}" waits for its resync; once it is copied afresh, it has the transaction\'s changes',
                    hint=f"run: {remedies.resync(subscription.name, name)}; then repeat the command",
                )
            if rel is None or rel.state not in _READY:
                raise errors.SkipError(
                    f'table "{name}" is being copied; once that is done, it has the transaction\'s changes',
                    hint=f"run the daemon until its state is r ({remedies.status()}), then repeat the command",
                )
            since = rel.lsn if rel.lsn > self._finish_lsn or not upgraded else self._copied_at(name, rel.path)
            if since > self._finish_lsn and since != then.lsn:
                self.copied_since.append(name)
            elif (column := kept.masked_otherwise(relation, subscription.shape_of(name))) is not None:
                raise errors.SkipError(
                    f'column "{column}" of table "{name}" had another mask, or none, when the transaction came',
                    hint=self._by_hand,
                )
            else:
                self._paths[relation] = rel.path

    def _copied_at(self, name: str, path: str) -> int:
        """Where a table was copied, by its own log: after pg_upgrade the catalog does not know it any more.

        0 if that was not after the transaction.
        """
        history = table_position.history_of(self._spark, path)
        for commit in history.commits():
            if commit.position is not None and commit.position <= self._finish_lsn:
                return 0
            if commit.position is not None and commit.epoch is None:
                return commit.position
        if history.is_whole:
            return 0
        raise errors.SkipError(
            f'the log of table "{name}" does not go back to the transaction, so a copy may have its changes already',
            hint=self._by_hand,
        )

    @property
    def _by_hand(self) -> str:
        name = self._subscription.name
        return f"apply the changes by hand; to see them, run: {remedies.show_skipped(name, self._finish_lsn)}"

    @cached_property
    def _tables(self) -> list[TableChanges]:
        """The changes of each commit, decoded as for the stream, for the tables as they are now."""
        targets = {}
        for name, path in self._paths.items():
            table.existing_schema(self._spark, path)
            mode = self._kept.tables[name].mode
            targets[name] = Target(*name, path, table.read_target_schema(self._spark, path, mode) or (), mode)
        subscription = self._subscription
        batcher = Batcher(
            subscription.origin_name,
            KeptRoutes(self._kept, targets),
            self._types,
            unrepresentable=subscription.unrepresentable,
            spill=divided.Spill(scratch_file, subscription.batch.max_bytes),
        )
        try:
            return batcher.form([self._kept.transaction], INVALID).tables
        except errors.ApplyError as error:
            relation = error.context.relation or "TABLE"
            raise errors.SkipError(
                f"the columns of the Delta table are others than those of the transaction: {error.message}",
                hint=f"copy the table again: {remedies.resync(subscription.name, relation)}",
            ) from error

    def preview(self) -> Iterator[TablePreview]:
        """Tell what the replay would do, table by table; nothing is changed.

        If a table has several parts of changes, later ones are compared with the table before all of them.

        Raises:
            SkipError: A Delta table does not hold the changes.
            TargetError: A Delta table does not exist any more.
        """
        for changes in self._tables:
            lost = self._count(changes) if changes.truncated else None
            name, path = changes.target.qualified_name, changes.target.path
            yield TablePreview(name, path, _commands(changes), lost, self._rows(changes), changes.lost)

    def apply(self, begin_flush: Callable[[], None] = lambda: None) -> Iterator[TableReplayed]:
        """Apply the changes; what an earlier attempt has committed is left out.

        Args:
            begin_flush: Called before local tables are flushed: after a flush that failed, another one proves nothing.

        Yields:
            Each part once it is committed. They are durable when the iterator ends.

        Raises:
            ApplyError: A commit failed. Those before it remain; another attempt goes on with it.
            OutcomeUnknown: The connection to Spark was lost; another attempt finds out.
            SkipError: A Delta table does not hold the changes.
            StateError: A local table cannot be flushed.
        """
        parts: dict[str, int] = {}
        local = LocalTables(partial(location.place_of, self._spark))  # from before what it flushes
        for changes in self._tables:
            name = changes.target.qualified_name
            part = parts[name] = parts.get(name, 0) + 1
            replayed = TableReplayed(name)
            stamp = CommitStamp(f"{self._app_id}.{part}", self._remote_lsn, self._finish_lsn)
            context = errors.ApplyContext(self._subscription.origin_name, self._finish_lsn, None, name)
            with commit_errors.error_context(context), stamped(self._spark, stamp):
                retry.retry_commit(partial(self._commit, changes, replayed), changes.target.path)
            yield replayed
        local.flush(self._paths.values(), begin_flush)

    def _commit(self, changes: TableChanges, replayed: TableReplayed) -> None:
        def count(conflicts: Conflicts) -> None:
            replayed.conflicts.update(conflicts.counts)

        if changes.target.mode == "changelog":
            append_changes(self._spark, changes)
            return
        apply_table(self._spark, changes, conflict="apply_remote", conflicts=count)

    def _count(self, changes: TableChanges) -> int:
        return location.read_table(self._spark, changes.target.path).count()

    def _rows(self, changes: TableChanges) -> Preview | None:
        if changes.target.mode != "mirror" or changes.truncated or not changes.foldable:
            return None
        effect = changes.net_effect()
        keyed = KeyedTarget.of(changes, overwrite=True)
        if not effect.clear or (effect.shape.leaves and leaves_missing(self._spark, effect, keyed)):
            return None
        return preview(self._spark, effect, keyed)


def _commands(changes: TableChanges) -> dict[str, int]:
    """Count the changes by command."""
    counts = pc.value_counts(changes.changes["op"]).to_pylist() if len(changes.changes) else []
    return {events.COMMANDS[entry["values"]]: entry["counts"] for entry in counts}


def lines_of(shown: TablePreview) -> Iterator[str]:
    """Write a preview for people: a line for the table, and one for each example."""
    said = ", ".join(f"{number:,} {command}" for command, number in shown.changes.items()) or "no changes"
    if shown.truncated is not None:
        said = f"TRUNCATE of {shown.truncated:,} rows, then {said}"
    yield f"{shown.relation}: {said}"
    if shown.lost:
        yield f"  {shown.lost:,} rows get NULL for a large value that the stream did not carry"
    if shown.rows is None:
        return
    counts = ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(shown.rows.counts.items()))
    yield f"  rows: {counts or 'none'}"
    for row in shown.rows.examples:
        key = ", ".join(f"{name}={value}" for name, value in row.key.items())
        if row.after:
            changed = ", ".join(f"{name}: {row.before[name]} -> {after}" for name, after in row.after.items())
            yield f"  {row.outcome}: ({key}) {changed}"
        else:
            lost = ", ".join(f"{name}: {value}" for name, value in row.before.items())
            yield f"  {row.outcome}: ({key}) {lost}"


INSERTED: Final = "inserted"
OVERWRITTEN: Final = "overwritten"
UPDATED: Final = "updated"
DELETED: Final = "deleted"
MISSING: Final = "missing"
UNCHANGED: Final = "unchanged"

_EXAMPLES: Final = 10

_WANTED: Final = ("match_", "new_", "unchanged_", "born", "ended")


@dataclass(frozen=True, slots=True)
class RowPreview:
    """A row that would change.

    Attributes:
        outcome: `OVERWRITTEN`, `UPDATED` or `DELETED`.
        before: The values that would be lost: of the columns that change, or all of a deleted row.
        after: The values of the same columns afterwards; empty for a deleted row.
    """

    outcome: str
    key: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a net effect would do.

    Attributes:
        counts: Rows by outcome: `INSERTED`; `OVERWRITTEN`, where an INSERT meets a row; `UPDATED`; `DELETED`, also
            where another row comes to the row's key; `MISSING`, where an UPDATE or DELETE finds no row; `UNCHANGED`,
            where the row has the values already.
        examples: Some of the rows that would change or go, in the order of their keys.
    """

    counts: dict[str, int]
    examples: list[RowPreview]


def preview(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget) -> Preview:
    """Compare a net effect, which must be clear, with the table."""
    names = keyed.names
    rows = location.read_table(spark, keyed.path)
    texts = (
        f"to_json({quoted(column.name)})" if schema.is_variant(column) else quoted(column.name)
        for column in keyed.columns
    )
    target = rows.select(*(F.expr(text).alias(f"t_{i}") for i, text in enumerate(texts)), F.lit(1).alias("here"))
    wanted = [name for name in effect.table.column_names if name.startswith(_WANTED)]
    effects = effect.table.select(wanted).append_column("first", effect.table["first"].cast(pa.int16()))
    with arrow_source(spark, effects) as given:
        shown_as = {
            f"new_{i}": schema.canonical(f"new_{i}", c) for i, c in enumerate(keyed.columns) if schema.is_variant(c)
        }
        variants = {name: F.expr(text) for name, text in shown_as.items()}
        source = given.withColumns(variants) if variants else given  # Spark Connect takes no empty withColumns
        compared = [i for i in range(len(names)) if effect.shape.moved or i not in keyed.key]
        joined = source.join(target, keyed.found("match"), "left").withColumn(
            "outcome", _outcome(source.columns, compared)
        )
        counted = joined.groupBy("outcome").count().collect()
        counts = {row.outcome: int(row["count"]) for row in counted if row.outcome is not None}
        shown = joined.filter(F.col("outcome").isin(OVERWRITTEN, UPDATED, DELETED))
        ordered = shown.orderBy(*(f"match_{k}" for k in keyed.key)).limit(_EXAMPLES)
        examples = ordered.select(*(c for c in ordered.columns if c != "here")).toArrow().to_pylist()
    return Preview(counts, [_row(example, names, keyed.key, compared) for example in examples])


def _outcome(columns: list[str], compared: list[int]) -> Column:
    """The outcome of an effect; NULL for a row that begins and ends within the changes."""
    here = F.col("here").isNotNull()
    differs = reduce(or_, (_differs(i, columns) for i in compared), F.lit(False))
    begins = F.col("first").isin(*events.BEGINS)
    gone = F.when(here, DELETED).when(~begins, MISSING)
    put = F.when(here & ~differs, UNCHANGED).when(here & begins, OVERWRITTEN).when(here, UPDATED)
    return F.when(F.col("ended"), gone).otherwise(put.when(F.col("born"), INSERTED).otherwise(MISSING))


def _differs(i: int, columns: list[str]) -> Column:
    changed = ~F.col(f"t_{i}").eqNullSafe(F.col(f"new_{i}"))
    return changed & ~F.col(f"unchanged_{i}") if f"unchanged_{i}" in columns else changed


def _row(row: dict[str, Any], names: list[str], key: tuple[int, ...], compared: list[int]) -> RowPreview:
    of_key = {names[k]: row[f"match_{k}"] for k in key}
    if row["outcome"] == DELETED:
        return RowPreview(DELETED, of_key, {names[i]: row[f"t_{i}"] for i in range(len(names)) if i not in key})
    changed = [i for i in compared if not row.get(f"unchanged_{i}") and row[f"t_{i}"] != row[f"new_{i}"]]
    return RowPreview(
        row["outcome"],
        of_key,
        {names[i]: row[f"t_{i}"] for i in changed},
        {names[i]: row[f"new_{i}"] for i in changed},
    )
