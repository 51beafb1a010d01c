"""The strict codec as a whole: recorded streams both ways, and what any bytes at all may do to it.

Layouts and rules of single messages are in test_boundaries and test_changes.
"""

from __future__ import annotations

import time
import tracemalloc
from typing import get_args

import pytest
from hypothesis import given, strategies as st

from protocol.codec.messages import (
    Begin,
    Commit,
    CommitPrepared,
    LogicalMessage,
    Message,
    Prepare,
    RollbackPrepared,
    StreamCommit,
    StreamPrepare,
)
from protocol.codec.pgoutput import MESSAGE_TYPES, decode, encode
from protocol.errors import MalformedMessage, ProtocolError, UnsupportedMessage
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
