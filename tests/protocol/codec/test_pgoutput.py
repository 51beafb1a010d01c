"""The strict codec as a whole: recorded streams both ways, and what any bytes at all may do to it.

Below them, each message inside transactions against bytes written out by hand from the documentation, and its rules;
those that begin, end and attribute transactions are in test_transaction_messages.
"""

from __future__ import annotations

import dataclasses
import time
import tracemalloc
from typing import get_args

import pytest
from hypothesis import given, strategies as st

from pgbridge.protocol.codec.messages import (
    Begin,
    Column,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamCommit,
    StreamPrepare,
    Truncate,
    Type,
    Update,
    Value,
    ValueKind,
)
from pgbridge.protocol.codec.pgoutput import MESSAGE_TYPES, decode, encode
from pgbridge.protocol.errors import MalformedMessage, ProtocolError, UnsupportedMessage
from pgbridge.protocol.lsn import Lsn
from tests import strategies
from tests.vectors import load


@pytest.mark.parametrize("path", load.FILES, ids=load.name_of)
def test_recorded_messages_both_ways(path):
    """Every byte a server sent is understood as it was when the file was reviewed, and is given back."""
    for vector in load.vectors(path):
        message = decode(vector.data, in_stream=vector.in_stream)
        assert load.shown(message) == vector.decoded
        assert encode(message) == vector.data


@pytest.mark.parametrize("path", load.FILES, ids=load.name_of)
def test_lsns_agree_with_the_stream(path):
    """Ends of transactions and logical messages have XLogData's LSN, and Begin foretells Commit's."""
    begin: Begin | None = None
    ends = 0
    for vector in load.vectors(path):
        match decode(vector.data, in_stream=vector.in_stream):
            case Begin() as message:
                begin = message
            case Commit() as commit:
                assert begin is not None
                assert (commit.commit_lsn, commit.commit_time_us) == (begin.final_lsn, begin.commit_time_us)
                assert vector.wal_start == commit.end_lsn
                ends += 1
            case StreamCommit() | Prepare() | StreamPrepare() | CommitPrepared() as end:
                assert vector.wal_start == end.end_lsn
                ends += 1
            case RollbackPrepared() as end:
                assert vector.wal_start == end.rollback_end_lsn
                ends += 1
            case LogicalMessage(lsn=lsn):
                assert vector.wal_start == lsn
            case _:
                pass
    assert ends > 0


@pytest.mark.parametrize("version", load.VERSIONS)
def test_every_kind_of_message_is_recorded(version):
    """The vectors have every message that the version's pgoutput can send: two_phase came with PostgreSQL 15."""
    tags = {vector.data[0] for path in load.FILES if path.parent.name == version for vector in load.vectors(path)}
    two_phase = set(b"bPKrp") if version == "pg14" else set()
    assert tags == MESSAGE_TYPES.keys() - two_phase


def test_tags():
    """All of logicalproto.h's, under the names of logicalrep_message_type."""
    assert {chr(tag): name for tag, name in MESSAGE_TYPES.items()} == {
        "B": "BEGIN",
        "C": "COMMIT",
        "O": "ORIGIN",
        "I": "INSERT",
        "U": "UPDATE",
        "D": "DELETE",
        "T": "TRUNCATE",
        "R": "RELATION",
        "Y": "TYPE",
        "M": "MESSAGE",
        "b": "BEGIN PREPARE",
        "P": "PREPARE",
        "K": "COMMIT PREPARED",
        "r": "ROLLBACK PREPARED",
        "S": "STREAM START",
        "E": "STREAM STOP",
        "c": "STREAM COMMIT",
        "A": "STREAM ABORT",
        "p": "STREAM PREPARE",
    }
    assert len(get_args(Message)) == len(MESSAGE_TYPES)


@given(strategies.messages())
def test_decode_inverts_encode(message):
    assert decode(encode(message), in_stream=strategies.in_stream(message)) == message


@given(strategies.messages())
def test_a_memoryview_is_read_like_bytes_and_not_kept(message):
    """The receive buffer may be overwritten after decode has returned."""
    buffer = bytearray(encode(message))
    decoded = decode(memoryview(buffer), in_stream=strategies.in_stream(message))
    buffer[:] = bytes(len(buffer))
    assert decoded == message


def decode_or_refuse(data: bytes, *, in_stream: bool) -> None:
    """The codec's promise for any bytes: a message that encodes to just these bytes, or a ProtocolError."""
    try:
        message = decode(data, in_stream=in_stream)
    except ProtocolError:
        return
    assert encode(message) == data


@given(st.binary(max_size=80), st.booleans())
def test_garbage(data, in_stream):
    decode_or_refuse(data, in_stream=in_stream)


@given(st.sampled_from(sorted(MESSAGE_TYPES)), st.binary(max_size=80), st.booleans())
def test_garbage_after_a_tag(tag, data, in_stream):
    decode_or_refuse(bytes([tag]) + data, in_stream=in_stream)


@given(strategies.messages(), st.data(), st.booleans())
def test_truncated(message, data, in_stream):
    encoded = encode(message)
    length = data.draw(st.integers(0, len(encoded) - 1))
    decode_or_refuse(encoded[:length], in_stream=in_stream)


@given(strategies.messages(), st.data(), st.integers(0, 255), st.booleans())
def test_a_byte_changed(message, data, byte, in_stream):
    encoded = bytearray(encode(message))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = byte
    decode_or_refuse(bytes(encoded), in_stream=in_stream)


@given(strategies.messages(), st.binary(min_size=1, max_size=10))
def test_trailing_bytes_are_never_ignored(message, more):
    """Where they are accepted they belong to the message: only Stream Abort has an optional end."""
    decode_or_refuse(encode(message) + more, in_stream=False)
    decode_or_refuse(encode(message) + more, in_stream=True)


def test_recorded_messages_truncated_and_changed():
    """Each recorded message of the newest server at every length, and with each byte inverted."""
    for path in load.FILES:
        if path.parent.name != "pg18":
            continue
        for vector in load.vectors(path):
            data = vector.data[:200]
            for place in range(len(data)):
                decode_or_refuse(data[:place], in_stream=vector.in_stream)
                changed = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
                decode_or_refuse(changed, in_stream=vector.in_stream)


def test_an_empty_message_is_refused():
    with pytest.raises(MalformedMessage, match="an empty message has no tag"):
        decode(b"")


@pytest.mark.parametrize("tag", sorted(set(range(256)) - MESSAGE_TYPES.keys()))
def test_an_unknown_tag_is_unsupported(tag):
    with pytest.raises(UnsupportedMessage, match="has the tag"):
        decode(bytes([tag]) + bytes(30))


@pytest.mark.parametrize(
    "data",
    [
        b"I" + bytes(4) + b"N\xff\xff",
        b"I" + bytes(4) + b"N\0\x01t\x7f\xff\xff\xff",
        b"T\xff\xff\xff\xff\0",
        b"R" + bytes(4) + b"s\0t\0d\xff\xff",
        b"M\0" + bytes(8) + b"p\0\xff\xff\xff\xff",
    ],
)
def test_a_length_that_lies_costs_nothing(data):
    """A false count or length costs neither memory nor time."""
    tracemalloc.start()
    begin = time.perf_counter()
    with pytest.raises(MalformedMessage):
        decode(data)
    seconds = time.perf_counter() - begin
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 100_000
    assert seconds < 0.5


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
