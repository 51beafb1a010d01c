"""Applies batches: one Delta commit to each table, all tables of a batch in parallel; then records the batch.

Exactly-once rests on the order of the steps:

    1. the catalog records the batch's intent, with the tables that it commits to;
    2. each table is committed to, with the batch's stamp, which is the table's position from then on; ALTER TABLE comes
       first. If the columns that identify rows change within the batch, a table has a commit for each part of its
       changes;
    3. local tables are flushed;
    4. the catalog advances the origin and drops the intent. The server is told afterwards, by the loop.

After a crash the transactions are received again, and tables whose logs have them leave them out. A batch that failed
is undone, so that parts of it can be applied, or skipped. So is one that was cut short and changes columns (see
`bridge.lake.ddl`), and one whose flush was begun: if that failed, another flush would not tell (see
`BatchIntent.flushing`).
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from pgbridge.bridge.apply import record, undo
from pgbridge.bridge.catalog import catalog_rows, held, notes
from pgbridge.bridge.effects.conflicts import INSERT_EXISTS, Conflicts
from pgbridge.bridge.lake.changes.conflicting_rows import with_remote_rows, with_rows
from pgbridge.bridge.lake.commit import messages
from pgbridge.bridge.lake.commit.apply_table import apply_table
from pgbridge.bridge.lake.commit.change_frame import append_changes
from pgbridge.bridge.lake.commit.history_mode import apply_versions
from pgbridge.bridge.lake.commit_errors import conflict_of, context_of, error_context
from pgbridge.bridge.lake.ddl import alter_table
from pgbridge.bridge.lake.location import place_of
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.lake.log.stamp import TABLES_AT_ONCE, CommitStamp, stamped
from pgbridge.bridge.lake.retry import retry_commit
from pgbridge.bridge.lake.table import existing_schema
from pgbridge.bridge.lake.table_facts import KnownTables
from pgbridge.bridge.lake.table_position import check_committed, check_stands
from pgbridge.bridge.runtime import errors, faults, remedies
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, is_lost
from pgbridge.bridge.targets.location import sql_name
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from pgbridge.bridge.apply.context import Context
    from pgbridge.bridge.batch.batch import Batch, TableChanges
    from pgbridge.protocol.codec.messages import LogicalMessage
    from pgbridge.protocol.stream.transactions import Transaction

_PHASES = ("commit", "flush", "record")


class Applier:
    """Applies one subscription's batches, one at a time.

    Args:
        deliver: Called with a batch's logical messages after its changes are committed and before the batch is
            recorded: after a crash in between it is called again.
        messages_path: The Delta table for logical messages; None for none.
        lost: Called with a relation and the number of rows that got NULL for an unchanged TOAST value (see
            `apply_table`).
        conflicts: Called with a table's conflicts and the batch: with those that did not stop it once it is durable,
            with one that did at once.
    """

    def __init__(
        self,
        context: Context,
        *,
        deliver: Callable[[Iterable[tuple[Transaction, LogicalMessage]]], None] = lambda _: None,
        messages_path: str | None = None,
        lost: Callable[[str, int], None] = lambda *_: None,
        conflicts: Callable[[Conflicts, Batch], None] = lambda *_: None,
    ) -> None:
        self._spark, self._catalog, self._log = context.spark, context.catalog, context.log
        self._options = context.subscription
        self._subscription = context.name
        self._deliver = deliver
        self._messages_path = messages_path
        self._lost = lost
        self._conflicts = conflicts
        self._local = LocalTables(partial(place_of, context.spark))
        self._known = KnownTables()
        self._held: list[Batch] = []
        self._kept = held.ahead_of_origin(self._catalog, self._subscription)
        self._kept_until = max((rel.position for rel in self._kept), default=INVALID)
        self._undo = undo.BatchUndo(context, messages_path, self._local)

    def apply(self, batch: Batch, *, clear_skip_lsn: Lsn | None = None) -> dict[str, float]:
        """Make the batch durable in its targets and in the catalog.

        After it returns, the origin's LSN is the batch's `end_lsn`, unless it is held (see `holds`). After an error,
        either the catalog has no intent and the targets have nothing of the batch; or the intent stands, and must be
        settled (see `BatchUndo`) before the tables' positions are read again.

        Args:
            clear_skip_lsn: The skip LSN to clear once the batch is durable, because it did not match.

        Returns:
            The seconds of its phases `commit`, `flush` and `record` (see `BatchReport`).

        Raises:
            ApplyError: A table could not be committed to. The batch is undone, unless the message says otherwise.
            OutcomeUnknown: The connection to Spark was lost; the intent stands.
            StateError: A local table cannot be flushed (see `LocalTables`); the intent stands, and must be undone.
            TargetBusy: Another writer's commits to a table made every attempt fail; the intent stands.
        """
        times_s = [time.monotonic()]
        *earlier, last = batch.commit_rounds()
        self._check_room(batch, len(earlier))
        messages_path = self._messages_path if batch.with_messages else None
        paths = tuple(dict.fromkeys(changes.target.path for changes in batch.tables))
        intent = catalog_rows.BatchIntent(
            batch.start_lsn, batch.end_lsn, alters=batch.alters, messages_path=messages_path, tables=paths
        )
        self._catalog.begin_batch(self._subscription, intent)
        faults.reach("batch_begun")
        detected: list[Conflicts] = []
        stamp = self._stamp(batch)
        parts = {changes.target.path: partial(self._table, batch, changes, stamp, detected) for changes in last}
        alterations = {
            changes.target.path: partial(self._alter, batch, changes) for changes in batch.tables if changes.alterations
        }
        if messages_path:
            append = partial(messages.append, self._spark, self._subscription, batch.messages, messages_path)
            parts[messages_path] = partial(self._messages, batch, append)
        if parts:
            if alterations:
                self._commit(batch, replace(stamp, alters=True), alterations, parts)
            for number, round_ in enumerate(earlier):
                of_part = replace(stamp, part=number)
                commits = {
                    changes.target.path: partial(self._table, batch, changes, of_part, detected) for changes in round_
                }
                self._commit(batch, of_part, commits, parts)
            self._commit(batch, stamp, parts, parts)
        times_s.append(time.monotonic())
        self._local.flush(parts, lambda: self._catalog.begin_flush(self._subscription))
        times_s.append(time.monotonic())
        faults.reach("batch_committed")
        if batch.with_messages:
            self._deliver(batch.messages())
        if batch.end_lsn < self._kept_until:
            self._held.append(record.hold_batch(self._catalog, self._subscription, batch, clear_skip_lsn))
        else:
            self._finish([*self._held, batch], clear_skip_lsn)
        for conflicts in detected:
            self._count(conflicts.counts)
            self._conflicts(conflicts, batch)
        times_s.append(time.monotonic())
        return {phase: to - since for phase, (since, to) in zip(_PHASES, pairwise(times_s), strict=True)}

    @property
    def holds(self) -> bool:
        """Whether batches are held: a table has what comes after them, from an attempt that was cut short.

        The origin stays before them. So whatever such a table has can be taken back (see `bring_back`), and the server
        sends it again.
        """
        return bool(self._held)

    def release(self, passed_lsn: Lsn, handed_over_lsn: Lsn) -> Lsn | None:
        """Finish held batches if there will be none that ends where the furthest table is.

        Mostly there is one. But the server sends other transactions if the publications are others by now.

        Args:
            passed_lsn: The server has sent all transactions that end at or before it.
            handed_over_lsn: The end of the last of these.

        Returns:
            The origin's LSN now; None if it has not moved.
        """
        if not self._held or passed_lsn < self._kept_until or handed_over_lsn > self._held[-1].end_lsn:
            return None
        end_lsn = self._held[-1].end_lsn
        self._finish(self._held, None)
        return end_lsn

    def _finish(self, batches: list[Batch], clear_skip_lsn: Lsn | None) -> None:
        record.finish_batch(self._catalog, self._subscription, batches, clear_skip_lsn, planned=True, kept=self._kept)
        self._held, self._kept, self._kept_until = [], [], INVALID

    def _count(self, conflicts: Mapping[str, int]) -> None:
        """Count conflicts by name; without a catalog they are not counted: the batch's own outcome matters more."""
        try:
            notes.count_conflicts(self._catalog, self._subscription, conflicts)
        except errors.StateError as error:
            self._log.warning("conflicts are not counted", conflicts=dict(conflicts), error=str(error))

    def _check_room(self, batch: Batch, parts: int) -> None:
        """Raise if a table has more parts than there are transaction versions between the batch's start and end."""
        if parts and parts >= batch.end_lsn - batch.start_lsn:
            tables = [changes.target.qualified_name for changes in batch.tables]
            relation = max(tables, key=tables.count)
            raise errors.ApplyError(
                f'the replica identity of table "{relation}" changed {parts} times in one batch, but its range of '
                "LSNs does not have as many transaction versions for Delta",
                errors.ApplyContext(self._options.origin_name, batch.finish_lsn, batch.xid, relation),
            )

    def _commit(
        self,
        batch: Batch,
        stamp: CommitStamp,
        parts: Mapping[str, Callable[[], None]],
        paths: Collection[str],
    ) -> None:
        """Commit to tables in parallel; if one fails, undo what the batch has committed.

        The table that failed the last time goes first and alone: if it fails again, nothing has to be restored. `paths`
        are all tables of the batch, which an undo restores.
        """
        error = self._catalog.last_error(self._subscription)
        suspects = {t.target.path for t in batch.tables if error and t.target.qualified_name == error.relation}
        with stamped(self._spark, stamp), ThreadPoolExecutor(TABLES_AT_ONCE, "apply") as pool:
            futures = [pool.submit(part) for path, part in parts.items() if path in suspects]
            wait(futures)
            if all(future.exception() is None for future in futures):
                futures += [pool.submit(part) for path, part in parts.items() if path not in suspects]
            wait(futures)
            for future in futures:
                if isinstance(unknown := future.exception(), errors.OutcomeUnknown):
                    raise unknown  # its commit may still be made: so there is no undo, and `stamped` has to know
        try:
            for future in futures:
                future.result()
        except errors.ApplyError as error:
            self._undo.undo_after(error, paths)
            raise

    def skip(self, batch: Batch, skip_lsn: Lsn, folder: Path) -> Path:
        """Skip a transaction: keep it in a file and apply nothing (see `skip_batch`)."""
        return record.skip_batch(self._catalog, self._subscription, batch, skip_lsn, folder)

    def bring_back(self) -> bool:
        """Take back what tables have beyond the origin, before a transaction is skipped (see `BatchUndo`)."""
        return self._undo.bring_back()

    def _stamp(self, batch: Batch) -> CommitStamp:
        row, intent = self._catalog.subscription(self._subscription), self._catalog.batch(self._subscription)
        assert row is not None  # noqa: S101 - the worker has registered it
        return CommitStamp(
            row.batch_app_id,
            batch.start_lsn,
            batch.end_lsn,
            commit_time_us=batch.commit_time_us,
            timeline=intent.timeline if intent is not None else None,
        )

    def _alter(self, batch: Batch, changes: TableChanges) -> None:
        context = errors.ApplyContext(
            self._options.origin_name, batch.finish_lsn, batch.xid, changes.target.qualified_name
        )
        self._undo.check_owned()  # Delta refuses no late ALTER
        with error_context(context, changes.target.path):
            for followed in self._catalog.rels(self._subscription, path=changes.target.path):
                check_stands(self._spark, followed, catalog_rows.owner_of(self._subscription))
            alter_table(self._spark, changes.target.path, changes.alterations, self._log, mode=changes.target.mode)

    def _table(self, batch: Batch, changes: TableChanges, stamp: CommitStamp, detected: list[Conflicts]) -> None:
        context = context_of(self._options.origin_name, batch, changes)
        with error_context(context, changes.target.path):
            faults.reach("table_begun")

            def apply() -> None:
                if changes.target.mode != "mirror":
                    keep = append_changes if changes.target.mode == "changelog" else apply_versions
                    keep(self._spark, changes)
                    return
                apply_table(
                    self._spark,
                    changes,
                    known=self._known,
                    conflict=self._options.conflict,
                    conflicts=lambda conflicts: detected.append(with_remote_rows(conflicts, changes)),
                )

            try:
                retry_commit(apply, changes.target.path, self._log)
                if changes.lost:
                    self._lost(changes.target.qualified_name, changes.lost)
            except SPARK_ERRORS as error:
                if is_lost(error):
                    raise
                conflict = conflict_of(error)
                if conflict is None:
                    existing_schema(self._spark, changes.target.path)  # if it is gone, that is the error to show
                    raise
                if batch.xid is not None:  # a batch that is divided meets it several times; count it once
                    self._count({conflict.name: 1})
                    conflict = with_rows(self._spark, conflict, changes)
                    stopped = Conflicts(
                        conflict.relation, {conflict.name: 1}, {conflict.name: (conflict,)}, stopped=True
                    )
                    self._conflicts(stopped, batch)
                command = "INSERT" if conflict.name == INSERT_EXISTS else "UPDATE"
                hint = remedies.of_conflict(sql_name(changes.target.path), conflict.columns, conflict.values)
                raise errors.ApplyError(str(conflict), replace(context, command=command), hint=hint) from error
            if changes.commits:
                rels = self._catalog.rels(self._subscription, path=changes.target.path)
                followed = rels[0] if rels else None
                owner = catalog_rows.owner_of(self._subscription)
                check_committed(self._spark, changes.target.path, stamp, followed, owner)
            faults.reach("table_committed")

    def _messages(self, batch: Batch, append: Callable[[], None]) -> None:
        assert self._messages_path is not None  # noqa: S101 - `apply` has looked
        with error_context(errors.ApplyContext(self._options.origin_name, batch.finish_lsn, batch.xid, messages.NAME)):
            faults.reach("table_begun")
            retry_commit(append, self._messages_path, self._log)
            faults.reach("table_committed")
