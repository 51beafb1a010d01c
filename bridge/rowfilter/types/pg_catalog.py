"""The built-in operators, functions, casts and types of PostgreSQL that decide which operator a filter means.

`pg_catalog.tsv` beside this module has them as pg_operator, pg_proc, pg_cast and pg_type of PostgreSQL 18.6 do;
`python -m tests.generated_catalogs` writes it, and a test compares it with a server. A line is a kind, a
name and entries:

    operator   its signatures `left,right,result`, or `right,result` of a prefix operator
    function   its signatures `argument,…,result`; the names that are translated, and a few that never can be
    cast       `source,target,` then context (i implicit, a assignment, e explicit) and method (f function, b binary,
               i I/O); no name
    category   pg_type.typcategory, and its types

For each name all signatures are listed, translated or not, since PostgreSQL chooses among all of them (`resolution`).
Those that end in `!` are not immutable, as are such casts; a type with `!` is the preferred one of its category.

A message names types as format_type does (`shown`).
"""

from __future__ import annotations

from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pgbridge.bridge.sqltext import refusal, syntax

if TYPE_CHECKING:
    from collections.abc import Mapping


class Signature(NamedTuple):
    """An operator or a function.

    Attributes:
        arguments: The names of the arguments' types in pg_type, which may be polymorphic.
        result: The name of the result's type.
        immutable: Whether a row filter may call it.
    """

    arguments: tuple[str, ...]
    result: str
    immutable: bool


class Cast(NamedTuple):
    """A row of pg_cast.

    Attributes:
        context: castcontext: i implicit, a assignment, e explicit.
        method: castmethod: f a function, b binary-coercible, i by way of the text form.
    """

    context: str
    method: str
    immutable: bool


def _rows(kind: str) -> dict[str, list[str]]:
    """The entries of a kind, by name."""
    lines = (line.split("\t") for line in _TEXT.splitlines())
    return {name: entries.split() for line_kind, name, entries in lines if line_kind == kind}


def _signatures(kind: str) -> Mapping[str, tuple[Signature, ...]]:
    return MappingProxyType({name: tuple(map(_signature, entries)) for name, entries in _rows(kind).items()})


def _signature(entry: str) -> Signature:
    *arguments, result = entry.removesuffix("!").split(",")
    return Signature(tuple(arguments), result, not entry.endswith("!"))


_TEXT: Final = resources.files(__package__).joinpath("pg_catalog.tsv").read_text(encoding="utf-8")
_TYPES: Final = [(name, category) for category, names in _rows("category").items() for name in names]

OPERATORS: Final = _signatures("operator")
FUNCTIONS: Final = _signatures("function")
CASTS: Final[Mapping[tuple[str, str], Cast]] = MappingProxyType(
    {
        (source, target): Cast(how[0], how[1], not how.endswith("!"))
        for source, target, how in (entry.split(",") for entry in _rows("cast")[""])
    }
)
CATEGORY: Final[Mapping[str, str]] = MappingProxyType({name.removesuffix("!"): category for name, category in _TYPES})
PREFERRED: Final = frozenset(name.removesuffix("!") for name, _ in _TYPES if name.endswith("!"))


SHOWN: Final = {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "bpchar": "character", "varchar": "character varying",
    "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
    "time": "time without time zone", "timetz": "time with time zone",
}  # fmt: skip
"""The names in messages, which are those of format_type."""


def check_builtin(type_: syntax.TypeName) -> None:
    """Check that a type is built-in.

    Raises:
        Refused: It is not.
    """
    if type_.name not in CATEGORY:
        raise refusal.Refused(refusal.USER_DEFINED_TYPES, type_.at)


def shown(type_: str) -> str:
    """The name of a type in messages."""
    return shown(type_.removeprefix("_")) + "[]" if type_.startswith("_") else SHOWN.get(type_, type_)
