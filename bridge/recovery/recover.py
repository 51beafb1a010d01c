"""`pgbridge recover` makes a lost state directory anew, from the warehouse and the slot.

Nothing is confirmed to the server that is not durable in every table that follows by the manifest. So the stream goes
on where the slot is, and each table leaves out what its own log says that it has. What else the catalog had is in the
manifest. A former daemon that lives on somewhere may have a batch in hand: it cannot begin another one once the
manifest has the recovery's claim, and this one is kept out of each table before the table's log is read.

What cannot be had again: the changes of prepared transactions, whose tables are copied afresh; transactions that were
skipped; counters, and the last error.
"""

from __future__ import annotations

import datetime as dt
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog import catalog_rows, commits, lock, manifest, refresh, reset
from pgbridge.bridge.catalog.catalog import Catalog, boot_id, catalog_path
from pgbridge.bridge.lake.location import place_of
from pgbridge.bridge.lake.log.local_log import local_folder, log_of
from pgbridge.bridge.lake.log.stamp import TABLES_AT_ONCE
from pgbridge.bridge.lake.table_position import families, history_of
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection, check_slot, recovery_name, refusal
from pgbridge.bridge.receive.slot_status import LOST, shown_status
from pgbridge.bridge.recovery import fence
from pgbridge.bridge.recovery.lost_prepared import LostPrepared
from pgbridge.bridge.recovery.manifest_table import origin_of, table_in
from pgbridge.bridge.runtime import errors, faults, remedies
from pgbridge.bridge.snapshots.commits_table import CommitRows
from pgbridge.bridge.spark.session import command_session, told
from pgbridge.bridge.track.position import Position
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from pgbridge.bridge.catalog.catalog_rows import RelRow, SubscriptionRow
    from pgbridge.bridge.catalog.manifest import Manifest
    from pgbridge.bridge.config.config import Config, Subscription
    from pgbridge.bridge.lake.log.commit_info import Commit
    from pgbridge.bridge.receive.slot_status import SlotStatus
    from pgbridge.bridge.track.position import ServerHistory

_SLOT_PATIENCE_S = 10.0


def recover(
    config: Config,
    chosen: Sequence[Subscription],
    *,
    dry_run: bool = False,
    started: Callable[[Config, Sequence[Subscription]], AbstractContextManager[SparkSession]] | None = None,
) -> Iterator[str]:
    """Make the state of subscriptions anew; yields the lines to print.

    Args:
        chosen: The subscriptions. Of several, those that have a state keep it.
        dry_run: Only show what it would do.
        started: Starts Spark, and stops it; None for the session that the configuration describes.

    Raises:
        StateError: A daemon is running; or there is a state; or the warehouse has nothing of a subscription.
        PublisherError: The server does not answer; or the slot is in use, or is none that can be streamed from.
        TargetError: A table cannot be read, or committed to.

            Then this subscription's state is as before. Of several, the others are made anew.
    """
    with lock.locked(config.state_dir, lock.STOP_FIRST), closing(Catalog(catalog_path(config.state_dir))) as catalog:
        # one that was dropped, or is to begin afresh, has no origin, but has written a document before
        lost = [
            each
            for each in chosen
            if catalog.remote_lsn(each.name) is None and not manifest.is_written(catalog, each.name)
        ]
        if not lost:
            states = ", ".join(f'"{each.name}"' for each in chosen)
            raise errors.StateError(
                f"the state directory {config.state_dir} has the state of {states}",
                hint="only if it is older than the tables, as after a backup was put back: move the directory away, "
                "and repeat the command",
            )
        with (
            started(config, lost) if started else command_session(config, lost, log="spark.log", commits=True) as spark
        ):
            failures = 0
            for subscription in lost:
                catalog.register(subscription.name, enabled=subscription.enabled)
                try:
                    for line in recovered(spark, catalog, subscription, dry_run=dry_run, alone=len(chosen) == 1):
                        yield f"{subscription.name}: {line}" if len(chosen) > 1 else line
                except errors.BridgeError as error:
                    if len(chosen) == 1 or isinstance(error, errors.SparkLost):
                        raise
                    failures += 1
                    yield f"{subscription.name}: not recovered: {error}"
    if failures:
        raise errors.StateError(f"{failures} of {len(lost)} subscriptions are not recovered")


def recovered(
    spark: SparkSession, catalog: Catalog, subscription: Subscription, *, dry_run: bool = False, alone: bool
) -> Iterator[str]:
    """Make one subscription's state anew, whatever the catalog has of it; yields and raises as `recover`.

    Args:
        alone: It was asked for by its name: also one without a slot is made anew.
    """
    with (
        told(spark),
        Publisher(subscription.connection, application_name=recovery_name(subscription.slot_name)) as publisher,
    ):
        yield from _Recovery(spark, catalog, subscription, publisher).run(dry_run=dry_run, alone=alone)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table that follows a stream, by the manifest.

    Attributes:
        beyond: The commits to it that end beyond the origin.
        standing: The last one of this life of the subscription that does not; None if there is none.
        reverted: The same, before a RESTORE by hand has taken it back; None if none has.
        doubtful: It is local, and had such commits, perhaps undone since: nobody knows whether a flush of them failed.
            Or the server lacks them, and may have written as much when it is asked the next time.
        written_ms: When it was last committed to, in milliseconds since 1970; 0 if there is no table.
    """

    rel: RelRow
    beyond: Sequence[Commit]
    standing: Commit | None
    reverted: Commit | None
    doubtful: bool
    written_ms: int


@dataclass(frozen=True, slots=True)
class _Stream:
    """What goes on: the subscription's stream, or its tablesync worker's.

    Attributes:
        origin: Every transaction that ends at or before it is durable in its tables.
        timeline: The timeline that it is on.
        epoch: One that nobody has used.
    """

    row: SubscriptionRow
    origin: Lsn
    timeline: int | None
    tables: Sequence[_Table]
    epoch: int

    def batch(self, flush_lsn: Lsn, *, rebooted: bool) -> catalog_rows.BatchIntent:
        """What was cut short: tables keep it, and messages beyond the origin are deleted, because they come again.

        It is undone in tables that it may not be durable in; and in all, if one has a part of a batch only, or after a
        power cut. It ends where the server's WAL does: no table says where the last messages are.
        """
        beyond = [commit for table in self.tables for commit in table.beyond]
        end_lsn = max([self.origin, flush_lsn, *(Lsn(commit.position or 0) for commit in beyond)])
        undone = rebooted or any(commit.part for commit in beyond)
        doubtful = tuple(table.rel.path for table in self.tables if table.doubtful)
        tables = None if undone else doubtful
        return catalog_rows.BatchIntent(self.origin, end_lsn, alters=undone, flushing=bool(doubtful), tables=tables)


class _Recovery:
    """Makes one subscription's state anew."""

    def __init__(self, spark: SparkSession, catalog: Catalog, subscription: Subscription, publisher: Publisher) -> None:
        self._spark, self._catalog, self._subscription, self._publisher = spark, catalog, subscription, publisher
        self._name, self._sync = subscription.name, catalog_rows.sync_name(subscription.name)
        self._epochs: dict[str, int] = {}  # that the former owner may have used, by the origin's name

    def run(self, *, dry_run: bool, alone: bool) -> Iterator[str]:
        """As `recover`; `alone` if it is the only one."""
        conninfo, slot_name, name = self._subscription.connection, self._subscription.slot_name, self._name
        with ReplicationConnection(conninfo, application_name=recovery_name(slot_name)) as replication:
            server = replication.history()
        known = self._manifest(server)
        begun = known.origin(name) is not None
        status = self._publisher.slot(slot_name)
        lost = status is None or shown_status(status.wal_status, status.invalidation_reason) in LOST
        if lost and not alone:
            raise errors.PublisherError(
                f'replication slot "{slot_name}" is gone or lost; perhaps the subscription was dropped',
                hint=f"to have all its tables copied again, with another slot, run: {remedies.recover(name)}",
            )
        if not lost and begun:  # before anything is claimed
            self._check_slot(slot_name, status)
            self._check_server(server, known)
        generation = 0
        if not dry_run:
            table = table_in(self._subscription.warehouse)
            generation = table.claim(self._spark, origin_of(server.system_identifier, name), slot_name)
            faults.reach("claimed")
            known = self._manifest(server)  # what the former owner wrote last
            begun = known.origin(name) is not None
            warehouse = self._subscription.warehouse
            self._epochs = fence.keep_out(self._spark, known, (name, self._sync), generation, warehouse)
            faults.reach("fenced")
        streams: dict[str, _Stream] = {}
        if lost:
            why = "is gone" if status is None else f"is lost; drop it on the server: {remedies.drop_slot(slot_name)}"
            yield f'replication slot "{slot_name}" {why}: all tables are copied again, with another slot'
        elif not begun:
            yield f'replication slot "{slot_name}" is made again, and all tables are copied: the copy was not done'
        else:
            streams = {owner: stream for owner in (name, self._sync) if (stream := self._stream(owner, known, server))}
            yield f'replication slot "{slot_name}": the stream goes on at {streams[name].origin}'
            if written_ms := max((table.written_ms for table in streams[name].tables), default=0):
                at = dt.datetime.fromtimestamp(written_ms / 1000, dt.UTC)
                again = f"if they were put back from a backup since, run afterwards: {remedies.start_afresh(name)}"
                yield f"the Delta tables were last written to at {at:%F %T} UTC; {again}"
        prepared = LostPrepared(self._subscription, known if streams else None, self._catalog.state_dir)
        if prepared.changes_copied:
            streams.pop(self._sync, None)
        yield from self._told(known, streams, prepared)
        if dry_run:
            yield "nothing is changed"
            return
        if not streams:
            yield from self._drop_sync_slot(known)
        self._make(known, streams, prepared, server, generation)
        yield f"the state is made anew in {self._catalog.state_dir}; start the daemon"

    def _manifest(self, server: ServerHistory) -> Manifest:
        table = table_in(self._subscription.warehouse)
        slot_name = self._subscription.slot_name
        known = table.latest(self._spark, origin_of(server.system_identifier, self._name), slot_name)
        if known is None:
            raise errors.StateError(
                f'{table.path} has nothing of subscription "{self._name}" with the slot "{slot_name}" and the server '
                f"with system identifier {server.system_identifier}",
                hint="compare warehouse, slot_name and connection in the configuration with those it had; one that is "
                "new needs no recovery",
            )
        return known

    def _stream(self, owner: str, known: Manifest, server: ServerHistory) -> _Stream | None:
        """What goes on of the subscription's stream, or of its tablesync worker's; None if that begins anew."""
        row, at = known.subscription(owner), known.origin(owner)
        if row is None or at is None or row.slot_name is None:
            return None
        status = self._publisher.slot(row.slot_name)
        if owner == self._sync and (status is None or status.confirmed_flush_lsn is None):
            return None
        if owner == self._sync and server.missing(Position(None, at[1], at[0])) is not None:
            return None
        self._check_server(server, known)
        slot_lsn = self._check_slot(row.slot_name, status)
        # a server that crashed may have forgotten what was confirmed last
        origin, timeline = max((slot_lsn, server.timeline), (at[0], at[1]), key=lambda each: each[0])
        with ThreadPoolExecutor(TABLES_AT_ONCE, "recover") as pool:
            look = partial(self._look, server, origin, families(row, self._name))
            tables = list(pool.map(look, (rel for rel in known.rels(owner) if rel.state in "fr" and rel.waits is None)))
        return _Stream(row, origin, timeline, tables, max(self._epochs.get(owner, 0), row.epoch) + 1)

    def _check_slot(self, slot_name: str, status: SlotStatus | None) -> Lsn:
        """As `check_slot`; nobody may stream from it."""
        database = self._publisher.database
        lsn = check_slot(slot_name, status, subscription=self._name, database=database, durable_lsn=None)
        if status is not None and status.active:
            raise errors.PublisherError(
                f'replication slot "{slot_name}" is in use by process {status.active_pid} of the server: another '
                "daemon streams from it",
                hint="stop that daemon; a server notices after wal_sender_timeout that a machine is gone",
                retry=True,
            )
        return lsn

    def _check_server(self, server: ServerHistory, known: Manifest) -> None:
        """Check that the server has what the subscription's stream had: once it has written as much, nothing tells.

        Raises:
            PublisherError: It has not; or it is a standby that does not have it yet.
        """
        lsn, timeline = known.origin(self._name) or (INVALID, None)
        here = Position(None, timeline, lsn)
        if (missing := server.missing(here)) is not None:
            drop = remedies.drop_slot(self._subscription.slot_name)
            afresh = f"run on the server: {drop}; then run: {remedies.recover(self._name)}"
            raise refusal(missing, here, anew=f"to copy all tables again, {afresh}")

    def _look(self, server: ServerHistory, origin: Lsn, own: tuple[str, str], rel: RelRow) -> _Table:
        history = history_of(self._spark, rel.path, fence.AT_FIRST)
        since = max(origin, rel.whole_lsn)
        beyond = history.beyond(since)
        lacking = (server.missing(Position(None, commit.timeline, Lsn(commit.position or 0))) for commit in beyond)
        is_local = log_of(place_of(self._spark, rel.path)) is not None
        doubtful = (is_local and history.has_after(since)) or any(missing is not None for missing in lacking)
        written_ms = max((commit.made_ms for commit in history.commits() if not commit.given_up), default=0)
        return _Table(rel, beyond, *history.standing_and_reverted(own, since), doubtful, written_ms)

    def _drop_sync_slot(self, known: Manifest) -> Iterator[str]:
        """Drop the tablesync worker's slot, before nobody knows of it; one that is in use is told, and stays."""
        row = known.subscription(self._sync)  # without a state there is none, or another one of the same name
        sync_slot = row.slot_name if row is not None and row.slot_state is not None else None
        if sync_slot is None or self._publisher.slot(sync_slot) is None:
            return
        name, end_s = recovery_name(self._subscription.slot_name), time.monotonic() + _SLOT_PATIENCE_S
        connection = partial(ReplicationConnection, self._subscription.connection, application_name=name)
        try:
            with connection(stopping=lambda: time.monotonic() > end_s) as replication:
                replication.drop_slot(sync_slot)
        except errors.SyncError:  # somebody streams from it
            yield f'replication slot "{sync_slot}" is in use; when it is not, run: {remedies.drop_slot(sync_slot)}'
        else:
            yield f'dropped replication slot "{sync_slot}" on the publisher'

    def _told(self, known: Manifest, streams: dict[str, _Stream], prepared: LostPrepared) -> Iterator[str]:
        for owner in (self._name, self._sync):
            for rel in known.rels(owner):
                if rel.waits is not None:
                    yield f"{rel.qualified_name}: waits for its resync: {rel.waits}"
                elif rel in prepared.changed:
                    yield f"{rel.qualified_name}: {prepared.what_becomes_of(rel)}"
                elif owner not in streams or rel.state not in "fr":
                    yield f"{rel.qualified_name}: copied again" if streams else f"{rel.qualified_name}: copied"
                else:
                    table = next(table for table in streams[owner].tables if table.rel == rel)
                    beyond = max((Lsn(commit.position or 0) for commit in table.beyond), default=INVALID)
                    undone = "; its changes up to {} are undone, and come again"
                    kept = undone if table.doubtful else ", and has changes up to {}"
                    restored = "was restored by hand; the daemon says what to do"
                    becomes = "goes on" if table.reverted is None else restored
                    yield f"{rel.qualified_name}: {becomes}" + (kept.format(beyond) if beyond else "")

    def _make(
        self,
        known: Manifest,
        streams: dict[str, _Stream],
        prepared: LostPrepared,
        server: ServerHistory,
        generation: int,
    ) -> None:
        """Write the catalog, in one transaction."""
        name, catalog = self._name, self._catalog
        rows = CommitRows.of(self._spark, self._subscription.warehouse)
        rows.ensure()
        main = known.subscription(name)
        assert main is not None  # noqa: S101 - it is its manifest
        # beyond what the former owner may still append
        last_number = max(rows.last_numbers([main.txn_app_id]).get(main.txn_app_id, 0), generation << 32)
        rebooted = local_folder(self._subscription.warehouse) is not None and known.boot_id != boot_id()
        rels = [(owner, rel) for owner in (name, self._sync) for rel in known.rels(owner)]
        own = [(owner, rel) for owner, rel in rels if self._is_own(known, owner, rel)]
        with catalog.transaction() as db:
            reset.forget_rows(catalog, name)
            commits.number_from(catalog, last_number)
            origins = {owner: (stream.origin, stream.timeline) for owner, stream in streams.items()}
            manifest.put_back(db, name, known, origins, generation)
            for owner, rel in own:
                catalog.put_rel(owner, replace(rel, state="d"))
            if not streams:
                if known.origin(name) is not None:
                    reset.start_afresh(catalog, name, {(rel.namespace, rel.name) for _, rel in rels})
                return
            for owner, stream in streams.items():
                self._go_on(owner, stream, stream.batch(server.flush_lsn, rebooted=rebooted))
            if self._sync not in streams and known.subscription(self._sync) is not None:
                refresh.begin_anew(catalog, name)
            for rel in prepared.changed:
                table = (rel.namespace, rel.name)
                if prepared.copies_afresh(rel):
                    refresh.copy_afresh(catalog, name, table)
                else:
                    refresh.have_wait(catalog, name, [table], prepared.what_becomes_of(rel), time.time())
            following = {(rel.namespace, rel.name) for rel in catalog.rels(name) if rel.follows}
            left = [rel for _, rel in rels if (rel.namespace, rel.name) not in following]
            commits.leave(catalog, name, [(rel.namespace, rel.name, rel.path) for rel in left])
            prepared.put_empty()

    def _go_on(self, owner: str, stream: _Stream, batch: catalog_rows.BatchIntent) -> None:
        """Write where a stream is. A table that was restored by hand, or is put back later, is found behind by it."""
        rels = self._catalog.rels_by_name(owner)
        for table in stream.tables:
            if (at := table.reverted or table.standing) is not None:
                rel, lsn = rels[table.rel.namespace, table.rel.name], Lsn(at.position or 0)
                timeline = at.timeline if lsn >= rel.lsn else None  # it joined later, where no commit tells
                self._catalog.put_rel(owner, replace(rel, position=lsn, timeline=timeline))
        self._catalog.raise_epoch(owner, stream.epoch)
        self._catalog.begin_batch(owner, batch)
        if batch.flushing:
            self._catalog.begin_flush(owner)

    def _is_own(self, known: Manifest, owner: str, rel: RelRow) -> bool:
        """Whether a table that was to be copied has rows of a copy that was not recorded: the next may replace them."""
        row = known.subscription(owner)
        if rel.state != "i" or row is None:
            return False
        return history_of(self._spark, rel.path).own((f"{row.txn_app_id}/",)) is not None
