"""PostgreSQL types -> Arrow types, and the forms in which their values can be read.

`resolve` is the mapping; `readers` decodes by the `Kind` it finds. A type that no kind describes becomes a string
column with PostgreSQL's text output, and its values must be requested in text form.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pgbridge.protocol.values.pg_type import BUILTIN, TypeInfo

if TYPE_CHECKING:
    from collections.abc import Mapping


class Kind(enum.Enum):
    """How values of a type are read.

    Attributes:
        label: Its name in messages for people.
        arrow: The Arrow type; None where it depends on the column.
        names: The built-in types that are read so. Types that no kind names, such as money (its text depends on the
            locale) and point, are OPAQUE.
        parsed: The Arrow type that its texts may become instead (`ColumnType.parsed_for`); None if they stay texts.
    """

    def __init__(
        self, label: str, arrow: pa.DataType | None, names: str = "", parsed: pa.DataType | None = None
    ) -> None:
        self.label = label
        self.arrow = arrow
        self.names: list[str] = names.split()
        self.parsed = parsed

    BOOL = "bool", pa.bool_(), "bool"
    INT2 = "int2", pa.int16(), "int2"
    INT4 = "int4", pa.int32(), "int4"
    INT8 = "int8", pa.int64(), "int8"
    OID = "oid", pa.int64(), "oid"
    FLOAT4 = "float4", pa.float32(), "float4"
    FLOAT8 = "float8", pa.float64(), "float8"
    DECIMAL = "numeric(p,s)", None  # a numeric whose values decimal128 holds
    BYTEA = "bytea", pa.binary(), "bytea"
    DATE = "date", pa.date32(), "date"
    TIMESTAMP = "timestamp", pa.timestamp("us"), "timestamp"
    TIMESTAMPTZ = "timestamptz", pa.timestamp("us", tz="UTC"), "timestamptz"
    ARRAY = "array", None

    # Strings of PostgreSQL's text output; the kinds tell the binary forms apart.
    # TEXT: binary form = text form. xml's binary form names the client's encoding, but not if that is UTF8, as here.
    TEXT = "text", pa.string(), "text varchar bpchar name json xml refcursor"
    JSONB = "jsonb", pa.string(), "jsonb jsonpath"  # a version byte, then the text form
    NUMERIC = "numeric", pa.string(), "numeric"
    CHAR = '"char"', pa.string(), "char"
    UUID = "uuid", pa.string(), "uuid"
    INET = "inet", pa.string(), "inet cidr"
    MACADDR = "macaddr", pa.string(), "macaddr"
    MACADDR8 = "macaddr8", pa.string(), "macaddr8"
    INTERVAL = "interval", pa.string(), "interval"
    TIME = "time", pa.string(), "time"
    TIMETZ = "timetz", pa.string(), "timetz"
    BIT = "bit", pa.string(), "bit varbit"
    PG_LSN = "pg_lsn", pa.string(), "pg_lsn"
    XID = "xid", pa.string(), "xid cid"
    XID8 = "xid8", pa.string(), "xid8"
    TID = "tid", pa.string(), "tid"
    RANGE = "range", pa.string()
    MULTIRANGE = "multirange", pa.string()

    # Text form only: the binary forms that extensions have are not read.
    VECTOR = "vector", pa.string(), "", pa.list_(pa.float32())  # [1,2.5]
    GEOMETRY = "geometry", pa.string(), "", pa.binary()  # EWKB in hexadecimal
    OPAQUE = "opaque", pa.string()


TEXT_ONLY: Final = frozenset({Kind.VECTOR, Kind.GEOMETRY, Kind.OPAQUE})
"""The kinds of scalar types that are not read in binary form."""

_KIND_OF_NAME: Final[Mapping[str, Kind]] = MappingProxyType({name: kind for kind in Kind for name in kind.names})

_KIND_OF_EXTENSIONS_NAME: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "citext": Kind.TEXT,
        **dict.fromkeys(("vector", "halfvec"), Kind.VECTOR),  # pgvector
        **dict.fromkeys(("geometry", "geography"), Kind.GEOMETRY),  # PostGIS
    }
)

RANGE_SUBTYPES: Final = frozenset(
    {
        Kind.INT4,
        Kind.INT8,
        Kind.DECIMAL,
        Kind.NUMERIC,
        Kind.DATE,
        Kind.TIMESTAMP,
        Kind.TIMESTAMPTZ,
    }
)
"""The subtypes whose ranges are read in binary form."""

_FIRST_UNPINNED_OID = 10_000  # FirstGenbkiObjectId: below it, an oid means the same in every installation
_JSONB = 3802
_TYPMOD_HEADER = 4  # VARHDRSZ, added to a numeric's modifier
_DECIMAL_MAX_PRECISION = 38


class Place(enum.Enum):
    """The destination of a string column's texts, if it may change them (`protocol.values.readers`)."""

    COLUMN = "a column of its Arrow type, which holds every value"
    PARTITION = "a partition column of Delta's"
    VARIANT = "a column of the type VARIANT"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """How the values of one column are read, and the Arrow type they become.

    Attributes:
        oid: The column's declared type; for a domain, the domain itself.
        typmod: The column's modifier, or the domain's.
        arrow: The Arrow type of the Delta column.
        binary: Whether values in binary form can be read; if not, text must be requested from the server.
        kind: How the values are read.
        element: An array's element type, a (multi)range's subtype; None otherwise.
        delimiter: Separates an array's elements in text form.
        over: A domain's base type, its oid; 0 otherwise.
        place: Where the values go.
    """

    oid: int
    typmod: int
    arrow: pa.DataType
    binary: bool
    kind: Kind
    element: ColumnType | None = None
    delimiter: str = ","
    over: int = 0
    place: Place = Place.COLUMN

    @property
    def is_jsonb(self) -> bool:
        """Whether the values are of jsonb, or of a domain over it; jsonpath has the same binary form."""
        return self.kind is Kind.JSONB and self.base_oid == _JSONB

    @property
    def base_oid(self) -> int:
        """The oid of the values' type: a domain's base type, else the declared one."""
        return self.over or self.oid

    def parsed_for(self, target: pa.DataType) -> ColumnType:
        """The type as values are read for a column of an Arrow type: parsed, if the column is no string."""
        parsed = self.kind.parsed
        return self if parsed is None or pa.types.is_string(target) else replace(self, arrow=parsed)

    @property
    def label(self) -> str:
        """The type's name in messages for people."""
        return f"{self.element.label}[]" if self.kind is Kind.ARRAY and self.element else self.kind.label


def resolve(oid: int, typmod: int, catalog: Mapping[int, TypeInfo] = BUILTIN) -> ColumnType:
    """Return how a column declared with this type and modifier is read.

    Args:
        oid: As in pg_attribute.atttypid and in the Relation message.
        typmod: As in pg_attribute.atttypmod and in the Relation message, -1 for none.
        catalog: The server's types, with their base, element and subtypes; built-in types may be missing.
    """
    info = catalog.get(oid) or BUILTIN.get(oid)
    if info is None:
        return _scalar(oid, typmod, Kind.OPAQUE)
    if info.typtype == "d":
        # Neither a column of a domain nor a domain over a domain has a modifier: the innermost domain's counts.
        base = resolve(info.basetype, info.typmod, catalog)
        return replace(base, oid=oid, over=base.base_oid)
    if info.element:
        element = resolve(info.element, typmod, catalog)
        member = catalog.get(info.element) or BUILTIN.get(info.element)
        delimiter = member.delimiter if member else ","
        arrow = pa.list_(element.arrow)
        return ColumnType(oid, typmod, arrow, element.binary, Kind.ARRAY, element, delimiter)
    if info.subtype:
        subtype = resolve(info.subtype, -1, catalog)
        kind = Kind.RANGE if info.typtype == "r" else Kind.MULTIRANGE
        if subtype.kind in RANGE_SUBTYPES:
            return ColumnType(oid, typmod, pa.string(), binary=True, kind=kind, element=subtype)
        return _scalar(oid, typmod, Kind.OPAQUE)
    return _scalar(oid, typmod, _kind(info))


def _scalar(oid: int, typmod: int, kind: Kind) -> ColumnType:
    if kind is Kind.NUMERIC and (decimal := decimal_of(typmod)) is not None:
        return ColumnType(oid, typmod, decimal, binary=True, kind=Kind.DECIMAL)
    return ColumnType(oid, typmod, kind.arrow, binary=kind not in TEXT_ONLY, kind=kind)


def decimal_of(typmod: int) -> pa.DataType | None:
    """The decimal type that holds the numbers of a numeric with this modifier; None if no decimal does."""
    if typmod < _TYPMOD_HEADER:
        return None
    # numeric_typmod_precision and numeric_typmod_scale: 16 bits, and 11 with a sign
    precision = (typmod - _TYPMOD_HEADER) >> 16 & 0xFFFF
    scale = (((typmod - _TYPMOD_HEADER) & 0x7FF) ^ 1024) - 1024
    if not 1 <= precision <= _DECIMAL_MAX_PRECISION or not 0 <= scale <= precision:
        return None
    return pa.decimal128(precision, scale)


def _kind(info: TypeInfo) -> Kind:
    if info.typtype == "e":
        return Kind.TEXT
    if info.oid < _FIRST_UNPINNED_OID:
        return _KIND_OF_NAME.get(info.name, Kind.OPAQUE)
    # An extension's type has another oid in every database, so its name must do.
    return _KIND_OF_EXTENSIONS_NAME.get(info.name, Kind.OPAQUE) if info.typtype == "b" else Kind.OPAQUE
