"""How a published table is read: by which statements, in which ranges, and under which lock.

The readers of a copy come one after the other, each with a transaction of its own. If the table were rewritten in
between (VACUUM FULL, CLUSTER, ALTER TABLE), its rows would move, and some would be read twice or not at all. If a
partition were detached, later ranges would lack its rows. An ACCESS SHARE lock for the whole copy makes such commands
wait, as they wait for pg_dump.

Such a command may have come before the lock, but after the snapshot. Most of them make the rows anew: to the snapshot
the table is empty then, and the stream has no changes of its rows ("MVCC Caveats" in PostgreSQL's documentation). Or
another table has the name, by which a table is read; or a partition was attached, and the stream lacks its rows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg

from pgbridge import sql
from pgbridge.bridge.evolution.tracker import copied_columns
from pgbridge.bridge.receive.connection import connect, dictionaries, read_rows, translated
from pgbridge.bridge.receive.publisher import quoted_table
from pgbridge.bridge.runtime.errors import PublisherError, SyncError, TableAltered
from pgbridge.bridge.runtime.threads import Closing
from pgbridge.protocol.bulk.copy import copy_expression
from pgbridge.protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pgbridge.bridge.catalog.catalog_rows import ColumnRow
    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.receive.publisher import Publisher
    from pgbridge.protocol.values.pg_type import TypeInfo

RANGE_BYTES = 128 << 20
"""Size of a range on the server's disk: some seconds of work, and a Parquet file of the size that Delta aims at."""

_MOST_RANGES = 4096
_LEAST_BLOCKS = 64  # of the largest relation: less is not worth a statement over all partitions


@dataclass(frozen=True, slots=True)
class BlockRange:
    """A range of blocks of a table; for a partitioned table, the same range of each partition.

    PostgreSQL reads it without reading the rest of the table (a TID range scan, from version 14 on). A row keeps its
    ctid as long as the table is not rewritten, for which `TableLock` cares.

    `end` is the number of the first block after the range; None for no end.
    """

    first: int = 0
    end: int | None = None

    @property
    def condition(self) -> str:
        """The SQL condition on the ctid of a row in the range; empty if the range is the whole table."""
        lower = [f"ctid >= '({self.first},0)'::tid"] if self.first else []
        return " AND ".join(lower if self.end is None else [*lower, f"ctid < '({self.end},0)'::tid"])


def block_ranges(blocks: Sequence[int], block_bytes: int) -> list[BlockRange]:
    """Divide a table into ranges of about RANGE_BYTES, which several connections copy under one snapshot.

    A partitioned table is read by its own name, as PostgreSQL's subscriber reads it, so that no privileges on the
    partitions are needed. A range then covers the same block numbers of all partitions, and is chosen so that all
    ranges have about the same total size.

    Args:
        blocks: The number of blocks of the table, or of each of its partitions. The last range has no end, because
            blocks may be added later.

    Returns:
        Adjacent ranges that together cover the table.
    """
    total = sum(blocks)
    largest = max(blocks, default=0)
    count = min(-(-total * block_bytes // RANGE_BYTES), largest // _LEAST_BLOCKS, _MOST_RANGES)
    if count <= 1:
        return [BlockRange()]
    # below[i]: blocks of all relations with a number less than ends[i]; linear in between
    ends = np.unique([0, *blocks])
    below = np.minimum.outer(ends, np.array(blocks)).sum(axis=1)
    inner = np.interp(np.arange(1, count) * total / count, below, ends).astype(np.int64)
    bounds = [0, *np.unique(inner[inner > 0]).tolist()]
    return [BlockRange(first, end) for first, end in zip(bounds, [*bounds[1:], None], strict=True)]


def select_statement(table: PublishedTable, expressions: Sequence[str] | None = None) -> str:
    """Return `SELECT … FROM …` for a published table's columns, or for expressions; without a WHERE clause."""
    if expressions is None:
        expressions = [psycopg.sql.Identifier(column.name).as_string() for column in table.columns]
    return f"SELECT {', '.join(expressions)}{from_clause(table)}"


def from_clause(table: PublishedTable) -> str:
    """Return ` FROM …` for a published table.

    It has ONLY, because children of an inheritance parent are published as tables of their own; but not for a
    partitioned table, whose rows are all in its partitions (`fetch_remote_table_info`, tablesync.c).
    """
    only = "" if table.relkind == "p" else "ONLY "
    return f" FROM {only}{psycopg.sql.Identifier(table.namespace, table.name).as_string()}"


def where_clause(row_filters: Sequence[str], *further: str) -> str:
    """Return ` WHERE …`, true for rows that pass one of the filters and meet further conditions; empty for all rows."""
    filtered = " OR ".join(f"({text})" for text in row_filters)
    conditions = [condition for condition in further if condition]
    if filtered:
        conditions = [f"({filtered})" if conditions else filtered, *conditions]
    return " WHERE " + " AND ".join(conditions) if conditions else ""


def copy_select(table: PublishedTable, types: Mapping[int, TypeInfo]) -> str:
    """Return the SELECT for COPY: each published column in the form in which the decoder reads its type."""
    expressions = []
    for column in table.columns:
        type_ = resolve(column.type_oid, column.typmod, types)
        # what is masked is the text
        expressions.append(copy_expression(column.name, type_, as_text=column.mask is not None))
    return select_statement(table, expressions)


def copy_statement(select: str, row_filters: Sequence[str], *further: str) -> str:
    """Return the COPY statement that reads a table, or rows that meet further conditions; the server computes them."""
    return f"COPY ({select}{where_clause(row_filters, *further)}) TO STDOUT (FORMAT binary)"


@dataclass(slots=True)
class Pace:
    """Keeps reading to a rate.

    Attributes:
        max_rate: Bytes a second; None for no limit.
        sleep: Waits.
        now_s: A clock.
    """

    max_rate: float | None = None
    sleep: Callable[[float], None] = time.sleep
    now_s: Callable[[], float] = time.monotonic

    def read(self, read_bytes: float, seconds: float) -> None:
        """Wait until bytes that were read in some seconds are within the rate."""
        if self.max_rate is not None and (rest_s := read_bytes / self.max_rate - seconds) > 0:
            self.sleep(rest_s)


_LOCK_TIMEOUT_S = 1
_FIRST_BLOCKS = 1000  # read in a moment, even if none of their rows is visible
_LEAST_ROWS = 1_000_000  # of a file: the planner may know little


@dataclass(frozen=True, slots=True)
class CopySize:
    """The planner's estimate of a copy, after row filters and column lists; of a row, in COPY's binary format."""

    rows: float
    row_bytes: float

    def of(self, ranges: int, number: int) -> CopySize:
        """The size of some ranges of a number of equal ones."""
        return CopySize(self.rows * ranges / number, self.row_bytes)


class TableLock(Closing):
    """A lock on a published table; the constructor waits for it, `close` releases it.

    Args:
        snapshot: The exported snapshot under which the table will be read; None if it is younger than the lock.
        stopping: Whether to give up while another session's lock is in the way.
        patience_s: How long to wait for such a lock, in seconds; None for ever.
        tell: Called with the error after the patience, to wait on, and again each time that the wait has doubled; None
            to raise it.

    Attributes:
        ranges: The table's block ranges: one for each COPY.
        size: The estimated size of all ranges together.
        table_bytes: The table's size on the server's disk, with TOAST; None if it is not known.
        filenodes: Those of the table, or of its partitions: others once it was rewritten.

    Raises:
        PublisherError: From the constructor, if the table cannot be read, mostly for want of privileges; or, with
            `retry`, after the patience.
        TableAltered: From the constructor: the snapshot does not show the table's rows any more.
        SyncError: From the constructor, if `stopping` returned True while another session's lock was in the way.
    """

    def __init__(
        self,
        conninfo: str,
        table: PublishedTable,
        snapshot: str | None = None,
        *,
        application_name: str,
        stopping: Callable[[], bool] = lambda: False,
        patience_s: float | None = None,
        tell: Callable[[PublisherError], None] | None = None,
    ) -> None:
        self._snapshot = snapshot
        begun_s = time.monotonic()
        self._connection = connect(conninfo, application_name=application_name)
        try:
            plan = self._lock(table)
            while plan is None:
                _raise_if(stopping(), table)
                if patience_s is not None and time.monotonic() - begun_s >= patience_s:
                    self._tell_of_holders(table, tell)
                    patience_s = 2 * (time.monotonic() - begun_s)
                plan = self._lock(table)
            _raise_if_rewritten(snapshot is not None and rows_made_anew(self._connection, table), table)
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
        self.filenodes = sorted(row["filenode"] or 0 for row in sizes)
        # in COPY's format a row has 2 bytes before its fields, and 4 before each
        self.size = CopySize(plan["Plan Rows"], plan["Plan Width"] + 4 * len(table.columns) + 2)

    def _lock(self, table: PublishedTable) -> dict[str, Any] | None:
        """Lock the table by planning a SELECT, and return the plan; None while another lock is in the way.

        Planning locks the leaves of a partitioned table, too, and checks privileges. LOCK TABLE would need a privilege
        on all columns.
        """
        statement = f"EXPLAIN (FORMAT JSON) {select_statement(table)}{where_clause(table.row_filters)}"
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if self._snapshot is not None:
            self._connection.execute(
                psycopg.sql.SQL("SET TRANSACTION SNAPSHOT {}").format(psycopg.sql.Literal(self._snapshot))
            )
        self._connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'".encode())
        try:
            ((explained,),) = self._connection.execute(statement.encode())
        except psycopg.errors.LockNotAvailable:
            self._connection.execute("ROLLBACK")
            return None
        plan: dict[str, Any] = explained[0]["Plan"]
        return plan

    def _tell_of_holders(self, table: PublishedTable, tell: Callable[[PublisherError], None] | None) -> None:
        """Tell of, or raise, the error for a table that others have locked."""
        holders = read_rows(self._connection, "lock_holders", {"relid": table.relid})
        processes = ", ".join(_holder(holder) for holder in holders) or "another session"
        pids = [holder["name"] for holder in holders if holder["name"] is not None]
        locked = PublisherError(
            f'table "{table.qualified_name}" cannot be copied: it is locked by {processes}',
            hint=f"end that transaction, on the server: SELECT pg_terminate_backend({pids[0]});" if pids else "",
            retry=True,
        )
        if tell is None:
            raise locked
        tell(locked)

    @property
    def rows_per_file(self) -> int:
        """A limit for Delta's files: a task that reads several ranges writes a file for about two of them."""
        return max(_LEAST_ROWS, round(2 * self.size.rows / len(self.ranges)))

    def check(self) -> None:
        """Raise a PublisherError if the server has ended the connection, and with it the lock."""
        try:
            self._connection.execute("SELECT")
        except psycopg.Error as error:
            raise translated(error, "the lock on a table was lost before its copy was finished") from error

    def close(self) -> None:
        """Release the lock."""
        self._connection.close()


def locked_columns(table: PublishedTable, publisher: Publisher) -> list[ColumnRow]:
    """Return the table's columns, which the lock keeps as they are; raise TableAltered if they changed before it."""
    columns = copied_columns(table, publisher.attributes(table.relid))
    if not columns:
        raise TableAltered(f'table "{table.qualified_name}" was altered just before its copy, which starts again')
    return columns


def rows_made_anew(connection: psycopg.Connection[Any], table: PublishedTable) -> bool:
    """Whether the snapshot of the connection's transaction does not show the rows of a locked table any more.

    VACUUM FULL, CLUSTER and SET TABLESPACE keep the transactions that made the rows. Whatever makes them anew leaves
    none to the snapshot. So a row at the table's beginning tells the ones from the others; a table without such a row,
    a partitioned one, and one that the role may read in part only, is taken to be made anew: another snapshot does it.
    So is one that was renamed: what is locked, and would be read, is the table that has its name.
    """
    asked = {"relid": table.relid, "name": quoted_table(table.namespace, table.name)}
    ((rewritten, readable, renamed),) = connection.execute(sql.load("rewritten"), asked)
    if renamed or not rewritten or not readable:
        return bool(renamed or rewritten)
    beginning = where_clause([], BlockRange(0, _FIRST_BLOCKS).condition)
    ((kept,),) = connection.execute(f"SELECT EXISTS ({select_statement(table, ['1'])}{beginning})".encode())
    return not kept


def _raise_if_rewritten(rewritten: bool, table: PublishedTable) -> None:
    if rewritten:
        name = table.qualified_name
        raise TableAltered(f'table "{name}" was rewritten after the snapshot, which does not show its rows any more')


def _holder(row: dict[str, Any]) -> str:
    if row["name"] is None:
        return "a prepared transaction"
    told = [row["application_name"], row["state"], row["age_s"] and f"for {row['age_s']:.0f} s"]
    return f"process {row['name']} ({', '.join(filter(None, told))})"


def _raise_if(stopping: bool, table: PublishedTable) -> None:
    if stopping:
        raise SyncError(f'the copy of table "{table.qualified_name}" was stopped while it waited for a lock')
