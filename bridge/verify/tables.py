"""A table to verify: how both sides compute the hashes of its keys and rows, from one record for each row.

A record is byte by byte the same on both sides: PostgreSQL's binary format of the row's values. PostgreSQL writes it
with `record_send` (src/backend/utils/adt/rowtypes.c): the number of values, and for each one its type, its length and
its bytes. That costs the server half of what texts would. Spark puts the same bytes together from the Delta columns, in
a session without ANSI mode, which would not let it have the bytes of an integer.

Equal values have equal bytes, and different ones different bytes. What a Delta column cannot hold is NULL: with
`unrepresentable = "null"` Delta has NULL there, and with "error" no such row is in Delta.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pgbridge.bridge.publication.shape import output_text
from pgbridge.bridge.sqltext.lexer import quote_identifier
from pgbridge.bridge.targets.location import quoted
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.values.readers import AS_NULLS
from pgbridge.protocol.values.types import ColumnType, Kind, Place, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.publication.shape import Mask
    from pgbridge.bridge.targets.target import Mode

_BOOL, _BYTEA, _INT8, _TEXT, _FLOAT4, _FLOAT8, _DATE, _TIMESTAMP, _TIMESTAMPTZ = (
    16, 17, 20, 25, 700, 701, 1082, 1114, 1184,
)  # fmt: skip
_TEXTS: Final = frozenset({_TEXT, 1043})
"""The oids of text and varchar, whose values are texts as they are."""

_EPOCH_DAYS: Final = 10_957  # 2000-01-01, where PostgreSQL's dates begin
_EPOCH_US: Final = _EPOCH_DAYS * 86_400_000_000
_CRC32_SINCE: Final = 180_000


@dataclass(frozen=True, slots=True)
class RowHash:
    """A hash that both sides have: an integer that is not negative.

    Attributes:
        bits: Its length.
        source: Makes PostgreSQL's expression of a record's hash.
        target: Makes Spark's.
    """

    bits: int
    source: Callable[[str], str]
    target: Callable[[str], str]


CRC32: Final = RowHash(32, "crc32({})".format, "crc32({})".format)
MD5: Final = RowHash(
    60, "('x' || md5({}))::bit(60)::bigint".format, "cast(conv(left(md5({}), 15), 16, 10) AS bigint)".format
)


def row_hash(server_version: int) -> RowHash:
    """The cheapest hash that a server has: CRC-32 from version 18 on, which takes both sides half the time of MD5's."""
    return CRC32 if server_version >= _CRC32_SINCE else MD5


def source_record(values: Iterable[str]) -> str:
    """PostgreSQL's expression of a record, a bytea, of expressions that `source_value` made."""
    return f"record_send(ROW({', '.join(values)}))"


def source_value(value: str, type_: ColumnType, target: pa.DataType) -> str:  # noqa: PLR0911 - a type each
    """PostgreSQL's expression of a value in the type whose bytes are written.

    Args:
        value: An expression of the column's type.
        type_: The column's type.
        target: The type of the Delta column, which may be wider.
    """
    if pa.types.is_list(target):
        return _source_array(value, type_, target)
    if pa.types.is_string(target):
        if type_.base_oid in _TEXTS:
            return f"({value})::text"
        return output_text(value)
    if pa.types.is_boolean(target):
        return f"({value})::boolean"
    if pa.types.is_integer(target):
        return f"({value})::bigint"
    if pa.types.is_binary(target):
        is_text = type_.kind is Kind.GEOMETRY  # never an empty one
        return f"decode(nullif(pg_catalog.concat({value}), ''), 'hex')" if is_text else f"({value})::bytea"
    if pa.types.is_decimal(target):
        return _source_decimal(value, type_, target)
    if pa.types.is_floating(target):
        return _source_float(value, type_, single=pa.types.is_float32(target))
    if pa.types.is_date(target):
        return _source_day(value, "date")
    return _source_moment(value, type_, target)


def _source_array(value: str, type_: ColumnType, target: pa.ListType) -> str:
    element_type = type_.element
    if element_type is None:  # pgvector casts both of its types
        value, element_type = f"({value})::real[]", resolve(_FLOAT4, -1)
    element = source_record([source_value("e", element_type, target.value_type)])
    # not in FROM, where unnest makes columns of a composite type's fields
    elements = f"(SELECT e, row_number() OVER () AS o FROM (SELECT unnest({value}) AS e) AS v) AS u"
    items = f"coalesce(string_agg(encode({element}, 'hex'), '' ORDER BY o), '')"
    return (
        f"CASE WHEN {value} IS NULL OR array_ndims({value}) > 1 OR array_lower({value}, 1) <> 1 THEN NULL "
        f"ELSE (SELECT {items} FROM {elements}) END"
    )


def _source_day(value: str, name: str) -> str:
    return f"CASE WHEN {value} BETWEEN '0001-01-01' AND '9999-12-31' THEN ({value})::{name} END"


def _source_moment(value: str, type_: ColumnType, target: pa.TimestampType) -> str:
    midnight, name = ("00:00:00+00", "timestamptz") if target.tz else ("00:00:00", "timestamp")
    if type_.kind is Kind.DATE:  # it has days that no timestamp has
        return _source_day(value, name)
    moment = f"({value})::{name}"
    return f"CASE WHEN {moment} >= '0001-01-01 {midnight}' AND {moment} < '10000-01-01 {midnight}' THEN {moment} END"


def _source_decimal(value: str, type_: ColumnType, target: pa.Decimal128Type) -> str:
    as_target = f"::numeric({target.precision}, {target.scale})::text"
    if type_.kind is not Kind.DECIMAL:
        return f"({value}){as_target}"
    text = "::text" if type_.arrow == target else as_target
    return f"CASE WHEN {value} > '-Infinity' AND {value} < 'Infinity' THEN ({value}){text} END"  # NaN is above


def _source_float(value: str, type_: ColumnType, *, single: bool) -> str:
    if single:
        number = f"({value})::float4"
    elif type_.kind is Kind.FLOAT4:
        number = f"({value})::text::float8"  # a real in a double has the double of its text, as the copy has it
    else:
        number = f"({value})::float8"
    # there are several NaNs
    return f"CASE WHEN {number} = 'NaN' THEN 'NaN'::{'float4' if single else 'float8'} ELSE {number} END"


def target_record(values: Iterable[tuple[str, pa.DataType]]) -> str:
    """Spark's expression of the same record, a binary, of Delta's columns and their types."""
    given = list(values)
    parts = [part for value, type_ in given for part in _target_value(value, type_)]
    return f"concat({_int4(len(given))}, {', '.join(parts)})"


def _target_value(value: str, target: pa.DataType) -> list[str]:  # noqa: PLR0911 - a type each
    if pa.types.is_list(target):
        element = target_record([("e", target.value_type)])
        return _varying(_TEXT, f"array_join(transform({value}, e -> lower(hex({element}))), '')")
    if pa.types.is_boolean(target):
        return _fixed(_BOOL, 1, value, f"CASE WHEN {value} THEN X'01' ELSE X'00' END")
    if pa.types.is_integer(target):
        return _fixed(_INT8, 8, value, f"cast(cast({value} AS bigint) AS binary)")
    if pa.types.is_binary(target):
        return _varying(_BYTEA, value)
    if pa.types.is_float32(target):
        bits = f"java_method('java.lang.Float', 'floatToIntBits', {value})"
        return _fixed(_FLOAT4, 4, value, f"cast(cast({bits} AS int) AS binary)")
    if pa.types.is_floating(target):
        bits = f"java_method('java.lang.Double', 'doubleToLongBits', {value})"
        return _fixed(_FLOAT8, 8, value, f"cast(cast({bits} AS bigint) AS binary)")
    if pa.types.is_date(target):
        return _fixed(_DATE, 4, value, f"cast(unix_date({value}) - {_EPOCH_DAYS} AS binary)")
    if pa.types.is_timestamp(target):
        moment, oid = (value, _TIMESTAMPTZ) if target.tz else (f"cast({value} AS timestamp)", _TIMESTAMP)
        return _fixed(oid, 8, value, f"cast(unix_micros({moment}) - {_EPOCH_US}L AS binary)")
    return _varying(_TEXT, value if pa.types.is_string(target) else f"try_cast({value} AS string)")


def _fixed(oid: int, length: int, value: str, value_bytes: str) -> list[str]:
    head = f"CASE WHEN {value} IS NULL THEN {_int4(oid, -1)} ELSE {_int4(oid, length)} END"
    return [head, f"CASE WHEN {value} IS NULL THEN X'' ELSE {value_bytes} END"]


def _varying(oid: int, value: str) -> list[str]:
    length = f"cast(coalesce(octet_length({value}), -1) AS binary)"
    return [_int4(oid), length, f"coalesce(cast({value} AS binary), X'')"]


def _int4(*numbers: int) -> str:
    return f"X'{b''.join(number.to_bytes(4, signed=True) for number in numbers).hex()}'"


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
    """A published column: its name and type on the server; its Delta column's type, place, mask and other name."""

    name: str
    type: ColumnType
    target: pa.DataType
    place: Place = Place.COLUMN
    mask: Mask | None = None
    renamed: str | None = None

    @property
    def target_name(self) -> str:
        """The Delta column's name."""
        return self.name if self.renamed is None else self.renamed

    @property
    def source_value(self) -> str:
        """PostgreSQL's expression of what Delta has."""
        if self.mask is not None:
            value = self.mask.sql(self.name)
        else:
            value = source_value(quote_identifier(self.name), self.type, self.target)
        for text in AS_NULLS if self.place is Place.PARTITION and pa.types.is_string(self.target) else ():
            value = f"nullif({value}, '{text}')"
        return value

    @property
    def source_text(self) -> str:
        """PostgreSQL's expression of the text that people are shown."""
        return output_text(quote_identifier(self.name)) if self.mask is None else self.mask.sql(self.name)

    @property
    def target_value(self) -> tuple[str, pa.DataType]:
        """Spark's, and its type."""
        return quoted(self.target_name), self.target


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
        mode: The Delta table's mode. Of rows that have versions, those that are valid are compared.
        lsn: As of which the Delta table is read: later than the other tables if it has more of the stream.
    """

    published: PublishedTable
    path: str
    columns: tuple[VerifiedColumn, ...]
    key: tuple[str, ...]
    declarations: Mapping[str, str] = field(default_factory=dict)
    mode: Mode = "mirror"
    left_out: tuple[str, ...] = ()
    hash: RowHash = MD5
    lsn: Lsn = INVALID

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
        names = [quoted(column.target_name) for column in self.numbers]
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
