"""How types are written, and what they are called within: `character varying(3)` is pg_type's varchar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.rowfilter.pg_catalog import CATEGORY
from bridge.sqltext.refusal import USER_DEFINED_TYPES, Refused
from bridge.sqltext.syntax import TypeName

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPELLINGS: Final = {
    "boolean": "bool", "smallint": "int2", "int": "int4", "integer": "int4", "bigint": "int8", "real": "float4",
    "double precision": "float8", "decimal": "numeric", "dec": "numeric", "character": "bpchar", "char": "bpchar",
    "character varying": "varchar", "char varying": "varchar",
}  # fmt: skip
"""The grammar's names; pg_type's own can be written, too."""

SHOWN: Final = {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "bpchar": "character", "varchar": "character varying",
    "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
    "time": "time without time zone", "timetz": "time with time zone",
}  # fmt: skip
"""format_type's names, for messages."""

_MAX_FLOAT4_BITS: Final = 24
_MAX_FLOAT8_BITS: Final = 53


def type_name(at: int, words: Sequence[str], modifiers: tuple[int, ...], *, is_array: bool, quoted: bool) -> TypeName:
    """The type that the words name.

    Raises:
        Refused: None that comes with PostgreSQL.
    """
    spelling = " ".join(words)
    if not quoted and spelling == "float":
        bits = modifiers[0] if modifiers else _MAX_FLOAT8_BITS
        if not 1 <= bits <= _MAX_FLOAT8_BITS:
            raise Refused("precision for type float must be between 1 and 53 bits", at)
        return TypeName(at, "float4" if bits <= _MAX_FLOAT4_BITS else "float8", (), is_array)
    name = spelling if quoted else _SPELLINGS.get(spelling, spelling)
    if name not in CATEGORY:
        raise Refused(USER_DEFINED_TYPES, at)
    if name == "bpchar" and spelling in {"char", "character"} and not modifiers:
        modifiers = (1,)  # without a length, one character is meant; bpchar has no length at all
    return TypeName(at, name, modifiers, is_array)


def shown(type_: str) -> str:
    """A type's name as a message has it."""
    return shown(type_.removeprefix("_")) + "[]" if type_.startswith("_") else SHOWN.get(type_, type_)
