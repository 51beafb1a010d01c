"""The cursor never reads beyond its bytes, never stays where it is without an error, and mirrors the writer."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from pgbridge.protocol.codec.buffer import Reader, Writer
from pgbridge.protocol.errors import MalformedMessage
from tests import strategies

INTEGERS = {
    "uint8": (0, 2**8 - 1, 1),
    "uint16": (0, 2**16 - 1, 2),
    "uint32": (0, 2**32 - 1, 4),
    "uint64": (0, 2**64 - 1, 8),
    "int32": (-(2**31), 2**31 - 1, 4),
    "int64": (-(2**63), 2**63 - 1, 8),
}


@pytest.mark.parametrize(("name", "limits"), INTEGERS.items())
def test_integers_at_their_limits(name, limits):
    """Big-endian, in exactly their size; one more on either side does not fit."""
    least, most, size = limits
    for value in (least, most, 1):
        writer = Writer("X")
        getattr(writer, name)(value)
        data = writer.getvalue()
        assert data == value.to_bytes(size, "big", signed=least < 0)
        reader = Reader(data, "X")
        assert getattr(reader, name)() == value
        reader.finish()
    for value in (least - 1, most + 1):
        with pytest.raises(MalformedMessage, match="cannot write"):
            getattr(Writer("X"), name)(value)


@pytest.mark.parametrize(("name", "limits"), INTEGERS.items())
def test_integers_cut_short(name, limits):
    size = limits[2]
    for length in range(size):
        reader = Reader(b"\x01" * (3 + length), "X", 3)
        with pytest.raises(MalformedMessage) as caught:
            getattr(reader, name)()
        assert (caught.value.tag, caught.value.offset) == ("X", 3)
        assert caught.value.reason == f"expected {size} bytes, {length} remain"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_reads_any_kind_of_bytes(kind):
    reader = Reader(kind(b"\x05ab\0cd"), "X")
    assert (reader.uint8(), reader.cstring(), reader.take(2)) == (5, "ab", b"cd")
    assert type(reader._data) is bytes
    reader.finish()


def test_bytes_are_not_copied():
    data = b"some message"
    assert Reader(data, "X")._data is data


def test_position():
    reader = Reader(b"abcdef", "X", 1)
    assert (reader.offset, reader.remaining) == (1, 5)
    reader.take(2)
    assert (reader.offset, reader.remaining) == (3, 3)
    with pytest.raises(MalformedMessage, match="at offset 3: 3 bytes after the end of the message"):
        reader.finish()
    reader.take(3)
    reader.finish()


@pytest.mark.parametrize("length", [-1, -(2**31), 4, 2**31 - 1])
def test_take_refuses_what_is_not_there(length):
    reader = Reader(b"abc", "X")
    with pytest.raises(MalformedMessage, match=rf"expected {length} bytes, 3 remain"):
        reader.take(length)
    assert reader.offset == 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "string without a terminating NUL"),
        (b"abc", "string without a terminating NUL"),
        (b"ab\xff\0", "string is not UTF-8: invalid start byte at its byte 2"),
        (b"\xc3\0", "string is not UTF-8: unexpected end of data at its byte 0"),
        (b"\xed\xa0\x80\0", "string is not UTF-8: invalid continuation byte at its byte 0"),
    ],
)
def test_strings_that_are_none(data, reason):
    with pytest.raises(MalformedMessage) as caught:
        Reader(b"xx" + data, "X", 2).cstring()
    assert (caught.value.offset, caught.value.reason) == (2, reason)


@pytest.mark.parametrize(("text", "reason"), [("a\0b", "contains a NUL"), ("\ud800", "is not UTF-8")])
def test_strings_that_cannot_be_written(text, reason):
    with pytest.raises(MalformedMessage, match=reason):
        Writer("X").cstring(text)


def test_counts_are_checked_against_what_remains():
    reader = Reader(b"x" * 10, "X", 2)
    reader.check_count(0, 10)
    reader.check_count(2, 4)
    with pytest.raises(MalformedMessage, match="3 items of 4 bytes or more announced, 8 bytes remain"):
        reader.check_count(3, 4)


@given(strategies.texts(), st.binary(), st.integers(0, 255), st.integers(-(2**63), 2**63 - 1))
def test_reader_inverts_writer(text, data, small, large):
    writer = Writer("X", b"T")
    writer.cstring(text)
    writer.uint32(len(data))
    writer.raw(data)
    writer.pack(struct.Struct(">Bq"), small, large)
    reader = Reader(writer.getvalue(), "X", 1)
    assert reader.cstring() == text
    assert reader.take(reader.uint32()) == data
    assert reader.unpack(struct.Struct(">Bq")) == (small, large)
    reader.finish()


def test_writer_fails_at_its_end():
    writer = Writer("X", b"T")
    writer.uint16(1)
    with pytest.raises(MalformedMessage, match="malformed X message at offset 3: no"):
        writer.fail("no")
