"""Strategies for values in both forms, and for blocks of row messages that carry them."""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st

from pgbridge.protocol.codec.messages import Column, Delete, Insert, Relation, Update, Value, ValueKind
from pgbridge.protocol.values.types import ColumnType, Kind, resolve
from tests.protocol.sampled import array_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUMERIC = 1700
RELATION_ID = 16384


def typmod_of(precision: int, scale: int) -> int:
    """`make_numeric_typmod`."""
    return (precision << 16 | scale & 0x7FF) + 4


class Both(NamedTuple):
    """A value's text and binary forms."""

    text: bytes
    binary: bytes


def numeric_send(value: Decimal) -> bytes:
    """The binary form of a number; its exponent gives the display scale."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).zfill(max(-exponent, 0)) + "0" * max(exponent, 0)
    dscale = max(-exponent, 0)
    whole, fraction = text[: len(text) - dscale], text[len(text) - dscale :]
    whole = whole.zfill(-(-len(whole) // 4) * 4)
    fraction = fraction.ljust(-(-dscale // 4) * 4, "0")
    groups = [int((whole + fraction)[i : i + 4]) for i in range(0, len(whole + fraction), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups, weight = groups[1:], weight - 1
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        sign = weight = 0
    return struct.pack(">HhHH", len(groups), weight, 0x4000 if sign else 0, dscale) + struct.pack(
        f">{len(groups)}h", *groups
    )


def array_send(elements: Sequence[bytes | None], element_oid: int, lower: int = 1) -> bytes:
    """The binary form of an array of one dimension, or none if it is empty."""
    if not elements:
        return struct.pack(">iiI", 0, 0, element_oid)
    head = struct.pack(">iiIii", 1, None in elements, element_oid, len(elements), lower)
    return head + b"".join(struct.pack(">i", -1) if e is None else struct.pack(">i", len(e)) + e for e in elements)


def _packed(layout: str, text: Callable[[int], str] = str) -> Callable[[int], Both]:
    return lambda number: Both(text(number).encode(), struct.pack(layout, number))


def _float(layout: str) -> Callable[[float], Both]:
    def both(number: float) -> Both:
        text = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(number), repr(number))
        return Both(text.encode(), struct.pack(layout, number))

    return both


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """Decimals of exactly this scale; no -0, which numeric does not have."""
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


def numeric_both(value: Decimal) -> Both:
    """A number's two forms."""
    return Both(f"{value:f}".encode(), numeric_send(value))


_NAN = Both(b"NaN", struct.pack(">hhHH", 0, 0, 0xC000, 0))
_DAY = dt.timedelta(days=1)
_MICROSECOND = dt.timedelta(microseconds=1)


def _date(day: dt.date) -> Both:
    return Both(day.isoformat().encode(), struct.pack(">i", (day - dt.date(2000, 1, 1)) // _DAY))


def _stamp(zone: str) -> Callable[[dt.datetime], Both]:
    def both(stamp: dt.datetime) -> Both:
        text = stamp.isoformat(" ")
        text = text.rstrip("0") if stamp.microsecond else text
        epoch = dt.datetime(2000, 1, 1)  # noqa: DTZ001 - neither has a zone
        return Both((text + zone).encode(), struct.pack(">q", (stamp - epoch) // _MICROSECOND))

    return both


def _infinities(layout: str, bits: int) -> st.SearchStrategy[Both]:
    edge = 1 << (bits - 1)
    return st.sampled_from([
        Both(b"infinity", struct.pack(layout, edge - 1)),
        Both(b"-infinity", struct.pack(layout, -edge)),
    ])  # fmt: skip


def _mostly(usual: st.SearchStrategy[Both], rare: st.SearchStrategy[Both]) -> st.SearchStrategy[Both]:
    return st.one_of(usual, usual, usual, usual, rare)


def _text(prefix: bytes) -> Callable[[str], Both]:
    return lambda text: Both(text.encode(), prefix + text.encode())


def values_of(type_: ColumnType) -> st.SearchStrategy[Both]:  # noqa: PLR0911, PLR0912 - a case a line
    """Values of a type, with some that the column cannot hold."""
    match type_.kind:
        case Kind.BOOL:
            return st.booleans().map(lambda b: Both(b"t" if b else b"f", struct.pack("?", b)))
        case Kind.INT2:
            return st.integers(-(2**15), 2**15 - 1).map(_packed(">h"))
        case Kind.INT4:
            return st.integers(-(2**31), 2**31 - 1).map(_packed(">i"))
        case Kind.INT8:
            return st.integers(-(2**63), 2**63 - 1).map(_packed(">q"))
        case Kind.OID:
            return st.integers(0, 2**32 - 1).map(_packed(">I"))
        case Kind.FLOAT4:
            return st.floats(width=32).map(_float(">f"))
        case Kind.FLOAT8:
            return st.floats().map(_float(">d"))
        case Kind.DECIMAL:
            return _mostly(decimals(type_.arrow.precision, type_.arrow.scale).map(numeric_both), st.just(_NAN))
        case Kind.NUMERIC:
            numbers = st.tuples(st.integers(1, 40), st.integers(0, 40)).flatmap(lambda ps: decimals(*ps))
            return _mostly(numbers.map(numeric_both), st.just(_NAN))
        case Kind.BYTEA:
            return st.binary(max_size=30).map(lambda b: Both(b"\\x" + b.hex().encode(), b))
        case Kind.DATE:
            return _mostly(st.dates().map(_date), _infinities(">i", 32))
        case Kind.TIMESTAMP:
            return _mostly(st.datetimes().map(_stamp("")), _infinities(">q", 64))
        case Kind.TIMESTAMPTZ:
            return _mostly(st.datetimes().map(_stamp("+00")), _infinities(">q", 64))
        case Kind.TEXT:
            return _texts().map(_text(b""))
        case Kind.JSONB:
            return _texts().map(_text(b"\1"))
        case Kind.UUID:
            return st.binary(min_size=16, max_size=16).map(lambda b: Both(str(uuid.UUID(bytes=b)).encode(), b))
        case _:
            assert type_.element is not None
            return _arrays_of(type_.element)


def _texts() -> st.SearchStrategy[str]:
    alphabet = st.one_of(
        st.sampled_from('{}",\\ NUL'), st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    )
    return st.text(alphabet, max_size=12)


def _arrays_of(element: ColumnType) -> st.SearchStrategy[Both]:
    def both(elements: list[Both | None], lower: int = 1) -> Both:
        bounds = f"[{lower}:{lower + len(elements) - 1}]=" if elements and lower != 1 else ""
        return Both(
            (bounds + array_of([None if e is None else e.text.decode() for e in elements])).encode(),
            array_send([None if e is None else e.binary for e in elements], element.oid, lower),
        )

    elements = st.lists(st.none() | values_of(element), max_size=5)
    arrays = elements.map(both)
    bounded = st.builds(both, elements, st.integers(-(2**31), 2**31 - 7))
    nested = Both(b"{{NULL},{NULL}}", struct.pack(">iiIiiiiii", 2, 1, element.oid, 2, 1, 1, 1, -1, -1))
    return _mostly(arrays, bounded | st.just(nested))


TYPES = [
    resolve(oid, typmod)
    for oid, typmod in [
        *((oid, -1) for oid in (16, 21, 23, 20, 26, 700, 701, 17, 1082, 1114, 1184, 25, 1043, 3802, 2950, NUMERIC)),
        *((NUMERIC, typmod_of(p, s)) for p, s in [(1, 0), (12, 2), (18, 0), (18, 7), (18, 18), (19, 3), (38, 38)]),
        *((oid, -1) for oid in (1005, 1016, 1009, 1231, 1182, 1000, 2951, 1001)),
        (1231, typmod_of(9, 4)),
    ]
]  # fmt: skip


class RowBlock(NamedTuple):
    """Messages of one relation, and the types of its columns."""

    relation: Relation
    types: list[ColumnType]
    messages: list[Insert | Update | Delete]


@st.composite
def row_blocks(draw: st.DrawFn, *, in_stream: bool = False, most: int = 12) -> RowBlock:
    """Random relations, and messages of all tags with all kinds of values in both forms."""
    types = draw(st.lists(st.sampled_from(TYPES), max_size=5))
    columns = tuple(Column(f"c{i}", type_.oid, type_.typmod, i == 0) for i, type_ in enumerate(types))
    relation = Relation(RELATION_ID, "public", "t", "d", columns)

    def tuples(*, new: bool) -> st.SearchStrategy[tuple[Value, ...]]:
        dataless = [Value(ValueKind.NULL), Value(ValueKind.UNCHANGED_TOAST)][: 1 + new]
        return st.tuples(*(
            st.one_of(
                values_of(type_).map(lambda both: Value(ValueKind.TEXT, both.text)),
                values_of(type_).map(lambda both: Value(ValueKind.BINARY, both.binary)),
                st.sampled_from(dataless),
            )
            for type_ in types
        ))  # fmt: skip

    new, old = tuples(new=True), tuples(new=False)
    xid = st.integers(1, 2**32 - 1) if in_stream else st.none()
    relation_id = st.just(RELATION_ID)
    message = st.one_of(
        st.builds(Insert, relation_id, new, xid=xid),
        st.builds(Update, relation_id, new, xid=xid),
        st.builds(Update, relation_id, new, key_tuple=old, xid=xid),
        st.builds(Update, relation_id, new, old_tuple=old, xid=xid),
        st.builds(Delete, relation_id, key_tuple=old, xid=xid),
        st.builds(Delete, relation_id, old_tuple=old, xid=xid),
    )
    return RowBlock(relation, types, draw(st.lists(message, max_size=most)))
