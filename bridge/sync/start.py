"""A subscription's start: an origin, a slot that fits it, and every table copied."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from bridge import faults
from bridge.errors import PublisherError
from bridge.receive.pgoutput_options import pgoutput_options
from bridge.receive.publications import read_publications
from bridge.receive.publisher import quoted_name
from bridge.receive.slot import ReplicationConnection, Snapshot, check_slot
from bridge.receive.timeline_history import check_history
from bridge.track.timeline import set_timeline, timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from bridge.config import Subscription
    from bridge.errors import BridgeError
    from bridge.publication.published_table import PublishedTable
    from bridge.receive.publisher import Publisher, SlotStatus
    from bridge.receive.timeline_history import ServerIdentity
    from bridge.sync.tablesync import TableSync
    from bridge.track.catalog import Catalog
    from protocol.lsn import Lsn


class Start:
    """Brings a subscription to where it can stream. Can be cut short anywhere, and goes on from there."""

    def __init__(
        self,
        subscription: Subscription,
        catalog: Catalog,
        publisher: Publisher,
        sync: TableSync,
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
        """Make or check the slot, and copy what is to be copied.

        Returns:
            Why tables are not copied; the others are.

        Raises:
            PublisherError: The server, or the slot, is not the one the state belongs to, or refuses; or the server
                lacks an option.
            TargetError: A target belongs to another subscription.
            SyncError: `stopping` said so.
        """
        # before there is a slot: one that nobody streams from holds WAL
        pgoutput_options(self._subscription, self._publisher.version, binary_readable=True)
        name_without_identity(self._publisher, self._subscription.publications, self._log)
        name = self._subscription.name
        with ReplicationConnection(
            self._subscription.connection, application_name=name, stopping=self._stopping
        ) as replication:
            server = replication.identify_system()
            snapshot = None
            if self._catalog.remote_lsn(name) is None:
                set_timeline(self._catalog, name, None if self._publisher.in_recovery() else server.timeline)
                snapshot = self._first(replication, server.system_identifier)
            else:
                self._check(replication, server)
            if any(self._sync.needs_copy(rel) for rel in self._catalog.rels(name)):
                if snapshot is None or snapshot.name is None:
                    # The slot's own snapshot is gone: a temporary one's comes with an LSN of its own, from which
                    # on its tables follow the stream.
                    snapshot = replication.create_slot(f"pgbridge_sync_{uuid.uuid4().hex[:12]}", temporary=True)
                errors = self._sync.copy(self._published, self._publisher, snapshot)
                if not (errors and self._stopping()):
                    self._check(replication, replication.identify_system())  # hours may have passed
                return errors
            return {}

    def _check(self, replication: ReplicationConnection, server: ServerIdentity) -> None:
        """The state is there: server, history and slot must be those it was made with."""
        name = self._subscription.name
        row, remote_lsn = self._catalog.subscription(name), self._catalog.remote_lsn(name)
        if row is not None and row.system_identifier != server.system_identifier:
            raise PublisherError(
                f"the publisher is another server: its system identifier is {server.system_identifier}, "
                f"the subscription's state is of {row.system_identifier}",
                hint="check the connection string; a new server needs a new state_dir and warehouse",
            )
        if remote_lsn is not None:
            known = timeline(self._catalog, name)
            found = check_history(
                server,
                standby=self._publisher.in_recovery(),
                remote_lsn=remote_lsn,
                timeline=known,
                history=replication.timeline_history,
            )
            if found != known:
                set_timeline(self._catalog, name, found)
                self._log.info("the publisher's timeline is another", timeline=found, before=known)
        self._check_slot(self._publisher.slot(self._subscription.slot_name), remote_lsn)

    def _check_slot(self, status: SlotStatus | None, durable_lsn: Lsn | None) -> Lsn:
        slot_name = self._subscription.slot_name
        lsn = check_slot(slot_name, status, database=self._publisher.database, durable_lsn=durable_lsn)
        if status is not None and status.two_phase and not self._subscription.two_phase:
            self._log.warning(
                "prepared transactions are received at PREPARE TRANSACTION although two_phase = false: the slot has it",
                slot_name=slot_name,
            )
        return lsn

    def _first(self, replication: ReplicationConnection, system_identifier: str) -> Snapshot:
        """The slot is made, or with `create_slot = false` taken as it stands; the origin begins there."""
        name, slot_name = self._subscription.name, self._subscription.slot_name
        row = self._catalog.subscription(name)
        known = {(rel.namespace, rel.name) for rel in self._catalog.rels(name)}
        rels = self._sync.new_rels(table for key, table in self._published.items() if key not in known)
        status = self._publisher.slot(slot_name)
        if not self._subscription.create_slot:
            snapshot = Snapshot(None, self._check_slot(status, None))
            self._set_slot("ready", system_identifier)
        else:
            made = (row.slot_name, row.slot_state, row.system_identifier) if row is not None else None
            if status is not None and made != (slot_name, "creating", system_identifier):
                raise PublisherError(
                    f'replication slot "{slot_name}" already exists on the publisher, '
                    "and this state directory does not know it",
                    hint="set create_slot = false to go on from where it stands, or slot_name to another name; or, "
                    f"if nothing needs it, run on the server: SELECT pg_drop_replication_slot('{slot_name}');",
                )
            if status is not None:
                replication.drop_slot(slot_name)  # made by us just before a crash, and never streamed from
            self._set_slot("creating", system_identifier)
            snapshot = replication.create_slot(
                slot_name,
                export_snapshot=self._subscription.copy_data,
                two_phase=self._subscription.two_phase,
            )
            faults.reach("slot_created")
            self._log.info("created replication slot", slot_name=slot_name, lsn=str(snapshot.consistent_point))
        # where tables are brought in anew, an earlier try's commit that is still on its way must know that it is late
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


def name_without_identity(publisher: Publisher, publications: Sequence[str], log: FilteringBoundLogger) -> None:
    """Warn of tables whose UPDATEs and DELETEs are published, and refused by the server for want of an identity.

    No error: it takes INSERTs of them (`CheckCmdReplicaIdentity`), and they are replicated.
    """
    found = read_publications(publisher, publications)
    changing = [publication.name for publication in found if publication.actions & {"update", "delete"}]
    for table in publisher.tables(changing) if changing else ():
        if table.relkind == "r" and table.cut_identity:
            log.warning(
                "the server refuses UPDATE and DELETE of a table that publishes them by a column list without its key",
                relation=table.qualified_name,
                hint=f"the column list needs all of {', '.join(sorted(table.cut_identity))}",
            )
        elif table.relkind == "r" and table.columns and not table.has_identity:
            name = f"{quoted_name(table.namespace)}.{quoted_name(table.name)}"
            log.warning(
                "the server refuses UPDATE and DELETE of a table that publishes them without a replica identity",
                relation=table.qualified_name,
                hint=f"ALTER TABLE {name} ADD PRIMARY KEY (…); or ALTER TABLE {name} REPLICA IDENTITY FULL;",
            )
