"""Each message inside transactions against bytes written out by hand from the documentation, and its rules."""

from __future__ import annotations

import dataclasses

import pytest

from protocol.codec.messages import (
    Column,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    Truncate,
    Type,
    Update,
    Value,
    ValueKind,
)
from protocol.codec.pgoutput import decode, encode
from protocol.errors import MalformedMessage
from protocol.lsn import Lsn

OID = "00004001"
NULL = Value(ValueKind.NULL)
TOAST = Value(ValueKind.UNCHANGED_TOAST)
ONE = Value(ValueKind.TEXT, b"1")
TWO = Value(ValueKind.BINARY, b"\0\0\0\x02")
ONE_HEX = "74" + "00000001" + "31"
TWO_HEX = "62" + "00000004" + "00000002"
ALL_HEX = "0005" + "6e" + "75" + ONE_HEX + TWO_HEX + "74" + "00000000"
ALL = (NULL, TOAST, ONE, TWO, Value(ValueKind.TEXT))
KEY, OLD, NEW = "4b", "4f", "4e"

VECTORS = [
    (
        "M",
        "00" + "00000016b374d848" + "7000" + "00000002" + "00ff",
        LogicalMessage(False, Lsn(0x16B374D848), "p", b"\0\xff"),
    ),
    ("M", "01" + "0000000000000001" + "00" + "00000000", LogicalMessage(True, Lsn(1), "", b"")),
    (
        "R",
        OID
        + "73c3a900"
        + "7400"
        + "64"
        + "0002"
        + "01"
        + "696400"
        + "00000017"
        + "ffffffff"
        + "00"
        + "7600"
        + "00000413"
        + "0000000e",
        Relation(16385, "sé", "t", "d", (Column("id", 23, -1, True), Column("v", 1043, 14, False))),
    ),
    ("R", OID + "00" + "7400" + "66" + "0000", Relation(16385, "", "t", "f", ())),
    ("Y", OID + "7075626c696300" + "6d6f6f6400", Type(16385, "public", "mood")),
    ("Y", OID + "00" + "696e743400", Type(16385, "", "int4")),
    ("I", OID + NEW + ALL_HEX, Insert(16385, ALL)),
    ("I", OID + NEW + "0000", Insert(16385, ())),
    ("U", OID + NEW + ALL_HEX, Update(16385, ALL)),
    ("U", OID + KEY + "0001" + ONE_HEX + NEW + ALL_HEX, Update(16385, ALL, key_tuple=(ONE,))),
    ("U", OID + OLD + "0001" + TWO_HEX + NEW + ALL_HEX, Update(16385, ALL, old_tuple=(TWO,))),
    ("D", OID + KEY + "0002" + ONE_HEX + "6e", Delete(16385, key_tuple=(ONE, NULL))),
    ("D", OID + OLD + ALL_HEX, Delete(16385, old_tuple=ALL)),
    ("T", "00000002" + "00" + OID + "00004002", Truncate((16385, 16386))),
    ("T", "00000001" + "01" + OID, Truncate((16385,), cascade=True)),
    ("T", "00000001" + "02" + OID, Truncate((16385,), restart_identity=True)),
    ("T", "00000000" + "03", Truncate((), cascade=True, restart_identity=True)),
]


@pytest.mark.parametrize(("tag", "rest", "message"), VECTORS)
def test_both_ways(tag, rest, message):
    data = tag.encode() + bytes.fromhex(rest)
    assert decode(data) == message
    assert encode(message) == data


@pytest.mark.parametrize(("tag", "rest", "message"), VECTORS)
def test_both_ways_in_a_stream(tag, rest, message):
    """The xid comes right after the tag; 0 is invalid."""
    data = tag.encode() + bytes.fromhex("000002d5" + rest)
    streamed = dataclasses.replace(message, xid=725)
    assert decode(data, in_stream=True) == streamed
    assert encode(streamed) == data
    with pytest.raises(MalformedMessage, match="invalid transaction ID 0"):
        decode(tag.encode() + bytes.fromhex("00000000" + rest), in_stream=True)
    with pytest.raises(MalformedMessage, match="invalid transaction ID 0"):
        encode(dataclasses.replace(message, xid=0))


@pytest.mark.parametrize(("tag", "rest", "message"), VECTORS)
def test_not_a_byte_less_or_more(tag, rest, message):
    data = tag.encode() + bytes.fromhex(rest)
    for length in range(1, len(data)):
        with pytest.raises(MalformedMessage):
            decode(data[:length])
    with pytest.raises(MalformedMessage, match="1 bytes after the end"):
        decode(data + b"\0")


@pytest.mark.parametrize(
    ("tag", "rest", "reason"),
    [
        ("M", "02" + "0000000000000001" + "00" + "00000000", "unrecognized flags 2"),
        ("M", "00" + "0000000000000001" + "00" + "ffffffff", "expected 4294967295 bytes, 0 remain"),
        ("R", OID + "00" + "7400" + "78" + "0000", "replica identity 'x' is none of d, n, f, i"),
        ("R", OID + "00" + "7400" + "64" + "0001" + "02" + "00" + "00000017" + "ffffffff", "unrecognized flags 2"),
        ("R", OID + "00" + "7400" + "64" + "ffff" + "00" * 20, "65535 items of 10 bytes or more announced"),
        ("R", OID + "ff00" + "7400" + "64" + "0000", "string is not UTF-8"),
        ("R", OID + "00" + "74", "string without a terminating NUL"),
        ("I", OID + KEY + "0001" + ONE_HEX, "expected a tuple marked N, got b'K'"),
        ("I", OID + NEW + "ffff" + "6e" * 10, "65535 items of 1 bytes or more announced, 10 bytes remain"),
        ("I", OID + NEW + "0001" + "78", "unrecognized data representation type 'x'"),
        ("I", OID + NEW + "0001" + "74" + "ffffffff", "expected -1 bytes, 0 remain"),
        ("I", OID + NEW + "0001" + "62" + "7fffffff" + "00", "expected 2147483647 bytes, 1 remain"),
        ("U", OID + "58" + "0001" + ONE_HEX, "expected a tuple marked K or O or N, got b'X'"),
        ("U", OID + KEY + "0001" + ONE_HEX + OLD + "0001" + ONE_HEX, "expected a tuple marked N, got b'O'"),
        ("U", OID + NEW + "0001" + ONE_HEX + KEY + "0001" + ONE_HEX, "bytes after the end of the message"),
        ("D", OID + NEW + "0001" + ONE_HEX, "expected a tuple marked K or O, got b'N'"),
        ("T", "00000001" + "04" + OID, "unrecognized flags 4"),
        ("T", "ffffffff" + "00" + OID, "4294967295 items of 4 bytes or more announced, 4 bytes remain"),
    ],
)
def test_what_is_refused(tag, rest, reason):
    with pytest.raises(MalformedMessage, match=reason):
        decode(tag.encode() + bytes.fromhex(rest))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Update(1, (), key_tuple=(), old_tuple=()), "exactly one"),
        (Delete(1), "exactly one"),
        (Delete(1, key_tuple=(), old_tuple=()), "exactly one"),
        (Insert(1, (Value(ValueKind.NULL, b"x"),)), "a value of kind NULL has no data"),
        (Insert(1, (NULL,) * 65536), "cannot write"),
        (Insert(-1, ()), "cannot write"),
        (Relation(1, "", "t", "x", ()), "replica identity 'x'"),
        (Relation(1, "", "t", "", ()), "replica identity ''"),
        (Relation(1, "", "t\0", "d", ()), "contains a NUL"),
        (Truncate((2**32,)), "cannot write"),
    ],
)
def test_what_would_be_refused_is_not_written(message, reason):
    with pytest.raises(MalformedMessage, match=reason):
        encode(message)


def test_values_are_not_checked_for_their_encoding():
    """Column data is bytes: the value's reader checks that text is UTF-8."""
    data = b"I" + bytes.fromhex(OID + NEW + "0001" + "74" + "00000001" + "ff")
    assert decode(data) == Insert(16385, (Value(ValueKind.TEXT, b"\xff"),))
