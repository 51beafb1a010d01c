"""The initial copy: published tables become Delta tables, under the snapshot of a slot.

Table states are those of pg_subscription_rel (tablesync.c):

    i  init           nothing is done yet
    d  datasync       the table is being copied
    f  finishedcopy   it is copied, up to its snapshot's LSN
    s  syncdone       it follows the stream from that LSN on
    r  ready          the stream has passed that LSN

The states syncwait and catchup are not in the catalog: see `bridge.sync.tablesync_worker`. A copy that is cut short
starts again, or goes on with the ranges of the table's key that it lacks (`bridge.sync.ranged_copy`); the Delta table
stays as it was until one commit replaces its rows.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pgbridge.bridge.apply.suspects import SUSPECTS, Work
from pgbridge.bridge.batch.routes import Subscribed
from pgbridge.bridge.catalog import copied_ranges, followed, manifest, refresh
from pgbridge.bridge.catalog.catalog_rows import RelRow, owner_of
from pgbridge.bridge.evolution.tracker import copied_columns
from pgbridge.bridge.lake.ddl import check_properties
from pgbridge.bridge.lake.forms import check_new_table
from pgbridge.bridge.lake.location import layout_of, place_of, read_table
from pgbridge.bridge.lake.log.local_log import real_location
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.lake.log.stamp import COPY_NUMBER_BITS, CommitStamp
from pgbridge.bridge.lake.schema import is_variant
from pgbridge.bridge.lake.shared_folder import SharedFolders
from pgbridge.bridge.lake.table import WAYS_BACK, asked, read_target_schema, schema_of
from pgbridge.bridge.lake.table_position import TablePosition, check_committed
from pgbridge.bridge.lake.writes import write_checkpoint
from pgbridge.bridge.publication.catalog_picture import CatalogPicture, TablePicture, parse
from pgbridge.bridge.publication.published_table import PublishedTable, check_shape, not_masked, unsupported_table
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.recovery import manifest_table
from pgbridge.bridge.runtime import errors, faults, remedies
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, constraint_hint, executor_hint, is_lost, store_hint, summary
from pgbridge.bridge.sync.copy import MOST_CONNECTIONS, TableCopy, copy_at_once
from pgbridge.bridge.sync.copy_progress import CopyLimit, CopyMonitor
from pgbridge.bridge.sync.copy_reader import copy_spec, largest_row
from pgbridge.bridge.sync.key_order import mirror_order, range_cut
from pgbridge.bridge.sync.made_tables import (
    NOTHING_KEPT,
    columns_in_target,
    kept_rows,
    layout_after_copy,
    make_table,
    new_columns,
    one_place,
    replaced_columns,
    shared_table,
    with_dropped,
)
from pgbridge.bridge.sync.ranged_copy import commit_ranges, copy_ranges, ranged_table
from pgbridge.bridge.sync.server_check import OwnPositions
from pgbridge.bridge.sync.table_reading import TableLock, locked_columns
from pgbridge.bridge.targets.location import table_location
from pgbridge.bridge.targets.target import Target, TargetColumn
from pgbridge.protocol.lsn import INVALID
from pgbridge.protocol.values.pg_type import BUILTIN, TypeInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pgbridge.bridge.apply.context import Context
    from pgbridge.bridge.catalog.catalog_rows import ColumnRow
    from pgbridge.bridge.publication.shape import Shape
    from pgbridge.bridge.receive.slot import Snapshot
    from pgbridge.bridge.track.position import ServerHistory

_WORTH_RECORDING_S = 10.0
"""A copy that took longer is recorded in the warehouse at once: it would not be made again if state_dir were lost."""

_LOCK_PATIENCE_S = 60.0
"""Longer, others' locks on one table do not hold up the other tables: it is copied by itself later."""

_LOOKS_AT_ONCE = 8
"""Delta tables that are looked at when a stream begins: each look mostly waits for the storage, or for a Spark job."""


class _FirstLook:
    """The catalog's facts with which the tables of a copy are compared later: as of the snapshot, or soon after it.

    A look gives up while somebody locks one of the tables: none waits for another one's lock. Then each table has one
    more before its rows are read, which may give up, too; without any, what happens meanwhile would count as copied.
    """

    def __init__(self, context: Context, wanted: Mapping[tuple[str, str], int]) -> None:
        self._context, self._wanted = context, wanted
        self._picture: CatalogPicture | None = None

    def take(self, publisher: Publisher) -> None:
        """Look, unless somebody locks one of the tables."""
        try:
            text = publisher.picture(self._context.subscription.publications, self._wanted)[1]
        except errors.PublisherError as error:
            self._context.log.info("what is published is looked at when a table is copied", reason=error.message)
        else:
            self._picture = parse(text or "")

    def at(self, relid: int) -> TablePicture | None:
        """The facts about a table; None if there are none, or none yet."""
        if self._picture is None:
            subscription = self._context.subscription
            # by itself: a transaction would have the statements of the other copies in it
            with Publisher(subscription.connection, application_name=f"{subscription.name}_sync") as publisher:
                self.take(publisher)
        return None if self._picture is None else self._picture.table(relid)


class TableSync:
    """Creates, copies and opens the Delta tables of a subscription.

    The context's `stopping` is asked before each copy, and while one waits for its turn or for a lock on its table; if
    it says so, there are no more copies.
    """

    def __init__(self, context: Context, copy_limit: CopyLimit | None = None) -> None:
        self._context = context
        self._subscription, self._spark, self._catalog, self._log, self._stopping, self._heartbeat = context
        self._copy_limit = copy_limit or CopyLimit()
        self._local = LocalTables(partial(place_of, self._spark))
        self._shared = SharedFolders(self._spark)
        # many tables have the same properties, and each look takes as long as a table that is made
        self._possible = set[tuple[tuple[str, str], ...]]()
        self._positions = OwnPositions(self._spark, self._catalog, context.name, self._log)
        self.record = partial(manifest_table.record, self._spark, self._catalog, self._subscription)
        self.check_owned = partial(manifest_table.check_owned, self._spark, self._catalog, self._subscription)

    def check_new(self, system_identifier: str) -> None:
        """Check that a subscription that begins is new to the warehouse.

        Raises:
            StateError: It is not: its state directory was lost.
        """
        manifest_table.check_new(self._spark, self._catalog, self._subscription, system_identifier)

    def begin_another_life(self, system_identifier: str) -> None:
        """Have the warehouse forget an earlier life of the subscription, before there is another slot."""
        if manifest_table.knows(self._spark, self._subscription, system_identifier):
            self.record()

    def new_rels(self, tables: Iterable[PublishedTable], known: Iterable[RelRow]) -> list[RelRow]:
        """Return catalog rows for new tables, without tables that Delta, or the warehouse's catalog, cannot hold.

        Args:
            known: The subscription's tables.

        Raises:
            TargetError: Another subscription writes to a Delta table; or two tables would have the same one; or one
                cannot have its layout or its properties.
        """
        by_place = {real_location(rel.path): rel for rel in known}
        rels: list[RelRow] = []
        for table in tables:
            check_shape(table, self._subscription.shape_of(table.qualified_name), is_new=True)
            if unsupported_table(table, self._subscription.place_of) is not None:
                continue
            path = table_location(*self._subscription.place_of(table.namespace, table.name))
            self._check_layout(table, path)
            other = by_place.get(real_location(path))
            if other is not None and (other.namespace, other.name) != (table.namespace, table.name):
                raise one_place(self._subscription, path, (other.namespace, other.name), (table.namespace, table.name))
            rels.append(RelRow(table.namespace, table.name, "i", INVALID, path, table.relid))
            by_place[real_location(path)] = rels[-1]
        for properties in {tuple(self._subscription.properties_of(rel.qualified_name).items()) for rel in rels}:
            if properties not in self._possible:
                check_properties(self._spark, dict(properties))
                self._possible.add(properties)
        claimed = self._catalog.claim(self._subscription.name, [rel.path for rel in rels], real_location)
        if claimed is not None:
            raise shared_table(*claimed)
        return rels

    def needs_copy(self, rel: RelRow) -> bool:
        """Whether the table is not copied yet, and is to be."""
        return rel.state == "d" or (rel.state == "i" and self._subscription.copy_data)

    def check_copied_to(self, rel: RelRow) -> None:
        """Check that the copy of a new table replaces no rows that others have written, unless `adopt` allows it.

        Raises:
            TargetError: There are such rows, or files that are not a Delta table.
        """
        if rel.state != "i" or self._subscription.target.adopt or schema_of(self._spark, rel.path) is None:
            return
        if not read_table(self._spark, rel.path).isEmpty():
            again = remedies.resync(owner_of(self._subscription.name), rel.qualified_name)
            raise errors.TargetError(
                f'cannot copy table "{rel.qualified_name}": the Delta table at {rel.path} has rows already',
                hint=f"to have the copy replace its rows, run: {again}; or set target.adopt = true; or move the "
                "Delta table away; or set copy_data = false to keep them and not to copy",
            )

    def uncopied(self, rel: RelRow, table: PublishedTable, publisher: Publisher) -> RelRow:
        """Return the catalog row of a table that follows the stream at once, without a copy.

        Its Delta table keeps its rows; it is created if it does not exist. One that does not fit is a TargetError.
        """
        self._target(rel, table, publisher.types(column.type_oid for column in table.columns))
        self._note_columns(table, publisher)
        return replace(rel, state="r")

    def _note_columns(self, table: PublishedTable, publisher: Publisher) -> None:
        """Know the columns of a table that is not copied: one may be renamed before the stream brings a change."""
        shape = self._subscription.shape_of(table.qualified_name)
        columns = columns_in_target(table, copied_columns(table, publisher.attributes(table.relid)), shape)
        self._catalog.put_columns(self._subscription.name, table.relid, columns)

    def copy(
        self, tables: Mapping[tuple[str, str], PublishedTable], publisher: Publisher, snapshot: Snapshot
    ) -> dict[tuple[str, str], errors.BridgeError]:
        """Copy every table that needs it, under one snapshot, `max_sync_workers` tables at a time.

        A copied table gets the snapshot's consistent point as its LSN. If a table fails, the others are copied still.

        Returns:
            The errors, by table: a PublisherError if the server could not be read, a SyncError if the copy was cut
            short, a TargetBusy if other writers were in the way, a TargetError if the Delta table already has rows or
            cannot hold the table.
        """
        name, conninfo = self._subscription.name, self._subscription.connection
        with (
            CopyMonitor(conninfo, name, self._catalog, self._log, advanced=self._heartbeat.beat) as monitor,
            ThreadPoolExecutor(self._subscription.workers.max_sync_workers, thread_name_prefix="copy") as pool,
        ):
            rels = {key: rel for key, rel in self._catalog.rels_by_name(name).items() if self.needs_copy(rel)}
            wanted = {key: tables[key].relid for key in rels if key in tables}
            look = _FirstLook(self._context, wanted)
            if wanted:
                look.take(publisher)
            copies = {
                key: pool.submit(self._copy_in_turn, rels[key], tables[key], publisher, snapshot, monitor, look)
                for key in wanted
            }
        failures: dict[tuple[str, str], errors.BridgeError] = {}
        for key, copy in copies.items():
            try:
                copy.result()
            except (
                errors.EndsSpark,
                errors.PublisherError,
                errors.StoreError,
                errors.SyncError,
                errors.TargetBusy,
                errors.TargetError,
            ) as error:
                failures[key] = error
                if not self._stopping():
                    self._log.error("table copy failed", relation=".".join(key), error=str(error))
        return failures

    def _copy_in_turn(
        self,
        rel: RelRow,
        table: PublishedTable,
        publisher: Publisher,
        snapshot: Snapshot,
        monitor: CopyMonitor,
        look: _FirstLook,
    ) -> None:
        work = Work(self._subscription.name, "copy", rel.qualified_name)
        with (
            self._copy_limit.turn(self._heartbeat.beating(self._stopping)),
            SUSPECTS.under_way(
                work, describe=partial(largest_row, self._subscription.connection, table), beat=self._heartbeat.beat
            ),
        ):
            started_s = time.monotonic()
            now = self._copy_table(rel, table, publisher, snapshot, monitor, look)
            worth_recording = time.monotonic() - started_s > _WORTH_RECORDING_S
        followed.copied(self._catalog, owner_of(self._subscription.name), (rel.namespace, rel.name), now)
        if worth_recording:
            self.record()

    def _copy_table(
        self,
        rel: RelRow,
        table: PublishedTable,
        publisher: Publisher,
        snapshot: Snapshot,
        monitor: CopyMonitor,
        look: _FirstLook,
    ) -> TablePicture | None:
        if snapshot.name is None:
            raise errors.PublisherError("a copy needs an exported snapshot")
        self._check_stopping(rel)
        types = publisher.types(column.type_oid for column in table.columns)
        existed = schema_of(self._spark, rel.path) is not None
        columns: tuple[TargetColumn, ...] | None = None
        target: Target | None = None
        mode, shape = self._subscription.mode_of(rel.qualified_name), self._shape_of(rel, table)
        made = new_columns(table, types, self._subscription.target.parsed)
        again = rel.state == "d" and existed
        keeps, owner = again and mode == "soft_deletes", owner_of(self._subscription.name)
        kept = kept_rows(self._spark, rel, made, shape, owner) if keeps else NOTHING_KEPT
        try:
            target, columns = self._target(rel, table, types, exists=existed)
        except errors.TargetError as error:
            if not again or kept.deleted or isinstance(error, errors.OwnColumnError) or unsupported_table(table):
                raise
            # the rows are from an earlier copy, which this one replaces: so it may replace the columns, too
        name, layout = self._subscription.name, self._subscription.layout_of(rel.qualified_name)
        if existed:
            self.check_copied_to(rel)
            layout = asked(rel.path, partial(layout_of, self._spark, rel.path))
        if existed and columns is None and mode != "changelog":
            layout = layout_after_copy(rel, made, mode, layout, subscription=owner_of(name), log=self._log)
        written = columns or replaced_columns(made, layout.partition_by if mode != "changelog" else ())
        variants = {column.name for column in written if is_variant(column)}
        started_s = time.monotonic()
        rel = replace(rel, state="d", relid=table.relid)
        self._catalog.put_rel(name, rel)
        self._log.info("table copy started", relation=rel.qualified_name, lsn=str(snapshot.consistent_point))
        # at most 63 bytes; PostgreSQL's is pg_<subid>_sync_<relid>_<system identifier>
        application_name = f"{name[:45]}_sync_{table.relid}"
        conninfo = self._subscription.connection
        waiting = self._heartbeat.beating(self._stopping)
        with TableLock(
            *(conninfo, table, snapshot.name),
            application_name=f"{name}_sync",
            stopping=waiting,
            patience_s=_LOCK_PATIENCE_S,
            tell=partial(self._tell_of_lock, rel) if self._is_partly_read(rel) else None,
        ) as lock:
            now = look.at(table.relid)
            known_columns = self._columns(table, publisher, shape, target if again else None)
            spec = copy_spec(
                table,
                types,
                conninfo=conninfo,
                application_name=application_name,
                snapshot=snapshot.name,
                unrepresentable=self._subscription.unrepresentable,
                ranges=[blocks.condition for blocks in lock.ranges],
                columns=written,
            )
            spec = replace(spec, max_rate=self._max_rate(len(spec.ranges)))
            if mode == "mirror":
                spec = replace(spec, order=mirror_order(publisher, table.relid, spec.key, spec.schema, lock, layout))
            copy = TableCopy(
                *(rel, spec, snapshot, lock, mode, layout, variants),
                columns_too=columns is None,
                keeps=kept.rows and columns is not None,
                identifying=[shape.name(name) for name in spec.key or table.primary_key],
            )
            stamp, copied = self._write(copy, table, publisher, known_columns, monitor)
            copied = replace(copied, shape=shape.description)
            lock.check()
        self._make_durable(rel.path, stamp, existed=existed)
        self._catalog.put_columns(name, table.relid, known_columns)
        faults.reach("table_copied")
        with self._catalog.transaction():
            copied_ranges.finish(self._catalog, name, (rel.namespace, rel.name))
            self._catalog.put_rel(name, copied)
        self._log.info(
            "table copy finished", relation=rel.qualified_name, seconds=round(time.monotonic() - started_s, 1)
        )
        return now

    def _shape_of(self, rel: RelRow, table: PublishedTable) -> Shape:
        """The shape that a copy gives a table's rows; a mask's name that is of no column is an error, or is told."""
        shape = self._subscription.shape_of(rel.qualified_name)
        check_shape(table, shape, is_new=rel.shape is None)
        if rel.shape is not None and (names := not_masked(table, shape, rel.shape)):
            self._log.warning(
                "mask names columns that the table does not have", relation=rel.qualified_name, columns=names
            )
        return shape

    def _columns(
        self, table: PublishedTable, publisher: Publisher, shape: Shape, target: Target | None
    ) -> list[ColumnRow]:
        """All columns of a table, which a lock keeps as they are, and those that its Delta table has from before."""
        columns = columns_in_target(table, locked_columns(table, publisher), shape)
        before = self._catalog.columns(owner_of(self._subscription.name)).get(table.relid, ())
        return with_dropped(columns, before, () if target is None else [field.name for field in target.schema])

    def _make_durable(self, path: str, stamp: CommitStamp, *, existed: bool) -> None:
        """Have a copy on disk, whatever becomes of the earlier log: it may have a copy whose flush has failed."""
        check_committed(self._spark, path, stamp)
        if existed:
            write_checkpoint(self._spark, path)
        self._local.flush([path])

    def _is_partly_read(self, rel: RelRow) -> bool:
        """Whether ranges of a table are here, which another worker would read again."""
        known = copied_ranges.read(self._catalog, self._subscription.name, (rel.namespace, rel.name))
        return known is not None and any(each.lsn is not None for each in known.ranges)

    def _tell_of_lock(self, rel: RelRow, locked: errors.PublisherError) -> None:
        self._log.warning(
            "a table that was read in part is locked, and the stream begins once it is copied",
            relation=rel.qualified_name,
            reason=locked.message,
            hint=locked.hint,
        )

    def _check_stopping(self, rel: RelRow) -> None:
        if self._stopping():
            raise errors.SyncError(f'table "{rel.qualified_name}" is not copied: the subscription is being stopped')

    def _write(
        self,
        copy: TableCopy,
        table: PublishedTable,
        publisher: Publisher,
        columns: Sequence[ColumnRow],
        monitor: CopyMonitor,
    ) -> tuple[CommitStamp, RelRow]:
        """Copy a table's rows by one commit; returns its stamp, and the table's row from then on."""
        rel, context, snapshot = copy.rel, self._context, copy.snapshot
        ranged, size = ranged_table(context, copy, table, publisher, columns), copy.lock.size
        if ranged is not None:
            size = size.of(len(ranged.copy.missing), len(ranged.copy.ranges))
        try:
            with monitor.watching(copy.spec.application_name, rel.namespace, rel.name, size):
                if ranged is not None:
                    copy_ranges(context, copy, ranged, self._local)
                lsns = copied_ranges.lsns(self._catalog, context.name, rel) or [snapshot.consistent_point]
                # the table has all from before the first of its snapshots
                first_lsn, last_lsn = min(lsns), max(lsns)
                stamp = self._stamp(replace(snapshot, consistent_point=first_lsn))
                if ranged is not None:
                    commit_ranges(context, copy, ranged, stamp)
                else:
                    copy_at_once(context, copy, stamp)
        except SPARK_ERRORS as error:
            if is_lost(error):
                raise
            raise errors.SyncError(
                f'cannot copy table "{rel.qualified_name}": {summary(error)}',
                hint=constraint_hint(error, rel.path) or store_hint(error) or executor_hint(error),
            ) from error
        several = first_lsn if first_lsn < last_lsn else INVALID
        copied = replace(rel, state="f", lsn=last_lsn, position=first_lsn, first_lsn=several)
        return stamp, replace(copied, timeline=snapshot.timeline)

    def _max_rate(self, ranges: int) -> float | None:
        """Bytes a second for each connection of a copy, so that all together keep to the subscription's rate."""
        workers = self._subscription.workers
        if not workers.max_copy_rate_bytes_s:
            return None
        return workers.max_copy_rate_bytes_s / workers.max_sync_workers / min(ranges, MOST_CONNECTIONS)

    def _check_layout(self, table: PublishedTable, path: str) -> None:
        """Raise if a Delta table that is to be made cannot have its layout; one that is there keeps its own."""
        name, parsed = table.qualified_name, self._subscription.target.parsed
        layout = self._subscription.layout_of(name)
        if layout != NO_LAYOUT and schema_of(self._spark, path) is None:
            check_new_table(name, self._subscription.mode_of(name), layout, new_columns(table, BUILTIN, parsed))

    def _stamp(self, snapshot: Snapshot) -> CommitStamp:
        """By this stamp Delta ignores a late commit of an earlier copy, whose daemon was killed before its Spark."""
        name, lsn = self._subscription.name, snapshot.consistent_point
        row, owner = self._catalog.subscription(name), self._catalog.subscription(owner_of(name))
        generation = manifest.generation(self._catalog, owner_of(name))
        return CommitStamp(
            f"{row.txn_app_id}/copy" if row else "",
            lsn,
            lsn,
            timeline=snapshot.timeline,
            copies_app_id=f"{owner.txn_app_id}/copy" if owner else None,
            # the clock of a machine that takes over may be behind
            copy_number=(generation << COPY_NUMBER_BITS) + time.time_ns() // 1000,
        )

    def _target(
        self, rel: RelRow, table: PublishedTable, types: Mapping[int, TypeInfo], *, exists: bool = True
    ) -> tuple[Target, tuple[TargetColumn, ...]]:
        """Return the table's Delta table, created if it does not exist, and those of its columns that are published.

        Whoever knows that it does not exist says so: to ask Spark for what is not there takes a tenth of a second.
        """
        if (why := unsupported_table(table)) is not None:
            raise errors.TargetError(why.reason, hint=why.hint)
        mode = self._subscription.mode_of(rel.qualified_name)
        schema = read_target_schema(self._spark, rel.path, mode) if exists else None
        if schema is None:
            layout = self._subscription.layout_of(rel.qualified_name)
            made = new_columns(table, types, self._subscription.target.parsed)
            properties = self._subscription.properties_of(rel.qualified_name)
            schema = make_table(self._spark, rel, made, mode, layout, properties)
            self._local.flush([rel.path])
        self._shared.check(rel.path)
        target = Target(rel.namespace, rel.name, rel.path, schema, mode)
        keyed = bool(table.primary_key) or table.replica_identity != "f"
        target.check_filled({column.target_name for column in table.columns}, keyed=keyed)
        return target, target.check(new_columns(table, types))

    def follow(
        self, tables: Mapping[tuple[str, str], PublishedTable], publisher: Publisher, server: ServerHistory
    ) -> dict[tuple[str, str], Subscribed]:
        """Return the tables that follow the stream, by (namespace, name): all but those that need or await a copy.

        Each follows from the position in its own log, which the catalog has afterwards. Their Delta tables are created
        if they are new, and their states in the catalog become s or r.

        Raises:
            TargetError: A Delta table does not exist any more, is not a Delta table, lacks a column, or is behind what
                the catalog knows of it.
            TableAhead: A table has transactions that the server does not have. It is copied afresh at the next try.
        """
        subscribed: dict[tuple[str, str], Subscribed] = {}
        name = self._subscription.name
        remote_lsn = self._catalog.remote_lsn(name) or INVALID
        by_relid = {table.relid: table for table in tables.values()}
        rels = [rel for rel in self._catalog.rels(name) if not self.needs_copy(rel) and rel.waits is None]
        with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="look") as pool:
            existing = {rel: pool.submit(self._existing, rel) for rel in rels if rel.state != "i"}
        for known in rels:
            rel, shape = known, self._subscription.shape_of(known.qualified_name)
            # a table that was renamed may still have its old name in the stream
            table = tables.get((rel.namespace, rel.name)) or by_relid.get(rel.relid or 0)
            if rel.state != "i":
                target, position = existing[known].result()
                names = None if table is None else [column.name for column in table.columns]
                if rel.shape is not None and shape.differs(rel.shape, [field.name for field in target.schema], names):
                    self._have_wait(rel)
                    continue
                rel = self._positions.believed(rel, position, server)
            elif table is not None:
                types = publisher.types(column.type_oid for column in table.columns)
                target, _ = self._target(rel, table, types)
                self._note_columns(table, publisher)
            else:
                continue
            relid = rel.relid or (table.relid if table is not None else None)
            state = "r" if rel.since_lsn <= remote_lsn else "s"
            rel = replace(rel, state=state, relid=relid, shape=shape.description)
            if rel != known:
                self._catalog.put_rel(name, rel)
            cut = table.cut_identity if table is not None else frozenset()
            ranges = copied_ranges.read(self._catalog, name, (rel.namespace, rel.name)) if rel.first_lsn else None
            of_ranges = range_cut(ranges, rel) if ranges is not None else None
            subscribed[rel.namespace, rel.name] = Subscribed(
                target, rel.whole_lsn, cut_identity=cut, relid=relid, cut=of_ranges, shape=shape
            )
        return subscribed

    def _have_wait(self, rel: RelRow) -> None:
        """Leave out the changes of a table whose Delta table has another shape: values of both do not mix."""
        owner = owner_of(self._subscription.name)
        why = errors.NeedsResync(
            f'mask or rename_columns of table "{rel.qualified_name}" are others than those that its Delta table was '
            "made with",
            (rel.namespace, rel.name),
            hint=f"copy the table afresh: {remedies.resync(owner, rel.qualified_name)}",
        )
        self._log.error(
            "a table waits for its resync, and its changes are left out; the others go on",
            relation=rel.qualified_name,
            reason=why.message,
            hint=why.hint,
        )
        if self._subscription.disable_on_error:
            raise why
        name, table = self._subscription.name, (rel.namespace, rel.name)
        refresh.have_wait(self._catalog, name, [table], str(why), time.time())

    def _existing(self, rel: RelRow) -> tuple[Target, TablePosition]:
        """Return the Delta table of a copied table. If it is gone, creating it again would lose its rows silently."""
        mode = self._subscription.mode_of(rel.qualified_name)
        schema = read_target_schema(self._spark, rel.path, mode)
        if schema is None:
            raise errors.TargetError(
                f'the Delta table of "{rel.qualified_name}" at {rel.path} does not exist any more',
                hint=WAYS_BACK + remedies.resync(owner_of(self._subscription.name), rel.qualified_name),
            )
        self._shared.check(rel.path)
        return Target(rel.namespace, rel.name, rel.path, schema, mode), self._positions.read(rel)
