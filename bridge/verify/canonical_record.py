"""One record for each row, byte by byte the same on both sides: PostgreSQL's binary format of its values.

PostgreSQL writes it with `record_send` (src/backend/utils/adt/rowtypes.c): the number of values, and for each one its
type, its length and its bytes. That costs the server half of what texts would. Spark puts the same bytes together from
the Delta columns, in a session without ANSI mode, which would not let it have the bytes of an integer.

Equal values have equal bytes, and different ones different bytes. What a Delta column cannot hold is NULL: with
`unrepresentable = "null"` Delta has NULL there, and with "error" no such row is in Delta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from protocol.values.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
    if type_.kind is Kind.ARRAY and type_.element is not None and pa.types.is_list(target):
        return _source_array(value, type_.element, target)
    if pa.types.is_string(target):
        if type_.base_oid in _TEXTS:
            return f"({value})::text"
        return f"CASE WHEN {value} IS DISTINCT FROM NULL THEN pg_catalog.concat({value}) END"
    if pa.types.is_boolean(target):
        return f"({value})::boolean"
    if pa.types.is_integer(target):
        return f"({value})::bigint"
    if pa.types.is_binary(target):
        return f"({value})::bytea"
    if pa.types.is_decimal(target):
        return _source_decimal(value, type_, target)
    if pa.types.is_floating(target):
        return _source_float(value, type_, single=pa.types.is_float32(target))
    if pa.types.is_date(target):
        return _source_day(value, "date")
    return _source_moment(value, type_, target)


def _source_array(value: str, element_type: ColumnType, target: pa.ListType) -> str:
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
