"""A table to verify: how both sides compute the hashes of its keys and rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from bridge.sqltext.keywords import quote_identifier
from bridge.targets.location import quoted
from bridge.verify.canonical_record import MD5, RowHash, source_record, source_value, target_record
from protocol.values.places import AS_NULLS
from protocol.values.types import ColumnType, Kind, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bridge.publication.published_table import PublishedTable
    from bridge.targets.target import Mode

BUCKET_BITS: Final = 10
"""A row is in one of 1024 buckets, by the first bits of its hash. So one hash of each row is enough."""

FINE_BITS: Final = 16
"""Buckets with many rows are divided into 64 each."""

_MOST_NUMBERS: Final = 3
_INTEGERS: Final = frozenset({Kind.INT2, Kind.INT4, Kind.INT8})

ValueTexts = tuple[str | None, str | None]
"""A value's canonical record in hexadecimal, by which both sides are compared, and its text for people."""


@dataclass(frozen=True, slots=True)
class VerifiedColumn:
    """A published column: its name, its type on the server, and the type and place of its Delta column."""

    name: str
    type: ColumnType
    target: pa.DataType
    place: Place = Place.COLUMN

    @property
    def source_value(self) -> str:
        """PostgreSQL's expression of what Delta has."""
        value = source_value(quote_identifier(self.name), self.type, self.target)
        for text in AS_NULLS if self.place is Place.PARTITION and pa.types.is_string(self.target) else ():
            value = f"nullif({value}, '{text}')"
        return value

    @property
    def target_value(self) -> tuple[str, pa.DataType]:
        """Spark's, and its type."""
        return quoted(self.name), self.target


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """A table to verify.

    Attributes:
        published: The published table.
        columns: The published columns that are compared.
        key: The names of those by which changes find rows; none for a table whose rows are a bag.
        declarations: The types of the columns as SQL, by name.
        left_out: Columns that are not compared: VARIANT does not keep a document's text.
        hash: The hash of its rows.
        mode: The Delta table's mode. Of a history, the versions that are valid are compared.
    """

    published: PublishedTable
    path: str
    columns: tuple[VerifiedColumn, ...]
    key: tuple[str, ...]
    declarations: Mapping[str, str] = field(default_factory=dict)
    mode: Mode = "mirror"
    left_out: tuple[str, ...] = ()
    hash: RowHash = MD5

    @property
    def relation(self) -> str:
        """`namespace.name`."""
        return self.published.qualified_name

    @property
    def keyed(self) -> bool:
        """Whether rows have keys."""
        return bool(self.key)

    @property
    def identifying(self) -> tuple[VerifiedColumn, ...]:
        """The key's columns; all of them if rows have no keys."""
        return tuple(column for column in self.columns if column.name in self.key) if self.key else self.columns

    @property
    def numbers(self) -> tuple[VerifiedColumn, ...]:
        """The key's columns if all are integers, and few; none otherwise."""
        key = tuple(column for column in self.columns if column.name in self.key)
        integers = all(column.type.kind in _INTEGERS and pa.types.is_integer(column.target) for column in key)
        return key if integers and len(key) <= _MOST_NUMBERS else ()

    def source_among(self, keys: Iterable[Sequence[int]]) -> str:
        """PostgreSQL's condition, which an index serves, that a row has one of some keys of `numbers`."""
        names = [quote_identifier(column.name) for column in self.numbers]
        if len(names) == 1:
            return f"{names[0]} = ANY ('{{{','.join(str(key) for (key,) in keys)}}}'::bigint[])"
        return f"({', '.join(names)}) IN ({', '.join(_row(key) for key in keys)})"

    def target_among(self, keys: Iterable[Sequence[int]]) -> str:
        """Spark's, by which Delta leaves out files if the key is one column."""
        names = [quoted(column.name) for column in self.numbers]
        if len(names) == 1:
            return f"{names[0]} IN ({', '.join(f'{key}L' for (key,) in keys)})"
        bigints = ", ".join(f"cast({name} AS bigint)" for name in names)
        return f"({bigints}) IN ({', '.join(_row(key) for key in keys)})"

    def source_texts(self) -> list[str]:
        """PostgreSQL's expressions of all columns' records, in hexadecimal."""
        return [f"encode({source_record([column.source_value])}, 'hex')" for column in self.columns]

    def target_texts(self) -> list[str]:
        """Spark's."""
        return [f"lower(hex({target_record([column.target_value])}))" for column in self.columns]

    @property
    def source_key(self) -> str:
        """PostgreSQL's expression of the key's hash: MD5 in hexadecimal."""
        return f"md5({source_record(column.source_value for column in self.identifying)})"

    @property
    def target_key(self) -> str:
        """Spark's."""
        return f"md5({target_record(column.target_value for column in self.identifying)})"

    @property
    def source_hash(self) -> str:
        """PostgreSQL's expression of the row's hash, a bigint."""
        return self.hash.source(source_record(column.source_value for column in self.columns))

    @property
    def target_hash(self) -> str:
        """Spark's."""
        return self.hash.target(target_record(column.target_value for column in self.columns))

    def source_bucket(self, row_hash: str, bits: int = BUCKET_BITS) -> str:
        """PostgreSQL's expression of a row hash's bucket: so many bits of its beginning."""
        return f"({row_hash} >> {self.hash.bits - bits})::int"

    def in_source_buckets(self, row_hash: str, buckets: Iterable[int], bits: int = BUCKET_BITS) -> str:
        """PostgreSQL's condition that a row is in one of some buckets."""
        return f"{self.source_bucket(row_hash, bits)} = ANY ('{{{','.join(map(str, buckets))}}}'::int[])"

    def target_bucket(self, row_hash: str, bits: int = BUCKET_BITS) -> str:
        """Spark's."""
        return f"cast(shiftright({row_hash}, {self.hash.bits - bits}) AS int)"

    def bucket_of(self, row_hash: int, bits: int = BUCKET_BITS) -> int:
        """The bucket of a row's hash."""
        return row_hash >> (self.hash.bits - bits)


def _row(key: Iterable[int]) -> str:
    return f"({', '.join(f'cast({number} AS bigint)' for number in key)})"
