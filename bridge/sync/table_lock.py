"""A published table that is held for its copy: its ranges, and its size, which stay true until it is let go.

The readers of a copy come one after the other, each with a transaction of its own. Were the table rewritten in between
(VACUUM FULL, CLUSTER, ALTER TABLE), its rows would be at other places, and some read twice or not at all; were a
partition detached, later ranges would lack its rows. So the table is locked as reading it does (ACCESS SHARE), for all
of the copy: what would rewrite it waits, as for pg_dump.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import psycopg

import sql
from bridge.errors import SyncError
from bridge.receive.connection import connect, dictionaries, translated
from bridge.sync.block_ranges import BlockRange, block_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from bridge.publication.published_table import PublishedTable

_LOOK_INTERVAL_S = 1
_LEAST_ROWS = 1_000_000  # of a file: the planner may know little


@dataclass(frozen=True, slots=True)
class CopySize:
    """What the planner makes of a copy, row filters and column lists included.

    Attributes:
        rows: How many rows it has.
        row_bytes: How large one is in COPY's binary format.
    """

    rows: float
    row_bytes: float


class HeldTable:
    """A published table, locked against what would rewrite it until it is closed.

    Attributes:
        ranges: What its readers read, one each.
        size: Of all of them together.

    Raises:
        PublisherError: On opening, when it cannot be read, for want of privileges above all.
        SyncError: On opening, when `stopping` said so while somebody else's lock was in the way.
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
            plan = self._plan(table)
            while plan is None:
                _give_up_if(stopping(), table)
                plan = self._plan(table)
            sizes = list(dictionaries(self._connection.execute(sql.load("copy_sizes"), {"relid": table.relid})))
        except psycopg.Error as error:
            self.close()
            raise translated(error, f'cannot copy table "{table.qualified_name}"') from error
        except BaseException:
            self.close()
            raise
        blocks = [row["blocks"] for row in sizes]
        self.ranges: list[BlockRange] = block_ranges(blocks, sizes[0]["block_bytes"]) if sizes else [BlockRange()]
        # a row's fields, their number and lengths before them
        self.size = CopySize(plan["Plan Rows"], plan["Plan Width"] + 4 * len(table.columns) + 2)

    def _plan(self, table: PublishedTable) -> dict[str, Any] | None:
        """Planning a statement locks what it reads, the leaves of a partitioned table too, and checks privileges.

        Not LOCK TABLE, which wants a privilege on all of a table's columns. None while another lock is in the way.
        """
        statement = f"EXPLAIN (FORMAT JSON) {select(table)}{where(table.row_filters)}"
        self._connection.execute("BEGIN READ ONLY")
        self._connection.execute(f"SET LOCAL lock_timeout = '{_LOOK_INTERVAL_S}s'".encode())
        try:
            ((found,),) = self._connection.execute(statement.encode())
        except psycopg.errors.LockNotAvailable:
            self._connection.execute("ROLLBACK")
            return None
        plan: dict[str, Any] = found[0]["Plan"]
        return plan

    @property
    def rows_per_file(self) -> int:
        """So many that a task which reads several ranges writes a file for about two of them."""
        return max(_LEAST_ROWS, round(2 * self.size.rows / len(self.ranges)))

    def check(self) -> None:
        """See that it was held all the time.

        Raises:
            PublisherError: The server has ended the connection, and with it the lock.
        """
        try:
            self._connection.execute("SELECT")
        except psycopg.Error as error:
            raise translated(error, "a table was not held until its copy was done") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        self._connection.close()


def _give_up_if(stopping: bool, table: PublishedTable) -> None:
    if stopping:
        raise SyncError(f'the copy of table "{table.qualified_name}" was stopped while it waited for a lock')


def select(table: PublishedTable, expressions: list[str] | None = None) -> str:
    """What reads a published table: `SELECT … FROM …`, of its published columns where nothing else is given.

    `ONLY`, because children of an inheritance parent are published as tables of their own; not for a
    partitioned table, whose rows are all in its partitions (`fetch_remote_table_info`, tablesync.c).
    """
    if expressions is None:
        expressions = [psycopg.sql.Identifier(column.name).as_string() for column in table.columns]
    only = "" if table.relkind == "p" else "ONLY "
    name = psycopg.sql.Identifier(table.namespace, table.name).as_string()
    return f"SELECT {', '.join(expressions)} FROM {only}{name}"


def where(row_filters: Sequence[str], blocks: BlockRange | None = None) -> str:
    """The WHERE clause, with a space before it, that passes what one of the filters passes, of some blocks' rows."""
    filtered = " OR ".join(f"({text})" for text in row_filters)
    conditions = blocks.conditions if blocks is not None else []
    if filtered:
        conditions = [f"({filtered})" if conditions else filtered, *conditions]
    return " WHERE " + " AND ".join(conditions) if conditions else ""
