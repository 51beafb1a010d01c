"""What a Delta table's own log says of its position, beside what the catalog knows: the log is believed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bridge.catalog.catalog_rows import RelRow, owner_of
from bridge.catalog.held import timeline_begins
from bridge.catalog.refresh import copy_afresh
from bridge.lake.table_position import TablePosition, table_position, version_at
from bridge.receive.slot import refusal
from bridge.runtime import remedies
from bridge.runtime.errors import TableAhead, TargetError
from bridge.targets.location import sql_name
from bridge.track.position import Position, ServerHistory
from protocol.lsn import INVALID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from bridge.catalog.catalog import Catalog


class OwnPositions:
    """Reads the positions of the tables of a subscription, or of a tablesync worker."""

    def __init__(self, spark: SparkSession, catalog: Catalog, name: str, log: FilteringBoundLogger) -> None:
        self._spark = spark
        self._catalog = catalog
        self._name = name
        self._log = log

    def read(self, rel: RelRow) -> TablePosition:
        """Return the position in a table's log; raises as `table_position`."""
        row = self._catalog.subscription(self._name)
        assert row is not None  # noqa: S101 - the worker has registered it
        return table_position(self._spark, rel.path, row, owner_of(self._name), rel.since_lsn)

    def believed(self, rel: RelRow, position: TablePosition, server: ServerHistory) -> RelRow:
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
        if position.lsn <= rel.position:
            return rel
        # commits of earlier versions do not say; they were made on the timeline that was known then
        timeline = position.timeline if position.timeline is not None else rel.timeline
        begin_lsn = timeline_begins(self._catalog, name).get(timeline)
        at = Position(server.system_identifier, timeline, position.lsn, begin_lsn)
        if (missing := server.missing(at)) is not None:
            if missing.later:
                raise refusal(missing, at, anew="")
            copy_afresh(self._catalog, name, (rel.namespace, rel.name))
            raise TableAhead(
                f'the Delta table of "{rel.qualified_name}" has changes up to {at}, which the publisher does not have: '
                f"{missing.reason}",
                hint="the table is copied afresh now",
            )
        joined_lsn = max(rel.lsn, position.lsn) if position.copied else rel.lsn
        rel = replace(rel, lsn=joined_lsn, position=position.lsn, timeline=timeline)
        if rel.position > (self._catalog.remote_lsn(name) or INVALID):
            self._log.info(
                "a table keeps what it has beyond the origin", relation=rel.qualified_name, lsn=str(rel.position)
            )
        return rel

    def _behind(self, rel: RelRow, position: TablePosition) -> TargetError:
        """Return the error for a Delta table that has less than it had."""
        version = version_at(self._spark, rel.path, rel.position)
        again = "" if version is None else f"run: RESTORE TABLE {sql_name(rel.path)} TO VERSION AS OF {version}; or "
        ends = f"its log ends at {position.lsn}" if position.lsn else "its log has no commit of the subscription"
        return TargetError(
            f'the Delta table of "{rel.qualified_name}" at {rel.path} is behind: changes up to {rel.since_lsn} were '
            f"durable in it, but {ends}. It was restored, or put back from a backup",
            hint=f"{again}have the table copied afresh: {remedies.resync(owner_of(self._name), rel.qualified_name)}",
        )
