"""Locks a published table while it is copied, so that its block ranges stay valid.

The readers of a copy come one after the other, each with a transaction of its own. If the table were rewritten in
between (VACUUM FULL, CLUSTER, ALTER TABLE), its rows would move, and some would be read twice or not at all. If a
partition were detached, later ranges would lack its rows. An ACCESS SHARE lock for the whole copy makes such commands
wait, as they wait for pg_dump.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

import sql
from bridge.closing import Closing
from bridge.errors import SyncError
from bridge.receive.connection import connect, dictionaries, translated
from bridge.sync.block_ranges import BlockRange, block_ranges
from bridge.sync.copy_statement import select_statement, where_clause

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.publication.published_table import PublishedTable

_LOCK_TIMEOUT_S = 1
_LEAST_ROWS = 1_000_000  # of a file: the planner may know little


@dataclass(frozen=True, slots=True)
class CopySize:
    """The planner's estimate of a copy, with row filters and column lists taken into account.

    Attributes:
        rows: Number of rows.
        row_bytes: Size of a row in COPY's binary format.
    """

    rows: float
    row_bytes: float


class TableLock(Closing):
    """A lock on a published table; the constructor waits for it, `close` releases it.

    Attributes:
        ranges: The table's block ranges: one for each COPY.
        size: The estimated size of all ranges together.
        table_bytes: The table's size on the server's disk, with TOAST; None if it is not known.

    Raises:
        PublisherError: From the constructor, if the table cannot be read, mostly for want of privileges.
        SyncError: From the constructor, if `stopping` returned True while another session's lock was in the way.
    """

    def __init__(
        self,
        conninfo: str,
        table: PublishedTable,
        *,
        application_name: str,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._connection = connect(conninfo, application_name=application_name)
        try:
            plan = self._lock(table)
            while plan is None:
                _raise_if(stopping(), table)
                plan = self._lock(table)
            sizes = list(dictionaries(self._connection.execute(sql.load("copy_sizes"), {"relid": table.relid})))
        except psycopg.Error as error:
            self.close()
            raise translated(error, f'cannot copy table "{table.qualified_name}"') from error
        except BaseException:
            self.close()
            raise
        blocks = [row["blocks"] for row in sizes]
        self.ranges: list[BlockRange] = block_ranges(blocks, sizes[0]["block_bytes"]) if sizes else [BlockRange()]
        known = [row["table_bytes"] for row in sizes if row["table_bytes"] is not None]
        self.table_bytes: int | None = sum(known) if len(known) == len(sizes) else None
        # in COPY's format a row has 2 bytes before its fields, and 4 before each
        self.size = CopySize(plan["Plan Rows"], plan["Plan Width"] + 4 * len(table.columns) + 2)

    def _lock(self, table: PublishedTable) -> dict[str, Any] | None:
        """Lock the table by planning a SELECT, and return the plan; None while another lock is in the way.

        Planning locks the leaves of a partitioned table, too, and checks privileges. LOCK TABLE would need a privilege
        on all columns.
        """
        statement = f"EXPLAIN (FORMAT JSON) {select_statement(table)}{where_clause(table.row_filters)}"
        self._connection.execute("BEGIN READ ONLY")
        self._connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'".encode())
        try:
            ((found,),) = self._connection.execute(statement.encode())
        except psycopg.errors.LockNotAvailable:
            self._connection.execute("ROLLBACK")
            return None
        plan: dict[str, Any] = found[0]["Plan"]
        return plan

    @property
    def rows_per_file(self) -> int:
        """A limit for Delta's files: a task that reads several ranges writes a file for about two of them."""
        return max(_LEAST_ROWS, round(2 * self.size.rows / len(self.ranges)))

    def check(self) -> None:
        """Check that the lock was not lost.

        Raises:
            PublisherError: The server has ended the connection, and with it the lock.
        """
        try:
            self._connection.execute("SELECT")
        except psycopg.Error as error:
            raise translated(error, "the lock on a table was lost before its copy was finished") from error

    def close(self) -> None:
        """Release the lock."""
        self._connection.close()


def _raise_if(stopping: bool, table: PublishedTable) -> None:
    if stopping:
        raise SyncError(f'the copy of table "{table.qualified_name}" was stopped while it waited for a lock')
