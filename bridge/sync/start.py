"""A subscription's start: checks the server, creates or checks the slot, and copies the tables."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from bridge import faults
from bridge.errors import PublisherError
from bridge.receive.pgoutput_options import pgoutput_options
from bridge.receive.publications import read_publications
from bridge.receive.publisher import quoted_table
from bridge.receive.slot import ReplicationConnection, Snapshot, check_slot
from bridge.receive.timeline_history import check_history, check_same_server
from bridge.track.timeline import set_timeline, timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from bridge.config import Subscription
    from bridge.errors import BridgeError
    from bridge.publication.published_table import PublishedTable
    from bridge.receive.publisher import Publisher, SlotStatus
    from bridge.receive.timeline_history import ServerIdentity
    from bridge.sync.handled_tables import HandledTables
    from bridge.sync.tablesync import TableSync
    from bridge.track.catalog import Catalog
    from protocol.lsn import Lsn


class Start:
    """Brings a subscription to where its stream can begin. It may be cut short anywhere; the next start goes on."""

    def __init__(
        self,
        subscription: Subscription,
        catalog: Catalog,
        publisher: Publisher,
        sync: TableSync | HandledTables,
        published: Mapping[tuple[str, str], PublishedTable],
        log: FilteringBoundLogger,
        *,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stopping = stopping
        self._subscription = subscription
        self._catalog = catalog
        self._publisher = publisher
        self._sync = sync
        self._published = published
        self._log = log

    def run(self) -> dict[tuple[str, str], BridgeError]:
        """Create or check the slot, and copy the tables that need it.

        Returns:
            The errors of tables that could not be copied; all others are copied.

        Raises:
            PublisherError: The server or the slot is not the one that the state directory knows, the server refuses, or
                it lacks an option.
            TargetError: Another subscription writes to a Delta table.
            SyncError: `stopping` returned True.
        """
        # checked before a slot is created: a slot that nobody streams from retains WAL
        pgoutput_options(self._subscription, self._publisher.version, binary_readable=True)
        warn_without_identity(self._publisher, self._subscription.publications, self._log)
        name = self._subscription.name
        with ReplicationConnection(
            self._subscription.connection, application_name=name, stopping=self._stopping
        ) as replication:
            server = replication.identify_system()
            snapshot = None
            if self._catalog.remote_lsn(name) is None:
                set_timeline(self._catalog, name, None if self._publisher.in_recovery() else server.timeline)
                snapshot = self._create_origin(replication, server.system_identifier)
            else:
                self._check(replication, server)
            if any(self._sync.needs_copy(rel) for rel in self._catalog.rels(name)):
                if snapshot is None or snapshot.name is None:
                    # The slot's own snapshot is gone. A temporary slot gives another one, at a later LSN, from which
                    # on the tables follow the stream.
                    snapshot = replication.create_slot(f"pgbridge_sync_{uuid.uuid4().hex[:12]}", temporary=True)
                errors = self._sync.copy(self._published, self._publisher, snapshot)
                if not (errors and self._stopping()):
                    self._check(replication, replication.identify_system())  # hours may have passed
                return errors
            return {}

    def _check(self, replication: ReplicationConnection, server: ServerIdentity) -> None:
        """Check that the server, its history and the slot are those that the catalog knows."""
        name = self._subscription.name
        row, remote_lsn = self._catalog.subscription(name), self._catalog.remote_lsn(name)
        if row is not None:
            check_same_server(server, row.system_identifier)
        if remote_lsn is not None:
            known = timeline(self._catalog, name)
            found = check_history(
                server,
                subscription=name,
                standby=self._publisher.in_recovery(),
                remote_lsn=remote_lsn,
                timeline=known,
                history=replication.timeline_history,
            )
            if found != known:
                set_timeline(self._catalog, name, found)
                self._log.info("the publisher has switched to another timeline", timeline=found, before=known)
        status = self._publisher.slot(self._subscription.slot_name)
        self._check_slot(status, remote_lsn)
        if status is not None:
            self._set_failover(replication, status)

    def _set_failover(self, replication: ReplicationConnection, status: SlotStatus) -> None:
        """Have the slot synchronized to standbys if the subscription asks for it.

        It is never taken from a slot: an operator may have given it by hand.
        """
        slot_name = self._subscription.slot_name
        if self._subscription.failover and not status.failover and not self._publisher.in_recovery():
            replication.set_failover(slot_name)
            self._log.info("set failover of the replication slot", slot_name=slot_name)

    def _check_slot(self, status: SlotStatus | None, durable_lsn: Lsn | None) -> Lsn:
        slot_name = self._subscription.slot_name
        lsn = check_slot(
            slot_name,
            status,
            subscription=self._subscription.name,
            database=self._publisher.database,
            durable_lsn=durable_lsn,
        )
        if status is not None and status.two_phase and not self._subscription.two_phase:
            self._log.warning(
                "two_phase = false has no effect: the slot sends prepared transactions at PREPARE TRANSACTION",
                slot_name=slot_name,
            )
        return lsn

    def _create_origin(self, replication: ReplicationConnection, system_identifier: str) -> Snapshot:
        """Create the slot, or take the existing one with `create_slot = false`, and create the origin at its LSN."""
        name, slot_name = self._subscription.name, self._subscription.slot_name
        row = self._catalog.subscription(name)
        known = {(rel.namespace, rel.name): rel for rel in self._catalog.rels(name)}
        new = (table for key, table in self._published.items() if key not in known)
        rels = self._sync.new_rels(new, known.values())
        status = self._publisher.slot(slot_name)
        if not self._subscription.create_slot:
            snapshot = Snapshot(None, self._check_slot(status, None))
            self._set_slot("ready", system_identifier)
        else:
            made = (row.slot_name, row.slot_state, row.system_identifier) if row is not None else None
            if status is not None and made != (slot_name, "creating", system_identifier):
                raise PublisherError(
                    f'replication slot "{slot_name}" already exists on the publisher, '
                    "and this state directory did not create it",
                    hint="set create_slot = false to use it from where it stands, or choose another slot_name; or, "
                    f"if nothing needs it, run on the server: SELECT pg_drop_replication_slot('{slot_name}');",
                )
            if status is not None:
                replication.drop_slot(slot_name)  # created just before a crash, and never streamed from
            self._set_slot("creating", system_identifier)
            snapshot = replication.create_slot(
                slot_name,
                export_snapshot=self._subscription.copy_data,
                two_phase=self._subscription.two_phase,
                failover=self._subscription.failover,
            )
            faults.reach("slot_created")
            self._log.info("created replication slot", slot_name=slot_name, lsn=str(snapshot.consistent_point))
        # kept for another try with the same tables, so that a late commit of the earlier try is ignored by its stamp
        incarnation = (row.incarnation if row is not None else None) or uuid.uuid4().hex[:12]
        self._catalog.create_origin(name, snapshot.consistent_point, incarnation, rels)
        return snapshot

    def _set_slot(self, state: str, system_identifier: str) -> None:
        self._catalog.set_slot(
            self._subscription.name,
            slot_name=self._subscription.slot_name,
            slot_state=state,
            system_identifier=system_identifier,
        )


def warn_without_identity(publisher: Publisher, publications: Sequence[str], log: FilteringBoundLogger) -> None:
    """Warn of published tables whose UPDATEs and DELETEs the server refuses, for want of a replica identity.

    This is no error: the server accepts INSERTs (`CheckCmdReplicaIdentity`), and they are replicated.
    """
    found = read_publications(publisher, publications)
    changing = [publication.name for publication in found if publication.actions & {"update", "delete"}]
    for table in publisher.tables(changing) if changing else ():
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
