"""A subscription's start: creates the slot, and copies the tables, once `bridge.sync.server_check` has checked it.

For a handler, which gets the changes of the tables, there is no Delta table, and no initial copy.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psycopg

from pgbridge.bridge.batch.routes import Subscribed
from pgbridge.bridge.catalog.catalog_rows import RelRow, owner_of
from pgbridge.bridge.receive.publications import read_publications
from pgbridge.bridge.receive.publisher import Publisher, quoted_table
from pgbridge.bridge.receive.slot import ReplicationConnection, Snapshot
from pgbridge.bridge.receive.stream.pgoutput_options import pgoutput_options
from pgbridge.bridge.runtime import errors, faults, remedies
from pgbridge.bridge.targets.location import table_path
from pgbridge.bridge.targets.target import Target, target_schema
from pgbridge.protocol.lsn import INVALID
from pgbridge.protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.apply.context import Context
    from pgbridge.bridge.apply.published import Published
    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.sync.server_check import ServerCheck
    from pgbridge.bridge.sync.tablesync import TableSync
    from pgbridge.bridge.track.position import ServerHistory


class Start:
    """Brings a subscription to where its stream can begin. It may be cut short anywhere; the next start goes on.

    Args:
        context: The worker's.
        publisher: For catalog queries.
        sync: Copies the tables.
        published: Those that are published; new ones are added to the subscription.
        check: Checks the server.
        current: Tells what is published now.

    Attributes:
        copied_as: What was published when tables were copied; None if none was.
    """

    def __init__(
        self,
        context: Context,
        publisher: Publisher,
        sync: TableSync | HandledTables,
        published: Mapping[tuple[str, str], PublishedTable],
        check: ServerCheck,
        current: Callable[[], Published],
    ) -> None:
        self._subscription, self._catalog, self._log = context.subscription, context.catalog, context.log
        self._stopping = context.waiting
        self._publisher, self._sync, self._published, self._check = publisher, sync, published, check
        self._current = current
        self.copied_as: Published | None = None

    def run(self) -> dict[tuple[str, str], errors.BridgeError]:
        """Create the slot if there is no origin yet, and copy the tables that need it.

        Returns:
            The errors of tables that could not be copied; all others are copied.

        Raises:
            PublisherError: The server or the slot is not the one that the state directory knows, the server refuses, or
                it lacks an option.
            TargetError: Another subscription writes to a Delta table.
            SyncError: The worker is to stop.
        """
        # checked before a slot is created: a slot that nobody streams from retains WAL
        pgoutput_options(self._subscription, self._publisher.version, binary_readable=True)
        warn_without_identity(self._publisher, self._subscription.publications, self._log)
        name = self._subscription.name
        with self._check.connection() as replication:
            snapshot = None
            if self._catalog.remote_lsn(name) is None:
                snapshot = self._create_origin(replication, replication.history())
            if any(self._sync.needs_copy(rel) for rel in self._catalog.rels(name)):
                if snapshot is None or snapshot.name is None:
                    # The slot's own snapshot is gone. A temporary slot gives another one, at a later LSN, from which
                    # on the tables follow the stream.
                    timeline = replication.history().timeline
                    snapshot = replication.create_slot(f"pgbridge_sync_{uuid.uuid4().hex[:12]}", temporary=True)
                    snapshot = replace(snapshot, timeline=timeline)
                # An ALTER PUBLICATION may have been committed while the slot waited for transactions: the stream
                # filters by it from the snapshot on. tablesync.c reads it after the slot is made, too.
                self.copied_as = self._current()
                failures = self._sync.copy(self.copied_as.tables, self._publisher, snapshot)
                if not (failures and self._stopping()):  # hours may have passed
                    self._sync.check_owned()
                    self._check.check(replication)
                return failures
            return {}

    def _create_origin(self, replication: ReplicationConnection, server: ServerHistory) -> Snapshot:
        """Create the slot, or take the existing one with `create_slot = false`, and create the origin at its LSN."""
        name, slot_name = self._subscription.name, self._subscription.slot_name
        system_identifier = server.system_identifier
        self._sync.check_new(system_identifier)
        row = self._catalog.subscription(name)
        known = self._catalog.rels_by_name(name)
        new = (table for key, table in self._published.items() if key not in known)
        rels = self._sync.new_rels(new, known.values())
        status = self._publisher.slot(slot_name)
        creates = self._subscription.create_slot
        made = (row.slot_name, row.slot_state, row.system_identifier) if row is not None else None
        snapshot = None if creates else Snapshot(None, self._check.check_slot(status, None))
        claimed = self._catalog.claim(name, [f"slot:{system_identifier}/{slot_name}"])  # two may begin at once
        begun = self._catalog.slot_owner(slot_name, system_identifier, but=name, exists=status is not None)
        if owner := begun or (claimed and claimed[1]):
            raise shared_slot(slot_name, owner)
        if creates and status is not None and made != (slot_name, "creating", system_identifier):
            raise foreign_slot(slot_name, None if isinstance(self._sync, HandledTables) else name)
        state = "creating" if creates else "ready"
        # Kept for another try with the same tables, also of another machine: what comes late of an earlier try is
        # ignored by its stamp. So it is recorded before the first copy.
        incarnation = (row.incarnation if row is not None else None) or uuid.uuid4().hex[:12]
        self._catalog.set_slot(
            name,
            slot_name=slot_name,
            slot_state=state,
            system_identifier=system_identifier,
            incarnation=incarnation,
        )
        self._sync.begin_another_life(system_identifier)
        if snapshot is None:
            if status is not None:  # created just before a crash, and never streamed from
                kind = status.slot_type, status.plugin, status.database
                if kind != ("logical", "pgoutput", self._publisher.database):
                    raise foreign_slot(slot_name, None if isinstance(self._sync, HandledTables) else name)
                replication.drop_slot(slot_name)
            snapshot = self._create_slot(replication)
            faults.reach("slot_created")
            self._log.info("created replication slot", slot_name=slot_name, lsn=str(snapshot.consistent_point))
        self._catalog.create_origin(name, snapshot.consistent_point, incarnation, rels, server.timeline)
        return replace(snapshot, timeline=server.timeline)

    def _create_slot(self, replication: ReplicationConnection) -> Snapshot:
        """Create the slot; one that somebody else makes after a refusal is not taken for ours."""
        try:
            return replication.create_slot(
                self._subscription.slot_name,
                export_snapshot=self._subscription.copy_data,
                two_phase=self._subscription.two_phase,
                failover=self._subscription.failover,
            )
        except (errors.PublisherError, errors.SyncError) as error:
            answer = error.__cause__
            if isinstance(answer, psycopg.Error) and answer.sqlstate is not None:
                self._catalog.forget_slot(self._subscription.name)
            raise


def shared_slot(slot_name: str, owner: str) -> errors.PublisherError:
    """Return the error for a slot that two subscriptions would stream from."""
    return errors.PublisherError(
        f'replication slot "{slot_name}" is that of subscription "{owner}"',
        hint="set another slot_name for one of them",
    )


def foreign_slot(slot_name: str, subscription: str | None) -> errors.PublisherError:
    """Return the error for a slot that is there before a subscription creates it.

    Args:
        subscription: Its name; None if it has no warehouse.
    """
    recover = f"if the state was lost, run: {remedies.recover(owner_of(subscription))}; else " if subscription else ""
    return errors.PublisherError(
        f'replication slot "{slot_name}" already exists on the publisher, and this state directory did not create it',
        hint=f"{recover}choose another slot_name (in Python: another name), or set create_slot = false to use it from "
        "where it stands; only if no other state directory and no program streams from it, drop it on the server: "
        f"{remedies.drop_slot(slot_name)}",
    )


def warn_without_identity(publisher: Publisher, publications: Sequence[str], log: FilteringBoundLogger) -> None:
    """Warn of published tables whose UPDATEs and DELETEs the server refuses, for want of a replica identity.

    This is no error: the server accepts INSERTs (`CheckCmdReplicaIdentity`), and they are replicated.
    """
    with publisher.snapshot():
        existing = read_publications(publisher, publications)
        changing = [publication.name for publication in existing if publication.actions & {"update", "delete"}]
        tables = publisher.tables(changing) if changing else ()
    for table in tables:
        if table.relkind == "r" and table.cut_identity:
            log.warning(
                "the server refuses UPDATE and DELETE of a published table: the column list lacks columns of its key",
                relation=table.qualified_name,
                hint=f"add to the column list: {', '.join(sorted(table.cut_identity))}",
            )
        elif table.relkind == "r" and table.columns and not table.has_identity:
            name = quoted_table(table.namespace, table.name)
            log.warning(
                "the server refuses UPDATE and DELETE of a published table: it has no replica identity",
                relation=table.qualified_name,
                hint=f"ALTER TABLE {name} ADD PRIMARY KEY (…); or ALTER TABLE {name} REPLICA IDENTITY FULL;",
            )


@dataclass(eq=False)
class HandledTables:
    """Does for a handler what `TableSync` does for Delta tables."""

    subscription: Subscription
    catalog: Catalog

    def check_new(self, system_identifier: str) -> None:
        """There is no warehouse."""

    begin_another_life = check_new

    def record(self) -> None:
        """There is no warehouse."""

    check_owned = record

    def new_rels(self, tables: Iterable[PublishedTable], known: Iterable[RelRow] = ()) -> list[RelRow]:
        """Return catalog rows for new tables; their path is no path."""
        del known
        return [
            RelRow(table.namespace, table.name, "r", INVALID, self._path(table.namespace, table.name), table.relid)
            for table in tables
        ]

    def _path(self, namespace: str, name: str) -> str:
        return table_path(f"handler:{self.subscription.name}", namespace, name)

    def needs_copy(self, rel: RelRow) -> bool:
        """Whether the table is to be copied: never."""
        del rel
        return False

    def copy(
        self, tables: Mapping[tuple[str, str], PublishedTable], publisher: Publisher, snapshot: Snapshot
    ) -> dict[tuple[str, str], errors.BridgeError]:
        """Copy nothing."""
        del tables, publisher, snapshot
        return {}

    def follow(
        self, tables: Mapping[tuple[str, str], PublishedTable], publisher: Publisher, server: ServerHistory
    ) -> dict[tuple[str, str], Subscribed]:
        """Return the tables that follow the stream, by (namespace, name): all that are published now.

        Any other one follows as soon as the stream has it (`other`): the server only sends what is published.
        """
        del server  # what the function has written is not known here
        name = self.subscription.name
        known = self.catalog.rels_by_name(name)
        subscribed: dict[tuple[str, str], Subscribed] = {}
        for key, table in tables.items():
            (rel,) = self.new_rels([table])
            if known.get(key) != rel:
                self.catalog.put_rel(name, rel)
            types = publisher.types(column.type_oid for column in table.columns)
            fields = [(column.name, resolve(column.type_oid, column.typmod, types).arrow) for column in table.columns]
            target = Target(*key, rel.path, target_schema(fields), "handler")
            subscribed[key] = Subscribed(target, INVALID, cut_identity=table.cut_identity)
        return subscribed

    def other(self, namespace: str, name: str) -> Subscribed:
        """Return a table that was added, or got its name, after `follow`; or had it before."""
        return Subscribed(Target(namespace, name, self._path(namespace, name), (), "handler"), INVALID)
