"""Reads types as gram.y spells them: `character varying(3)` is pg_type's varchar(3). The catalog says which exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.sqltext.refusal import Refused
from bridge.sqltext.syntax import TypeName

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYWORDS: Final = frozenset(
    {
        "bigint", "bit", "boolean", "char", "character", "dec", "decimal", "float", "int", "integer", "interval",
        "json", "numeric", "real", "smallint", "time", "timestamp", "varchar",
    }
)  # fmt: skip
"""The keywords of category C that are read as types."""

FOLLOWING: Final = {"character": "varying", "char": "varying", "bit": "varying", "double": "precision"}
"""A type's first word -> the second one that it may have."""

_CATALOG_NAMES: Final = {
    "boolean": "bool", "smallint": "int2", "int": "int4", "integer": "int4", "bigint": "int8", "real": "float4",
    "double precision": "float8", "decimal": "numeric", "dec": "numeric", "character": "bpchar", "char": "bpchar",
    "character varying": "varchar", "char varying": "varchar", "bit varying": "varbit",
    "time without time zone": "time", "time with time zone": "timetz",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
}  # fmt: skip

_MAX_FLOAT4_BITS: Final = 24
_MAX_FLOAT8_BITS: Final = 53


def type_name(at: int, words: Sequence[str], modifiers: tuple[int, ...], *, is_array: bool) -> TypeName:
    """The type that these keywords, or this unquoted name, mean.

    Raises:
        Refused: The precision of a float is out of range.
    """
    spelling = " ".join(words)
    if spelling == "float":
        bits = modifiers[0] if modifiers else _MAX_FLOAT8_BITS
        if not 1 <= bits <= _MAX_FLOAT8_BITS:
            raise Refused("precision for type float must be between 1 and 53 bits", at)
        return TypeName(at, "float4" if bits <= _MAX_FLOAT4_BITS else "float8", (), is_array)
    if spelling in {"char", "character"} and not modifiers:
        modifiers = (1,)
    return TypeName(at, _CATALOG_NAMES.get(spelling, spelling), modifiers, is_array)
