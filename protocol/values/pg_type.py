"""Rows of pg_type, and those of the built-in types.

It needs neither pyarrow nor NumPy, so that commands that ask a server start sooner.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A row of pg_type, as `sql/types.sql` returns it; a field that does not apply to the type is 0 (typmod -1).

    Attributes:
        typtype: b base, d domain, e enum, c composite, r range, m multirange, p pseudo.
        basetype: A domain's base type.
        typmod: A domain's modifier of its base type.
        element: A true array's element type (`int2vector`, `name` and `point` have elements and are not arrays).
        subtype: The subtype of a range, or of a multirange's range.
        delimiter: Separates the elements in the text form of an array of this type.
    """

    oid: int
    name: str
    namespace: str = "pg_catalog"
    typtype: str = "b"
    basetype: int = 0
    typmod: int = -1
    element: int = 0
    subtype: int = 0
    delimiter: str = ","


_BUILTIN: Final = resources.files(__package__).joinpath("oids.tsv").read_text(encoding="utf-8")
BUILTIN: Final[Mapping[int, TypeInfo]] = MappingProxyType(
    {
        int(oid): TypeInfo(int(oid), name, "pg_catalog", typtype, 0, -1, int(element), int(subtype), delimiter)
        for oid, name, typtype, element, subtype, delimiter in (line.split("\t") for line in _BUILTIN.splitlines())
    }
)
"""The types of every installation, by oid, as PostgreSQL 18.6 has them; a test compares them with a server.

An oid below 10000 is never used for another type, so a server of another version only has fewer or more.
"""
