"""PostgreSQL types as Arrow types: which column holds a type's values, and in which forms they can be read.

`resolve` is the mapping; `readers` decodes by the `Kind` it names. A type that no kind describes becomes a
string column holding PostgreSQL's text output, and its values must be asked for in text form.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from protocol.values import oids

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A row of pg_type, as `sql/types.sql` returns it; what does not apply to the type is 0 (typmod -1).

    Attributes:
        typtype: b base, d domain, e enum, c composite, r range, m multirange, p pseudo.
        basetype: What a domain is over.
        typmod: A domain's modifier of its base type.
        element: Of true array types only (`int2vector`, `name` or `point` have elements and are no arrays).
        subtype: Of a range, or of the range that a multirange is made of.
        delimiter: Stands between the elements in the text form of an array of this type.
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


BUILTIN: Final[Mapping[int, TypeInfo]] = MappingProxyType(
    {
        oid: TypeInfo(oid, name, typtype=typtype, element=element, subtype=subtype, delimiter=delimiter)
        for oid, name, typtype, element, subtype, delimiter in oids.ROWS
    }
)
"""The types of every installation, by oid."""


class Kind(enum.Enum):
    """How values of a type are read; `arrow` is the Arrow type, None where it depends on the column."""

    def __init__(self, label: str, arrow: pa.DataType | None) -> None:
        self.label = label
        self.arrow = arrow

    BOOL = "bool", pa.bool_()
    INT2 = "int2", pa.int16()
    INT4 = "int4", pa.int32()
    INT8 = "int8", pa.int64()
    OID = "oid", pa.int64()
    FLOAT4 = "float4", pa.float32()
    FLOAT8 = "float8", pa.float64()
    DECIMAL = "numeric(p,s)", None  # a numeric whose values decimal128 holds
    BYTEA = "bytea", pa.binary()
    DATE = "date", pa.date32()
    TIMESTAMP = "timestamp", pa.timestamp("us")
    TIMESTAMPTZ = "timestamptz", pa.timestamp("us", tz="UTC")
    ARRAY = "array", None

    # Strings of PostgreSQL's text output; the kinds tell the binary forms apart.
    TEXT = "text", pa.string()  # binary form = text form
    JSONB = "jsonb", pa.string()  # a version byte, then the text form
    NUMERIC = "numeric", pa.string()
    CHAR = '"char"', pa.string()
    UUID = "uuid", pa.string()
    INET = "inet", pa.string()
    MACADDR = "macaddr", pa.string()
    MACADDR8 = "macaddr8", pa.string()
    INTERVAL = "interval", pa.string()
    TIME = "time", pa.string()
    TIMETZ = "timetz", pa.string()
    BIT = "bit", pa.string()
    PG_LSN = "pg_lsn", pa.string()
    XID = "xid", pa.string()
    XID8 = "xid8", pa.string()
    TID = "tid", pa.string()
    RANGE = "range", pa.string()
    MULTIRANGE = "multirange", pa.string()
    OPAQUE = "opaque", pa.string()  # text form only


_KIND_OF_NAME: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "bool": Kind.BOOL,
        "int2": Kind.INT2,
        "int4": Kind.INT4,
        "int8": Kind.INT8,
        "oid": Kind.OID,
        "float4": Kind.FLOAT4,
        "float8": Kind.FLOAT8,
        "numeric": Kind.NUMERIC,
        "bytea": Kind.BYTEA,
        "date": Kind.DATE,
        "timestamp": Kind.TIMESTAMP,
        "timestamptz": Kind.TIMESTAMPTZ,
        "text": Kind.TEXT,
        "varchar": Kind.TEXT,
        "bpchar": Kind.TEXT,
        "name": Kind.TEXT,
        "json": Kind.TEXT,
        "xml": Kind.TEXT,  # its binary form names the client's encoding, but not if that is UTF8, as here
        "refcursor": Kind.TEXT,
        "jsonb": Kind.JSONB,
        "jsonpath": Kind.JSONB,
        "char": Kind.CHAR,
        "uuid": Kind.UUID,
        "inet": Kind.INET,
        "cidr": Kind.INET,
        "macaddr": Kind.MACADDR,
        "macaddr8": Kind.MACADDR8,
        "interval": Kind.INTERVAL,
        "time": Kind.TIME,
        "timetz": Kind.TIMETZ,
        "bit": Kind.BIT,
        "varbit": Kind.BIT,
        "pg_lsn": Kind.PG_LSN,
        "xid": Kind.XID,
        "cid": Kind.XID,
        "xid8": Kind.XID8,
        "tid": Kind.TID,
    }
)
"""By the names of built-in types; the others, such as money (locale) and point, are opaque."""

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
_TYPMOD_HEADER = 4  # VARHDRSZ, added to a numeric's modifier
_DECIMAL_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class ColumnType:
    """How the values of one column are read, and the Arrow type they become.

    Attributes:
        oid: The column's declared type; of a domain the domain's.
        typmod: The modifier that counts: a domain's own where the type is one.
        arrow: The Arrow type of the Delta column.
        binary: Whether values in binary form can be read; if not, the server must be asked for text.
        kind: How the values are read.
        element: Of an array its element's, of a (multi)range its subtype's; None otherwise.
        delimiter: Of an array: what stands between its elements in text form.
        over: Of a domain the oid of the type that it is over; 0 otherwise.
    """

    oid: int
    typmod: int
    arrow: pa.DataType
    binary: bool
    kind: Kind
    element: ColumnType | None = None
    delimiter: str = ","
    over: int = 0

    @property
    def base_oid(self) -> int:
        """The type that values are of: what a domain is over, else the declared one."""
        return self.over or self.oid

    @property
    def label(self) -> str:
        """What its values are called in messages for people."""
        return f"{self.element.label}[]" if self.kind is Kind.ARRAY and self.element else self.kind.label


def resolve(oid: int, typmod: int, catalog: Mapping[int, TypeInfo] = BUILTIN) -> ColumnType:
    """How a column declared with this type and modifier is read.

    Args:
        oid: As in pg_attribute.atttypid and in the Relation message.
        typmod: As in pg_attribute.atttypmod and in the Relation message, -1 for none.
        catalog: The server's other types, with all they are made of; built-in ones need not be in it.
    """
    info = catalog.get(oid) or BUILTIN.get(oid)
    if info is None:
        return _scalar(oid, typmod, Kind.OPAQUE)
    if info.typtype == "d":
        # A column of a domain has no modifier, nor has a domain over a domain: the innermost is the one.
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
    return ColumnType(oid, typmod, kind.arrow, binary=kind is not Kind.OPAQUE, kind=kind)


def decimal_of(typmod: int) -> pa.DataType | None:
    """The decimal that holds the numbers of a numeric with this modifier; None where there is none."""
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
    return Kind.TEXT if info.name == "citext" and info.typtype == "b" else Kind.OPAQUE
