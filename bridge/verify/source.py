"""The server's side of a verification: the hashes of a snapshot's rows, computed by the server, range by range.

One connection reads, so that the server has one statement of ours at a time. What a verification needs of the stream is
peeked at in the same connection that has made the temporary slot.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql as psql

import sql
from bridge.closing import Closing
from bridge.errors import PublisherError, VerifyError
from bridge.receive.connection import connect, dictionaries, translated
from bridge.receive.slot import ReplicationConnection
from bridge.sqltext.keywords import quote_identifier
from bridge.sync.block_ranges import BlockRange, block_ranges
from bridge.sync.copy_statement import select_statement, where_clause
from bridge.verify.tables import BUCKET_BITS
from bridge.verify.window import UNCHANGED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from bridge.publication.published_table import PublishedTable
    from bridge.receive.slot import Snapshot
    from bridge.verify.comparison import Buckets
    from bridge.verify.tables import ValueTexts, VerifiedTable
    from bridge.verify.window import TableWindow, Texts
    from protocol.lsn import Lsn

_MODULUS: Final = 1 << 64  # Spark's sums of bigint
_KEY: Final = "pgbridge_key_hash"
_HASH: Final = "pgbridge_row_hash"
_SETTINGS: Final = (
    "SET LOCAL row_security = off",
    "SET LOCAL lock_timeout = '5s'",
    "SET LOCAL max_parallel_workers_per_gather = 0",
)


@dataclass(slots=True)
class Pace:
    """Keeps reading to a rate.

    Attributes:
        max_rate: Bytes of the server's tables a second; None for no limit.
        sleep: Waits.
        now_s: A clock.
    """

    max_rate: float | None = None
    sleep: Callable[[float], None] = time.sleep
    now_s: Callable[[], float] = time.monotonic

    def read(self, read_bytes: float, seconds: float) -> None:
        """So many bytes were read in so many seconds: wait until they are within the rate."""
        if self.max_rate is not None and (rest_s := read_bytes / self.max_rate - seconds) > 0:
            self.sleep(rest_s)


@dataclass(frozen=True, slots=True)
class Extent:
    """The ranges of blocks in which a table is read, and its size."""

    ranges: Sequence[BlockRange]
    table_bytes: int


class Source(Closing):
    """A snapshot of the source.

    Args:
        conninfo: The publisher.
        application_name: For pg_stat_activity.
        pace: Limits the rate of reading.
        patience_s: How long to wait for transactions that are open at the start: a slot begins after their end.

    Attributes:
        lsn: The snapshot's: transactions that commit before it are in it, and all others come in the stream.
        version: The server's version number.

    Raises:
        PublisherError: From the constructor and every method, if the server refuses.
        VerifyError: From the constructor: a transaction did not end.
    """

    def __init__(self, conninfo: str, *, application_name: str, pace: Pace, patience_s: float = 120.0) -> None:
        self._pace = pace
        self._slot_name = f"pgbridge_verify_{uuid.uuid4().hex[:12]}"
        self._replication = ReplicationConnection(conninfo, application_name=application_name)
        try:
            snapshot = self._create_slot(patience_s)
            self.lsn = snapshot.consistent_point
            self._connection = connect(conninfo, application_name=application_name)
            self.version = self._connection.info.server_version
            try:
                self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                name = psql.Literal(snapshot.name)
                self._connection.execute(psql.SQL("SET TRANSACTION SNAPSHOT {}").format(name))
                for setting in _SETTINGS:
                    self._connection.execute(setting.encode())
            except psycopg.Error as error:
                self._connection.close()
                raise translated(error, "cannot read under the snapshot") from error
        except BaseException:
            self._replication.close()
            raise

    def _create_slot(self, patience_s: float) -> Snapshot:
        try:
            # the wait for a transaction is a wait for its lock
            self._replication.connection.execute(f"SET lock_timeout = {max(1, int(patience_s * 1000))}".encode())
            return self._replication.create_slot(self._slot_name, temporary=True)
        except PublisherError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            raise VerifyError(
                f"no snapshot: a transaction that was open {patience_s:g} s ago has not ended",
                hint="see xact_start in pg_stat_activity, and pg_prepared_xacts; verify again once it has ended, or "
                "with a greater --wait",
            ) from error

    def close(self) -> None:
        """End the snapshot; the temporary slot goes with its connection."""
        self._connection.close()
        self._replication.close()

    def export(self) -> str:
        """Export the snapshot to other connections, until `close`."""
        ((name,),) = self._query("SELECT pg_export_snapshot()")
        return str(name)

    def changes(self, up_to: Lsn, publications: Sequence[str], options: Mapping[str, str]) -> Iterator[bytes]:
        """The stream's messages from the snapshot on, of transactions that commit up to an LSN, and perhaps some more.

        Args:
            up_to: The LSN.
            publications: The subscription's publications.
            options: Further options of pgoutput.
        """
        cursor = self._replication.connection.cursor()
        yield from self._peek(cursor, self._slot_name, up_to, publications, options)

    def waiting(
        self, slot_name: str, up_to: Lsn, publications: Sequence[str], options: Mapping[str, str]
    ) -> Iterator[bytes]:
        """The messages that a subscription's slot would send next; nobody may stream from it."""
        with self._connection.cursor(name="waiting") as cursor:  # there may be many
            yield from self._peek(cursor, slot_name, up_to, publications, options)

    @staticmethod
    def _peek(
        cursor: psycopg.Cursor[Any] | psycopg.ServerCursor[Any],
        slot_name: str,
        up_to: Lsn,
        publications: Sequence[str],
        options: Mapping[str, str],
    ) -> Iterator[bytes]:
        named = ", ".join(quote_identifier(name) for name in publications)
        given = {"proto_version": "1", "publication_names": named, **options}
        arguments = psql.SQL(", ").join(psql.Literal(text) for pair in given.items() for text in pair)
        statement = psql.SQL("SELECT data FROM pg_logical_slot_peek_binary_changes({}, {}, NULL, {})").format(
            psql.Literal(slot_name), psql.Literal(str(up_to)), arguments
        )
        try:
            cursor.execute(statement.as_bytes(None))
            for (data,) in cursor:
                yield bytes(data)
        except psycopg.Error as error:
            raise translated(error, "cannot read what the stream has since the snapshot") from error

    def hold(self, tables: Iterable[PublishedTable]) -> dict[int, str]:
        """Lock tables until `close`, so that none is rewritten: a snapshot does not show the rows that it had before.

        Returns:
            By relid, why a table cannot be read: another session has a lock, or has rewritten it since the snapshot.
        """
        found: dict[int, str] = {}
        for table in tables:
            try:
                self._connection.execute("SAVEPOINT held")
                # planning locks the leaves of a partitioned table, too
                self._connection.execute(f"EXPLAIN {select_statement(table)}{where_clause(table.row_filters)}".encode())
                rows = self._connection.execute(sql.load("rewritten"), {"relid": table.relid}).fetchall()
                if rows[0][0]:
                    found[table.relid] = "it was rewritten meanwhile (TRUNCATE, ALTER TABLE, CLUSTER or VACUUM FULL)"
                self._connection.execute("RELEASE SAVEPOINT held")
            except psycopg.errors.LockNotAvailable:
                self._connection.execute("ROLLBACK TO SAVEPOINT held")
                found[table.relid] = "another session has locked it"
            except psycopg.Error as error:
                raise translated(error, f'cannot read table "{table.qualified_name}"') from error
        return found

    def leaves_out_changes(self, publications: Sequence[str]) -> bool:
        """Whether one of the publications does not publish all kinds of changes."""
        ((every,),) = self._query(
            "SELECT coalesce(bool_and(pubinsert AND pubupdate AND pubdelete AND pubtruncate), true) "
            "FROM pg_publication WHERE pubname = ANY (%(names)s)",
            {"names": list(publications)},
        )
        return not every

    def extent(self, table: VerifiedTable) -> Extent:
        """The ranges of a table that is held, and its size."""
        try:
            cursor = self._connection.execute(sql.load("copy_sizes"), {"relid": table.published.relid})
            sizes = list(dictionaries(cursor))
        except psycopg.Error as error:
            raise translated(error, f'cannot read table "{table.relation}"') from error
        blocks = [row["blocks"] for row in sizes]
        ranges = block_ranges(blocks, sizes[0]["block_bytes"]) if sizes else [BlockRange()]
        return Extent(ranges, sum(row["table_bytes"] or 0 for row in sizes))

    def buckets(
        self,
        table: VerifiedTable,
        extent: Extent,
        but: Iterable[str],
        read: Callable[[float], None],
        within: Collection[int] = (),
        bits: int = BUCKET_BITS,
    ) -> Buckets:
        """The table's buckets.

        Args:
            table: The table.
            extent: Its extent.
            but: Hashes of keys to leave out.
            read: Called with how many bytes more of the table's are read, after each range.
            within: Only rows of these buckets, as they are without `bits`; all if there are none.
            bits: How many bits of a hash its bucket has.
        """
        found: Buckets = {}
        left_out = self._left_out(but)
        conditions = [table.in_source_buckets("h", within)] * bool(within) + [left_out] * bool(left_out)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        key = [f"{table.source_key} AS {_KEY}"] if left_out else []
        numbers = [f"n{number}" for number, _ in enumerate(table.numbers)]
        named = [
            f"({quote_identifier(one.name)})::bigint AS {name}"
            for one, name in zip(table.numbers, numbers, strict=True)
        ]
        inner = select_statement(table.published, [*key, *named, f"{table.source_hash} AS h"])
        sums = ", ".join(f"sum({one})" for one in ("h", *numbers))
        for blocks in self._ranges(extent, read):
            statement = (
                f"SELECT {table.source_bucket('h', bits)} AS b, count(*), {sums} "
                # OFFSET 0: the hash is computed once
                f"FROM ({inner}{where_clause(table.published.row_filters, blocks)} OFFSET 0) AS r{where} GROUP BY 1"
            )
            for bucket, *more in self._query(statement):
                so_far = found.get(bucket, (0,) * len(more))
                found[bucket] = tuple(a + int(b) for a, b in zip(so_far, more, strict=True))
        return {
            bucket: (count, hashes, *(number % _MODULUS for number in sums))
            for bucket, (count, hashes, *sums) in found.items()
        }

    def rows(
        self,
        table: VerifiedTable,
        extent: Extent,
        buckets: Collection[int],
        but: Iterable[str],
        bits: int = BUCKET_BITS,
    ) -> Counter[tuple[str, int]]:
        """How many rows of some buckets there are, by the hashes of their keys and of themselves."""
        found: Counter[tuple[str, int]] = Counter()
        names = [quote_identifier(one.name) for one in table.columns]
        inner = select_statement(table.published, [*names, f"{table.source_hash} AS {_HASH}"])
        left_out = self._left_out(but)
        for blocks in self._ranges(extent):
            # the key's hash is computed of rows in these buckets only
            hashed = (
                f"SELECT {table.source_key} AS {_KEY}, {_HASH} FROM "
                f"({inner}{where_clause(table.published.row_filters, blocks)} OFFSET 0) AS r "
                f"WHERE {table.in_source_buckets(_HASH, buckets, bits)}"
            )
            statement = f"SELECT {_KEY}, {_HASH} FROM ({hashed}) AS q{' WHERE ' * bool(left_out)}{left_out}"
            found.update(Counter((key, int(hashed)) for key, hashed in self._query(statement)))
        return found

    def with_keys(self, table: VerifiedTable, keys: Iterable[Sequence[int]]) -> Counter[tuple[str, int]]:
        """The same of rows with some keys, which an index finds."""
        statement = select_statement(table.published, [table.source_key, table.source_hash])
        where = _and(where_clause(table.published.row_filters), table.source_among(keys))
        return Counter((key, int(hashed)) for key, hashed in self._query(f"{statement}{where}"))

    def _ranges(self, extent: Extent, read: Callable[[float], None] = lambda _: None) -> Iterator[BlockRange]:
        """Yield ranges to read, and keep to the pace."""
        bytes_each = extent.table_bytes / len(extent.ranges)
        for blocks in extent.ranges:
            started_s = self._pace.now_s()
            yield blocks
            self._pace.read(bytes_each, self._pace.now_s() - started_s)
            read(bytes_each)

    def texts(
        self, table: VerifiedTable, keys: Iterable[str], numbers: Collection[Sequence[int]] = ()
    ) -> Iterator[tuple[str, list[ValueTexts]]]:
        """The texts of rows' columns, canonically and as PostgreSQL writes them, by the hashes of their keys.

        Args:
            table: The table.
            keys: The keys' hashes.
            numbers: Keys among which they are; none if that is not known.
        """
        shown = [f"pg_catalog.concat({quote_identifier(one.name)})" for one in table.columns]
        inner = select_statement(table.published, _with_key(table))
        nulls = [
            f"CASE WHEN {quote_identifier(one.name)} IS DISTINCT FROM NULL THEN {text} END"
            for one, text in zip(table.columns, shown, strict=True)
        ]
        wanted = ",".join(keys)
        where = where_clause(table.published.row_filters)
        where = _and(where, table.source_among(numbers)) if numbers else where
        statement = (
            f"SELECT {_KEY}, {', '.join([*table.source_texts(), *nulls])} "
            f"FROM ({inner}{where}) AS r WHERE {_KEY} = ANY ('{{{wanted}}}')"
        )
        for key, *values in self._query(statement):
            yield key, list(zip(values[: len(nulls)], values[len(nulls) :], strict=True))

    def copy_of(self, table: VerifiedTable, select: str, keys: Iterable[str]) -> str:
        """The COPY statement of the rows with some keys, by their hashes.

        Args:
            table: The table.
            select: What is copied: SELECT … FROM …, without conditions.
            keys: The keys' hashes.
        """
        listed = ", ".join(f"'{key}'" for key in keys)
        filters = " OR ".join(f"({text})" for text in table.published.row_filters) or "true"
        wanted = f"({table.source_key}) = ANY (ARRAY[{listed}]::text[])"
        return f"COPY ({select} WHERE ({filters}) AND {wanted}) TO STDOUT (FORMAT binary)"

    def ended(
        self, table: VerifiedTable, window: TableWindow, rows: Mapping[Texts, list[object] | None]
    ) -> dict[Texts, tuple[str, int | None]]:
        """The hashes of the rows with which touched keys end: of the key, and of the row; None if there is no row.

        A value that the stream left out is taken from the snapshot's row.
        """
        found: dict[Texts, tuple[str, int | None]] = {}
        for key, row in rows.items():
            names = table.key if row is None else window.columns
            values: dict[str, object] = dict(zip(names, key if row is None else row, strict=True))
            where = ""
            if row is not None and any(values[one.name] is UNCHANGED for one in table.columns):
                base = dict(zip(table.key, window.base.get(key, key), strict=True))
                where = " AND ".join(
                    f"t.{quote_identifier(name)} = {self._literal(value)}{self._cast(table, name)}"
                    for name, value in base.items()
                )
            expressions = [
                f"t.{quote_identifier(one.name)}"
                if values.get(one.name) is UNCHANGED
                else self._given(table, one.name, values.get(one.name))
                for one in table.columns
            ]
            relation = psql.Identifier(table.published.namespace, table.published.name).as_string()
            source = f" FROM {relation} AS t WHERE {where}" if where else ""
            statement = (
                f"SELECT {table.source_key}, {table.source_hash} FROM (SELECT {', '.join(expressions)}{source}) AS r"
            )
            for key_hash, row_hash in self._query(statement):
                found[key] = key_hash, None if row is None else int(row_hash)
        return found

    def hashes(self, table: VerifiedTable, columns: Sequence[str], rows: Iterable[Texts]) -> Iterator[tuple[str, int]]:
        """The hashes of rows of a table without keys that are given as texts: of the key, and of the row."""
        for row in rows:
            values = dict(zip(columns, row, strict=True))
            listed = ", ".join(self._given(table, one.name, values[one.name]) for one in table.columns)
            for key, hashed in self._query(
                f"SELECT {table.source_key}, {table.source_hash} FROM (SELECT {listed}) AS r"
            ):
                yield key, int(hashed)

    def declarations(self, relid: int) -> dict[str, str]:
        """The types of a table's columns as SQL, by the columns' names."""
        found: dict[str, str] = dict(self._query(sql.load("column_types"), {"relid": relid}))
        return found

    def _given(self, table: VerifiedTable, name: str, value: object) -> str:
        """A value of the stream as a column of its type."""
        return f"{self._literal(value)}{self._cast(table, name)} AS {quote_identifier(name)}"

    def _cast(self, table: VerifiedTable, name: str) -> str:
        return f"::{table.declarations[name]}"

    @staticmethod
    def _literal(value: object) -> str:
        return psql.Literal(value if isinstance(value, str) else None).as_string()

    @staticmethod
    def _left_out(keys: Iterable[str]) -> str:
        listed = ", ".join(f"'{key}'" for key in keys)
        return f"NOT ({_KEY} = ANY (ARRAY[{listed}]::text[]))" if listed else ""

    def _query(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._connection.execute(statement.encode(), parameters).fetchall()
        except psycopg.Error as error:
            raise translated(error, "cannot read the source's rows") from error


def _and(where: str, condition: str) -> str:
    return f" WHERE ({where.removeprefix(' WHERE ')}) AND {condition}" if where else f" WHERE {condition}"


def _with_key(table: VerifiedTable) -> list[str]:
    return [f"{table.source_key} AS {_KEY}", *(quote_identifier(one.name) for one in table.columns)]
