"""The types that come with PostgreSQL, and their names in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.rowfilter.types.pg_catalog import CATEGORY
from bridge.sqltext.refusal import USER_DEFINED_TYPES, Refused

if TYPE_CHECKING:
    from bridge.sqltext.syntax import TypeName

SHOWN: Final = {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "bpchar": "character", "varchar": "character varying",
    "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
    "time": "time without time zone", "timetz": "time with time zone",
}  # fmt: skip
"""The names in messages, which are those of format_type."""


def check_builtin(type_: TypeName) -> None:
    """Check that a type is built-in.

    Raises:
        Refused: It is not.
    """
    if type_.name not in CATEGORY:
        raise Refused(USER_DEFINED_TYPES, type_.at)


def shown(type_: str) -> str:
    """The name of a type in messages."""
    return shown(type_.removeprefix("_")) + "[]" if type_.startswith("_") else SHOWN.get(type_, type_)
