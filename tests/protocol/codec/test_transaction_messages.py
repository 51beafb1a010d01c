"""Each boundary message against bytes written out by hand from the documentation, both ways, and its rules."""

from __future__ import annotations

import pytest

from pgbridge.protocol.codec.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Origin,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
)
from pgbridge.protocol.codec.pgoutput import decode, encode
from pgbridge.protocol.errors import MalformedMessage
from pgbridge.protocol.lsn import Lsn

LSN = Lsn.parse("16/B374D848")
END = Lsn.parse("16/B374D890")
LSN_HEX = "00000016b374d848"
END_HEX = "00000016b374d890"
TIME = "0002b0ec8515f340"  # 2024-01-02 03:04:05 UTC
TIME_US = 757479845000000
TIME_BEFORE_2000 = "ffffffffffffffff"
XID = "000002d5"  # 725

VECTORS = [
    ("B" + LSN_HEX + TIME + XID, Begin(LSN, TIME_US, 725)),
    ("B" + LSN_HEX + TIME_BEFORE_2000 + "ffffffff", Begin(LSN, -1, 2**32 - 1)),
    ("C" + "00" + LSN_HEX + END_HEX + TIME, Commit(0, LSN, END, TIME_US)),
    ("O" + LSN_HEX + "6f7269c3a900", Origin(LSN, "orié")),
    ("O" + "0000000000000000" + "00", Origin(Lsn(0), "")),
    ("S" + XID + "01", StreamStart(725, first_segment=True)),
    ("S" + XID + "00", StreamStart(725, first_segment=False)),
    ("E", StreamStop()),
    ("c" + XID + "00" + LSN_HEX + END_HEX + TIME, StreamCommit(725, 0, LSN, END, TIME_US)),
    ("A" + XID + "000002d6", StreamAbort(725, 726)),
    ("A" + XID + "000002d6" + LSN_HEX + TIME, StreamAbort(725, 726, LSN, TIME_US)),
    ("A" + XID + XID + "0000000000000000" + TIME, StreamAbort(725, 725, Lsn(0), TIME_US)),
    ("b" + LSN_HEX + END_HEX + TIME + XID + "673100", BeginPrepare(LSN, END, TIME_US, 725, "g1")),
    ("P" + "00" + LSN_HEX + END_HEX + TIME + XID + "673100", Prepare(0, LSN, END, TIME_US, 725, "g1")),
    ("K" + "00" + LSN_HEX + END_HEX + TIME + XID + "673100", CommitPrepared(0, LSN, END, TIME_US, 725, "g1")),
    (
        "r" + "00" + LSN_HEX + END_HEX + TIME + TIME_BEFORE_2000 + XID + "673100",
        RollbackPrepared(0, LSN, END, TIME_US, -1, 725, "g1"),
    ),
    ("p" + "00" + LSN_HEX + END_HEX + TIME + XID + "673100", StreamPrepare(0, LSN, END, TIME_US, 725, "g1")),
]


def unhex(text: str) -> bytes:
    """A message of its tag and the hexadecimal rest."""
    return text[0].encode() + bytes.fromhex(text[1:])


@pytest.mark.parametrize(("text", "message"), VECTORS)
@pytest.mark.parametrize("in_stream", [False, True])
def test_both_ways(text, message, in_stream):
    """None of them carries the xid of a streamed change, so in_stream makes no difference."""
    assert decode(unhex(text), in_stream=in_stream) == message
    assert encode(message) == unhex(text)


@pytest.mark.parametrize(("text", "message"), VECTORS)
def test_not_a_byte_less_or_more(text, message):
    for length in range(1, len(unhex(text))):
        # A Stream Abort without its last 16 bytes is one, of protocols 2 and 3.
        if not (text[0] == "A" and length == 9):
            with pytest.raises(MalformedMessage):
                decode(unhex(text)[:length])
    with pytest.raises(MalformedMessage):
        decode(unhex(text) + b"\0")


ZERO = "0000000000000000"
NOT_SET = [
    ("B" + ZERO + TIME + XID, "final_lsn not set"),
    ("b" + ZERO + END_HEX + TIME + XID + "00", "prepare_lsn not set"),
    ("b" + LSN_HEX + ZERO + TIME + XID + "00", "end_lsn not set"),
    ("P" + "00" + ZERO + END_HEX + TIME + XID + "00", "prepare_lsn not set"),
    ("P" + "00" + LSN_HEX + ZERO + TIME + XID + "00", "end_lsn not set"),
    ("p" + "00" + ZERO + END_HEX + TIME + XID + "00", "prepare_lsn not set"),
    ("p" + "00" + LSN_HEX + ZERO + TIME + XID + "00", "end_lsn not set"),
    ("K" + "00" + ZERO + END_HEX + TIME + XID + "00", "commit_lsn not set"),
    ("K" + "00" + LSN_HEX + ZERO + TIME + XID + "00", "end_lsn not set"),
    ("r" + "00" + ZERO + END_HEX + TIME + TIME + XID + "00", "prepare_end_lsn not set"),
    ("r" + "00" + LSN_HEX + ZERO + TIME + TIME + XID + "00", "rollback_end_lsn not set"),
    ("P" + "00" + LSN_HEX + END_HEX + TIME + "00000000" + "00", "invalid transaction ID 0"),
    ("p" + "00" + LSN_HEX + END_HEX + TIME + "00000000" + "00", "invalid transaction ID 0"),
    ("S" + "00000000" + "01", "invalid transaction ID 0"),
]
FLAGS = [
    ("C" + "01" + LSN_HEX + END_HEX + TIME, "unrecognized flags 1"),
    ("c" + XID + "80" + LSN_HEX + END_HEX + TIME, "unrecognized flags 128"),
    ("P" + "02" + LSN_HEX + END_HEX + TIME + XID + "00", "unrecognized flags 2"),
    ("p" + "ff" + LSN_HEX + END_HEX + TIME + XID + "00", "unrecognized flags 255"),
    ("K" + "01" + LSN_HEX + END_HEX + TIME + XID + "00", "unrecognized flags 1"),
    ("r" + "01" + LSN_HEX + END_HEX + TIME + TIME + XID + "00", "unrecognized flags 1"),
    ("S" + XID + "02", "unrecognized flags 2"),
]


@pytest.mark.parametrize(("text", "reason"), [*NOT_SET, *FLAGS])
def test_what_proto_c_refuses(text, reason):
    with pytest.raises(MalformedMessage, match=reason):
        decode(unhex(text))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Begin(Lsn(0), 0, 1), "final_lsn not set"),
        (Begin(LSN, 2**63, 1), "cannot write"),
        (Begin(LSN, 0, -1), "cannot write"),
        (Commit(1, LSN, END, 0), "unrecognized flags 1"),
        (StreamStart(0, first_segment=True), "invalid transaction ID 0"),
        (StreamCommit(1, 1, LSN, END, 0), "unrecognized flags 1"),
        (StreamAbort(1, 1, abort_lsn=LSN), "cannot write"),
        (StreamAbort(1, 1, abort_time_us=0), "cannot write"),
        (BeginPrepare(Lsn(0), END, 0, 1, "g"), "prepare_lsn not set"),
        (BeginPrepare(LSN, Lsn(0), 0, 1, "g"), "end_lsn not set"),
        (Prepare(1, LSN, END, 0, 1, "g"), "unrecognized flags 1"),
        (Prepare(0, LSN, END, 0, 0, "g"), "invalid transaction ID 0"),
        (Prepare(0, LSN, END, 0, 1, "g\0"), "contains a NUL"),
        (CommitPrepared(0, Lsn(0), END, 0, 1, "g"), "commit_lsn not set"),
        (RollbackPrepared(0, LSN, Lsn(0), 0, 0, 1, "g"), "rollback_end_lsn not set"),
        (StreamPrepare(0, LSN, Lsn(0), 0, 1, "g"), "end_lsn not set"),
    ],
)
def test_what_would_be_refused_is_not_written(message, reason):
    with pytest.raises(MalformedMessage, match=reason):
        encode(message)


@pytest.mark.parametrize("text", ["C" + "00" + ZERO + ZERO + TIME, "B" + LSN_HEX + TIME + "00000000"])
def test_what_proto_c_lets_pass_is_not_refused(text):
    """It checks no LSN of Commit and no xid of Begin."""
    assert encode(decode(unhex(text))) == unhex(text)


def test_the_error_names_the_message_and_the_place():
    with pytest.raises(MalformedMessage) as caught:
        decode(unhex("B" + ZERO + TIME + XID))
    assert str(caught.value) == "malformed BEGIN message at offset 1: final_lsn not set"
    with pytest.raises(MalformedMessage) as caught:
        decode(b"B" + bytes(30))
    assert str(caught.value) == "malformed BEGIN message at offset 21: expected 21 bytes, the message has 31"
