"""One text for each value, computed by PostgreSQL of its column and by Spark of the Delta column.

Equal values have equal texts, and different ones different texts. What a Delta column cannot hold has none, as NULL:
with `unrepresentable = "null"` Delta has NULL there, and with "error" no such row is in Delta.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from protocol.values.types import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.values.types import ColumnType

HASH_DIGITS: Final = 15
"""Hexadecimal digits of a row's MD5 that are summed: 60 bits, which a bigint holds."""

_COLUMNS, _ELEMENTS = "\\x1f", "\\x1e"  # separators, which no text has but a string's, and that begins with its length
_NULL: Final = "'~'"
_AT_ONCE: Final = 90
_TEXTS: Final = frozenset({25, 1043})
"""The oids of text and varchar, whose values are texts as they are."""


def source_text(value: str, type_: ColumnType, target: pa.DataType) -> str:  # noqa: PLR0911 - a type each
    """PostgreSQL's expression of a value's text; NULL for NULL and for what the target cannot hold.

    Args:
        value: An expression of the column's type.
        type_: The column's type.
        target: The type of the Delta column, which may be wider.
    """
    if type_.kind is Kind.ARRAY and type_.element is not None and pa.types.is_list(target):
        element = source_text("e", type_.element, target.value_type)
        # not in FROM, where unnest makes columns of a composite type's fields
        elements = f"(SELECT e, row_number() OVER () AS o FROM (SELECT unnest({value}) AS e) AS v) AS u"
        items = f"coalesce(string_agg(coalesce({element}, {_NULL}), E'{_ELEMENTS}' ORDER BY o), '')"
        return (
            f"CASE WHEN {value} IS NULL OR array_ndims({value}) > 1 OR array_lower({value}, 1) <> 1 THEN NULL "
            f"ELSE (SELECT 'A' || {items} || ':' || count(*) FROM {elements}) END"
        )
    if pa.types.is_string(target):
        return _source_string(value, type_)
    if pa.types.is_boolean(target):
        return f"({value})::int::text"
    if pa.types.is_integer(target):
        return f"({value})::bigint::text"
    if pa.types.is_binary(target):
        return f"encode({value}, 'hex')"
    if pa.types.is_decimal(target):
        number = f"({value})::numeric({target.precision}, {target.scale})::text"
        if type_.kind is not Kind.DECIMAL:
            return number
        return f"CASE WHEN ({value})::text NOT IN ('NaN', 'Infinity', '-Infinity') THEN {number} END"
    if pa.types.is_floating(target):
        return _source_float(value, type_, single=pa.types.is_float32(target))
    if pa.types.is_date(target):
        return (
            f"CASE WHEN {value} BETWEEN '0001-01-01' AND '9999-12-31' "
            f"THEN (({value})::date - '1970-01-01'::date)::text END"
        )
    end = "'10000-01-01 00:00:00+00'" if pa.types.is_timestamp(target) and target.tz else "'10000-01-01 00:00:00'"
    start = "'0001-01-01 00:00:00+00'" if target.tz else "'0001-01-01 00:00:00'"
    moment = value if target.tz else f"({value})::timestamp"
    return (
        f"CASE WHEN {moment} >= {start} AND {moment} < {end} "
        f"THEN (extract(epoch FROM {moment}) * 1000000)::bigint::text END"
    )


def _source_string(value: str, type_: ColumnType) -> str:
    if type_.base_oid in _TEXTS:
        return f"char_length({value}) || ':' || {value}"
    text = f"pg_catalog.concat({value})"
    return f"CASE WHEN {value} IS DISTINCT FROM NULL THEN char_length({text}) || ':' || {text} END"


def _source_float(value: str, type_: ColumnType, *, single: bool) -> str:
    # a real in a double has the double of its text, as the copy has it
    number = value if type_.kind in {Kind.FLOAT4, Kind.FLOAT8} else f"({value})::float8"
    if not single and type_.kind is Kind.FLOAT4:
        number = f"({value})::text::float8"
    send, bits, whole = ("float4send", 32, "int") if single else ("float8send", 64, "bigint")
    return (
        f"CASE WHEN {number} = 'NaN' THEN 'NaN' "
        f"ELSE ('x' || encode({send}({number}), 'hex'))::bit({bits})::{whole}::text END"
    )


def target_text(value: str, target: pa.DataType) -> str:  # noqa: PLR0911 - a type each
    """Spark's expression of the same text, of the Delta column's value."""
    if pa.types.is_list(target):
        element = target_text("e", target.value_type)
        items = f"array_join(transform({value}, e -> coalesce({element}, {_NULL})), '{_spark(_ELEMENTS)}')"
        return f"concat('A', {items}, ':', size({value}))"
    if pa.types.is_string(target):
        return f"concat(length({value}), ':', {value})"
    if pa.types.is_boolean(target):
        return f"cast(cast({value} AS int) AS string)"
    if pa.types.is_binary(target):
        return f"lower(hex({value}))"
    if pa.types.is_floating(target):
        kind, method = ("Float", "floatToIntBits") if pa.types.is_float32(target) else ("Double", "doubleToLongBits")
        bits = f"java_method('java.lang.{kind}', '{method}', {value})"
        return f"CASE WHEN {value} IS NULL THEN NULL WHEN isnan({value}) THEN 'NaN' ELSE {bits} END"
    if pa.types.is_date(target):
        return f"cast(unix_date({value}) AS string)"
    if pa.types.is_timestamp(target):
        return f"cast(unix_micros({value if target.tz else f'cast({value} AS timestamp)'}) AS string)"
    return f"cast({value} AS string)"


def source_row(texts: Iterable[str]) -> str:
    """PostgreSQL's expression of the MD5 of several texts, in hexadecimal."""
    parts = [f"coalesce({text}, {_NULL})" for text in texts]
    while len(parts) > 1 or not parts[0].startswith("concat_ws"):  # a function has 100 arguments at most
        groups = [parts[first : first + _AT_ONCE] for first in range(0, len(parts), _AT_ONCE)]
        parts = [f"concat_ws(E'{_COLUMNS}', {', '.join(group)})" for group in groups]
    return f"md5(convert_to({parts[0]}, 'UTF8'))"


def target_row(texts: Iterable[str]) -> str:
    """Spark's expression of the same."""
    listed = ", ".join(f"coalesce({text}, {_NULL})" for text in texts)
    return f"md5(cast(concat_ws('{_spark(_COLUMNS)}', {listed}) AS binary))"


def _spark(separator: str) -> str:
    return separator.replace("\\x", "\\u00")
