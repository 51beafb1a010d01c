"""Compares all that is durable here with a server, on the very connection that streams, and with the tables' own logs.

The first look at the server is when a subscription starts, and again after a copy, which may take hours. It has tables
copied afresh, or a batch taken back, that the server does not have. The second is on the stream's own connection, just
before START_REPLICATION: then there is nothing to be done any more, or all begins again. The slot is looked at once
more when the stream runs, because the server goes on silently from where the slot is, if that is further than where it
is asked to begin. From then on nobody else can move the slot.

What a Delta table's own log says of its position is believed, whatever the catalog knows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog import catalog_rows, refresh
from pgbridge.bridge.catalog.held import held, note_timeline, timeline_begins
from pgbridge.bridge.lake.table_position import TablePosition, behind, table_position
from pgbridge.bridge.receive.connection import stream_name
from pgbridge.bridge.receive.server_facts import is_synchronous
from pgbridge.bridge.receive.slot import ReplicationConnection, check_slot, refusal, refused_by
from pgbridge.bridge.runtime import errors, remedies
from pgbridge.bridge.track.position import Held, Position, ServerHistory, compare
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.apply.context import Context
    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.receive.publisher import Publisher
    from pgbridge.bridge.receive.slot_status import SlotStatus


class ServerCheck:
    """Checks the server of a subscription, or of a tablesync worker; `publisher` is for catalog queries."""

    def __init__(self, context: Context, publisher: Publisher) -> None:
        self._subscription, self._catalog, self._log = context.subscription, context.catalog, context.log
        self._publisher, self._stopping = publisher, context.waiting
        self._standby: ReplicationConnection | None = None

    def look(self) -> ServerHistory:
        """Check the server on a connection of its own (see `check`)."""
        with self.connection() as replication:
            return self.check(replication)

    def connection(self) -> ReplicationConnection:
        """Open a walsender's connection."""
        name = self._subscription.name
        return ReplicationConnection(self._subscription.connection, application_name=name, stopping=self._stopping)

    def check(self, replication: ReplicationConnection) -> ServerHistory:
        """Compare the server and the slot with all that is durable here, and have made good what can be.

        Afterwards the server has all that is durable, but for tables that the catalog has to be copied afresh, and for
        a batch under way that the catalog has to be taken back.

        Raises:
            PublisherWentBack: The server has lost WAL that is durable here, or has other WAL in its place.
            SlotAdvanced: The slot has confirmed changes that are not durable here.
            PublisherError: It is another server, or a standby that lags; or the slot is of no use.
        """
        server = replication.history()
        name = self._subscription.name
        positions = held(self._catalog, name)
        if positions is None:
            return server
        if (refused := refused_by(positions, server, catalog_rows.owner_of(name))) is not None:
            raise refused
        compared = compare(positions, server)
        if compared.undo and positions.batch is not None:
            self._catalog.begin_undo(name)
            self._log.warning(
                "a batch that was cut short is taken back: the publisher lost its transactions",
                end_lsn=str(positions.batch),
            )
        for table, missing in compared.afresh.items():
            refresh.copy_afresh(self._catalog, name, table)
            self._log.warning(
                "a table is copied afresh: it has transactions that the publisher lost",
                relation=".".join(table),
                position=str(positions.tables[table]),
                reason=missing.reason,
            )
        if compared.skips_another:
            self._catalog.set_skip_lsn(name, None)
            self._log.warning(
                f'skip-LSN of subscription "{name}" cleared: the publisher lost its transaction',
                skip_lsn=str(positions.skip),
            )
        self._note(server, positions)
        status = self._publisher.slot(self._subscription.slot_name)
        self.check_slot(status, positions.origin.lsn)
        if status is not None:
            self._set_failover(replication, status, in_recovery=server.in_recovery)
        return server

    def admit(self, replication: ReplicationConnection) -> None:
        """Check, on the connection that is about to stream, that the server is as `check` has left it.

        Raises:
            PublisherError: It is not; with `retry`, so that all begins again with `check`.
        """
        server = replication.history()
        name = self._subscription.name
        positions = held(self._catalog, name)
        if positions is None or not compare(positions, server).has_all:
            raise errors.PublisherError(
                f"the publisher changed before the stream began: it is on timeline {server.timeline} now, with WAL up "
                f"to {server.flush_lsn}, and does not have all that is durable here",
                hint="pgbridge compares it once more, and says what it lacks",
                retry=True,
            )
        if server.started_us != self._publisher.started_us():
            raise errors.PublisherError("the publisher was restarted, or another server took its place", retry=True)
        self._note(server, positions)
        self._standby = self.connection() if server.in_recovery else None

    def certify(self) -> None:
        """Record on which timeline all is that the stream has sent so far.

        A primary stays on one as long as it runs. A standby may change it, and sends on: so it is asked again, on a
        connection of its own. Whatever a running server has sent is in its own history.

        Raises:
            PublisherError: The standby does not answer any more.
        """
        if self._standby is not None:
            note_timeline(self._catalog, self._subscription.name, self._standby.history())

    def close(self) -> None:
        """The stream has ended: close the connection to a standby."""
        if self._standby is not None:
            self._standby.close()
            self._standby = None

    def admitted(self) -> None:
        """Check the slot once more, now that the stream runs and nobody else can move it.

        Raises:
            SlotAdvanced: Somebody moved it before the stream began.
        """
        name, slot_name = self._subscription.name, self._subscription.slot_name
        status = self._publisher.slot(slot_name)
        self.check_slot(status, self._catalog.remote_lsn(name) or INVALID)
        row = self._catalog.subscription(name)
        is_worker = catalog_rows.owner_of(name) != name  # which drops its former slot itself
        if row and row.system_identifier and row.slot_name and row.slot_name != slot_name and not is_worker:
            before, system_identifier = row.slot_name, row.system_identifier
            # so that drop, resync and a recovery know it
            self._catalog.set_slot(name, slot_name=slot_name, slot_state="ready", system_identifier=system_identifier)
            self._log.warning(
                "the subscription streams from another slot than before, which keeps WAL as long as it exists",
                slot_name=slot_name,
                before=before,
                hint=f"if nothing else streams from it, drop it on the server: {remedies.drop_slot(before)}",
            )
        names = self._publisher.setting("synchronous_standby_names")
        # a standby has the primary's setting, and no commits
        if self._standby is None and is_synchronous(names, stream_name(self._subscription.connection, name)):
            self._log.warning(
                "the publisher's commits wait for this subscription, for ever if it is stopped",
                synchronous_standby_names=names,
                hint="name the standbys that are meant, without pgbridge's application_name and without *",
            )

    def check_slot(self, status: SlotStatus | None, durable_lsn: Lsn | None) -> Lsn:
        """Check the slot before streaming from it; return its confirmed_flush_lsn. Raises as `receive.slot.check_slot`.

        Args:
            status: Its row; None if it does not exist.
            durable_lsn: The origin's LSN; None before there is one.
        """
        slot_name = self._subscription.slot_name
        lsn = check_slot(
            slot_name,
            status,
            subscription=catalog_rows.owner_of(self._subscription.name),
            database=self._publisher.database,
            durable_lsn=durable_lsn,
        )
        if status is not None and status.two_phase and not self._subscription.two_phase:
            self._log.warning(
                "two_phase = false has no effect: the slot sends prepared transactions at PREPARE TRANSACTION",
                slot_name=slot_name,
            )
        return lsn

    def _note(self, server: ServerHistory, positions: Held) -> None:
        """Record the timeline, of which all is from now on that is streamed."""
        before = note_timeline(self._catalog, self._subscription.name, server)
        if before not in {None, server.timeline}:
            self._log.info(
                "the publisher has switched to another timeline",
                timeline=server.timeline,
                before=before,
                origin=str(positions.origin),
            )

    def _set_failover(self, replication: ReplicationConnection, status: SlotStatus, *, in_recovery: bool) -> None:
        """Have the slot synchronized to standbys if the subscription asks for it.

        It is never taken from a slot: an operator may have given it by hand.
        """
        slot_name = self._subscription.slot_name
        if self._subscription.failover and not status.failover and not in_recovery:
            replication.set_failover(slot_name)
            self._log.info("set failover of the replication slot", slot_name=slot_name)


class OwnPositions:
    """Reads the positions of the tables of a subscription, or of a tablesync worker."""

    def __init__(self, spark: SparkSession, catalog: Catalog, name: str, log: FilteringBoundLogger) -> None:
        self._spark = spark
        self._catalog = catalog
        self._name = name
        self._log = log

    def read(self, rel: catalog_rows.RelRow) -> TablePosition:
        """Return the position in a table's log; raises as `table_position`."""
        row = self._catalog.subscription(self._name)
        assert row is not None  # noqa: S101 - the worker has registered it
        return table_position(self._spark, row, catalog_rows.owner_of(self._name), rel)

    def believed(self, rel: catalog_rows.RelRow, position: TablePosition, server: ServerHistory) -> catalog_rows.RelRow:
        """Return a table's row with the position of its own log, which counts.

        Raises:
            TargetError: The log is behind what the catalog knows.
            TableAhead: The server does not have what the table has. The catalog has it copied afresh.
            PublisherError: It is a standby that does not have it yet.
        """
        name = self._name
        self._catalog.raise_epoch(name, position.epoch)
        # a table that joined by a copy has at least that one's commit
        known = rel.position or rel.lsn if position.lsn == INVALID else rel.position
        if position.lsn < known and (position.lsn or position.is_whole):
            raise self._behind(rel, position)
        # a RESTORE by hand may have put back what it had at the same LSN of another timeline
        other_line = position.lsn == rel.position and position.timeline not in {None, rel.timeline}
        if position.lsn <= rel.position and not other_line and not position.is_former:
            return rel
        # commits of earlier versions do not say; they were made on the timeline that was known then
        timeline = position.timeline if position.timeline is not None else rel.timeline
        begin_lsn = timeline_begins(self._catalog, name).get(timeline)
        at = Position(server.system_identifier, timeline, position.lsn, begin_lsn)
        if (missing := server.missing(at)) is not None:
            if missing.later:
                raise refusal(missing, at, anew="")
            refresh.copy_afresh(self._catalog, name, (rel.namespace, rel.name))
            raise errors.TableAhead(
                f'the Delta table of "{rel.qualified_name}" has changes up to {at}, which the publisher does not have: '
                f"{missing.reason}",
                hint="the table is copied afresh now",
            )
        if position.is_former:  # the server may have written as much again; the table lacks this life's copy
            raise self._behind(rel, position)
        if other_line:
            return rel
        joined_lsn = max(rel.lsn, position.lsn) if position.copied else rel.lsn
        if position.lsn < joined_lsn:  # it joined later, where no commit tells
            timeline = rel.timeline
        rel = replace(rel, lsn=joined_lsn, position=position.lsn, timeline=timeline)
        if rel.position > (self._catalog.remote_lsn(name) or INVALID):
            self._log.info(
                "a table keeps what it has beyond the origin", relation=rel.qualified_name, lsn=str(rel.position)
            )
        return rel

    def _behind(self, rel: catalog_rows.RelRow, position: TablePosition) -> errors.TargetError:
        owner = catalog_rows.owner_of(self._name)
        return behind(self._spark, rel, owner, position.lsn, is_former=position.is_former)
