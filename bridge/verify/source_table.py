"""The server's side of a verification: the hashes of a table's rows under a snapshot, computed by the server.

One connection reads, range by range, so that the server has one statement of ours at a time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from psycopg import sql as psql

from pgbridge.bridge.sqltext.lexer import quote_identifier
from pgbridge.bridge.sync.table_reading import (
    BlockRange,
    Pace,
    block_ranges,
    copy_statement,
    from_clause,
    select_statement,
    where_clause,
)
from pgbridge.bridge.verify import comparison, tables
from pgbridge.bridge.verify.window import UNCHANGED, TableWindow, Texts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pgbridge.bridge.verify.part import Part
    from pgbridge.bridge.verify.source import Source

_KEY: Final = "pgbridge_key_hash"
_HASH: Final = "pgbridge_row_hash"
_NUMBER: Final = "pgbridge_number"
_SELECTS_AT_ONCE: Final = 100
_CHARACTERS_AT_ONCE: Final = 1 << 23


@dataclass(frozen=True, slots=True)
class Extent:
    """The ranges of blocks in which a table is read, and its size."""

    ranges: Sequence[BlockRange]
    table_bytes: int


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table under a snapshot.

    Attributes:
        source: The snapshot.
        table: The table; it is held.
        pace: Limits the rate of reading.
        part: The rows that are read; None for all.

    Raises:
        PublisherError: From every method, if the server refuses.
    """

    source: Source
    table: tables.VerifiedTable
    pace: Pace = field(default_factory=Pace)
    part: Part | None = None

    def extent(self) -> Extent:
        """The ranges of the table, and its size; of a part one range, which an index finds."""
        if self.part is not None:
            return Extent([BlockRange()], 0)
        sizes = self.source.sizes(self.table.published.relid)
        blocks = [row["blocks"] for row in sizes]
        ranges = block_ranges(blocks, sizes[0]["block_bytes"]) if sizes else [BlockRange()]
        return Extent(ranges, sum(row["table_bytes"] or 0 for row in sizes))

    def buckets(
        self,
        extent: Extent,
        but: Iterable[str],
        read: Callable[[float], None],
        within: Collection[int] = (),
        bits: int = tables.BUCKET_BITS,
    ) -> comparison.Buckets:
        """The table's buckets.

        Args:
            but: Hashes of keys to leave out.
            read: Called with how many bytes more of the table's are read, after each range.
            within: Only rows of these buckets, as they are without `bits`; all if there are none.
            bits: How many bits of a hash its bucket has.
        """
        sums_of: comparison.Buckets = {}
        left_out = self._left_out(but)
        conditions = [self.table.in_source_buckets("h", within)] * bool(within) + [left_out] * bool(left_out)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        key = [f"{self.table.source_key} AS {_KEY}"] if left_out else []
        numbers = [f"n{number}" for number, _ in enumerate(self.table.numbers)]
        named = [
            f"({quote_identifier(column.name)})::bigint AS {name}"
            for column, name in zip(self.table.numbers, numbers, strict=True)
        ]
        inner = select_statement(self.table.published, [*key, *named, f"{self.table.source_hash} AS h"])
        sums = ", ".join(f"sum({name})" for name in ("h", *numbers))
        for blocks in self._ranges(extent, read):
            of_range = self._where(blocks)
            statement = (
                f"SELECT {self.table.source_bucket('h', bits)} AS b, count(*), {sums} "
                f"FROM ({inner}{of_range} OFFSET 0) AS r{where} GROUP BY 1"  # OFFSET 0: the hash is computed once
            )
            for bucket, *more in self.source.query(statement):
                so_far = sums_of.get(bucket, (0,) * len(more))
                # the sum is NULL of a number that is NULL in all of the bucket's rows
                sums_of[bucket] = tuple(a + int(b or 0) for a, b in zip(so_far, more, strict=True))
        return {bucket: comparison.bucket_sums(*sums) for bucket, sums in sums_of.items()}

    def rows(
        self,
        extent: Extent,
        buckets: Collection[int],
        but: Iterable[str],
        bits: int = tables.BUCKET_BITS,
    ) -> Counter[tuple[str, int]]:
        """Count the rows of some buckets, by the hashes of their keys and of themselves."""
        counts: Counter[tuple[str, int]] = Counter()
        names = [quote_identifier(column.name) for column in self.table.columns]
        inner = select_statement(self.table.published, [*names, f"{self.table.source_hash} AS {_HASH}"])
        left_out = self._left_out(but)
        for blocks in self._ranges(extent):
            # the key's hash is computed of rows in these buckets only
            hashed = (
                f"SELECT {self.table.source_key} AS {_KEY}, {_HASH} FROM "
                f"({inner}{self._where(blocks)} OFFSET 0) AS r "
                f"WHERE {self.table.in_source_buckets(_HASH, buckets, bits)}"
            )
            statement = (
                f"SELECT {_KEY}, {_HASH}, count(*) FROM ({hashed}) AS q{' WHERE ' * bool(left_out)}{left_out} "
                "GROUP BY 1, 2"
            )
            for key, row_hash, number in self.source.query(statement):
                counts[key, int(row_hash)] += number
        return counts

    def with_keys(self, keys: Iterable[Sequence[int]]) -> Counter[tuple[str, int]]:
        """The same of rows with some keys, which an index finds."""
        statement = select_statement(self.table.published, [self.table.source_key, self.table.source_hash])
        where = where_clause(self.table.published.row_filters, self.table.source_among(keys))
        return Counter((key, int(hashed)) for key, hashed in self.source.query(f"{statement}{where}"))

    def _where(self, blocks: BlockRange) -> str:
        of_part = "" if self.part is None else self.part.source_condition
        return where_clause(self.table.published.row_filters, blocks.condition, of_part)

    def _ranges(self, extent: Extent, read: Callable[[float], None] = lambda _: None) -> Iterator[BlockRange]:
        """Yield ranges to read, and keep to the pace."""
        bytes_each = extent.table_bytes / len(extent.ranges)
        for blocks in extent.ranges:
            started_s = self.pace.now_s()
            yield blocks
            self.pace.read(bytes_each, self.pace.now_s() - started_s)
            read(bytes_each)

    def texts(
        self, keys: Iterable[str], numbers: Collection[Sequence[int]] = ()
    ) -> Iterator[tuple[str, list[tables.ValueTexts]]]:
        """The texts of rows' columns, canonically and as PostgreSQL writes them, by the hashes of their keys.

        Args:
            keys: The keys' hashes.
            numbers: Keys among which they are; none if that is not known.
        """
        names = [quote_identifier(column.name) for column in self.table.columns]
        inner = select_statement(self.table.published, [f"{self.table.source_key} AS {_KEY}", *names])
        wanted = ",".join(keys)
        among = self.table.source_among(numbers) if numbers else ""
        where = where_clause(self.table.published.row_filters, among)
        return self._texts(_KEY, f"({inner}{where}) AS r WHERE {_KEY} = ANY ('{{{wanted}}}')")

    def ended_texts(
        self, window: TableWindow, rows: Mapping[Texts, list[object] | None]
    ) -> Iterator[tuple[str, list[tables.ValueTexts]]]:
        """The same of rows with which touched keys end."""
        for selects in _batches(self._ended(window, key, row) for key, row in rows.items()):
            yield from self._texts(self.table.source_key, f"({' UNION ALL '.join(selects)}) AS r")

    def _texts(self, key: str, source: str) -> Iterator[tuple[str, list[tables.ValueTexts]]]:
        shown = [column.source_text for column in self.table.columns]
        columns = f"ARRAY[{', '.join(self.table.source_texts())}], ARRAY[{', '.join(shown)}]"
        for key_hash, records, texts in self.source.query(f"SELECT {key}, {columns} FROM {source}"):
            yield key_hash, list(zip(records, texts, strict=True))

    def copy_of(self, select: str, keys: Iterable[str]) -> str:
        """The COPY statement of the rows with some keys, by their hashes.

        Args:
            select: What is copied: SELECT … FROM …, without conditions.
            keys: The keys' hashes.
        """
        listed = ", ".join(f"'{key}'" for key in keys)
        wanted = f"({self.table.source_key}) = ANY (ARRAY[{listed}]::text[])"
        return copy_statement(select, self.table.published.row_filters, wanted)

    def ended(
        self, window: TableWindow, rows: Mapping[Texts, list[object] | None]
    ) -> dict[Texts, tuple[str, int | None]]:
        """The hashes of the rows with which touched keys end: of the key, and of the row; None if there is no row.

        A value that the stream left out is taken from the snapshot's row.
        """
        selects = (self._ended(window, key, row) for key, row in rows.items())
        keys = list(rows)
        return {
            keys[number]: (key_hash, None if rows[keys[number]] is None else row_hash)
            for number, key_hash, row_hash in self._hashed(selects)
        }

    def _ended(self, window: TableWindow, key: Texts, row: list[object] | None) -> str:
        """Return the SELECT of a row, or of a key."""
        names = self.table.key if row is None else window.columns
        values: dict[str, object] = dict(zip(names, key if row is None else row, strict=True))
        where = ""
        if row is not None and any(values[column.name] is UNCHANGED for column in self.table.columns):
            base = dict(zip(self.table.key, window.base.get(key, key), strict=True))
            where = " AND ".join(
                f"t.{quote_identifier(name)} IS NULL"
                if value is None
                else f"t.{quote_identifier(name)} = {self._literal(value)}{self._cast(name)}"
                for name, value in base.items()
            )
        expressions = [
            f"t.{quote_identifier(column.name)}"
            if values.get(column.name) is UNCHANGED
            else self._given(column.name, values.get(column.name))
            for column in self.table.columns
        ]
        source = f"{from_clause(self.table.published)} AS t WHERE {where}" if where else ""
        return f"SELECT {', '.join(expressions)}{source}"

    def hashes(self, columns: Sequence[str], rows: Iterable[Texts]) -> Iterator[tuple[str, int]]:
        """The hashes of rows of a table without keys that are given as texts: of the key, and of the row."""
        by_name = (dict(zip(columns, row, strict=True)) for row in rows)
        selects = (
            f"SELECT {', '.join(self._given(column.name, values[column.name]) for column in self.table.columns)}"
            for values in by_name
        )
        return ((key, hashed) for _, key, hashed in self._hashed(selects))

    def _hashed(self, selects: Iterable[str]) -> Iterator[tuple[int, str, int]]:
        """Yield of each SELECT that has a row its number, and the hashes of the row's key and of the row."""
        for numbered in _batches(
            f"SELECT {number} AS {_NUMBER}, q.* FROM ({select}) AS q" for number, select in enumerate(selects)
        ):
            statement = (
                f"SELECT {_NUMBER}, {self.table.source_key}, {self.table.source_hash} "
                f"FROM ({' UNION ALL '.join(numbered)}) AS r"
            )
            for number, key, hashed in self.source.query(statement):
                yield number, key, int(hashed)

    def _given(self, name: str, value: object) -> str:
        """A value of the stream as a column of its type."""
        return f"{self._literal(value)}{self._cast(name)} AS {quote_identifier(name)}"

    def _cast(self, name: str) -> str:
        return f"::{self.table.declarations[name]}"

    @staticmethod
    def _literal(value: object) -> str:
        return psql.Literal(value if isinstance(value, str) else None).as_string()

    @staticmethod
    def _left_out(keys: Iterable[str]) -> str:
        listed = ",".join(keys)  # one literal: a constant for each would take 400 bytes more of the server
        return f"NOT ({_KEY} = ANY ('{{{listed}}}'::text[]))" if listed else ""


def _batches(selects: Iterable[str]) -> Iterator[list[str]]:
    """Yield as many as one statement should have; a large row comes alone."""
    batch: list[str] = []
    characters = 0
    for select in selects:
        if batch and (len(batch) == _SELECTS_AT_ONCE or characters + len(select) > _CHARACTERS_AT_ONCE):
            yield batch
            batch, characters = [], 0
        batch.append(select)
        characters += len(select)
    if batch:
        yield batch
