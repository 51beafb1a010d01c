"""CopyData's messages both ways, by hand and as recorded, and the quoting of START_REPLICATION."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from pgbridge.protocol.codec.walsender import (
    HEADER_BYTES,
    PrimaryKeepalive,
    StandbyStatusUpdate,
    XLogData,
    decode_copy_data,
    decode_primary_keepalive,
    decode_standby_status_update,
    decode_xlog_data,
    encode_primary_keepalive,
    encode_standby_status_update,
    encode_xlog_data,
    quote_identifier,
    start_replication,
)
from pgbridge.protocol.errors import MalformedMessage, ProtocolError, UnsupportedMessage
from pgbridge.protocol.lsn import Lsn
from tests import strategies
from tests.vectors import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbridge.protocol.codec.walsender import PgoutputOptions

CODECS: dict[type, tuple[Callable[..., object], Callable[[Any], bytes]]] = {
    XLogData: (decode_xlog_data, encode_xlog_data),
    PrimaryKeepalive: (decode_primary_keepalive, encode_primary_keepalive),
    StandbyStatusUpdate: (decode_standby_status_update, encode_standby_status_update),
}

ONE, TWO, THREE = "0000000000000001", "0000000000000002", "0000000200000003"
VECTORS = [
    ("w" + ONE + TWO + "ffffffffffffffff" + "42ff", XLogData(Lsn(1), Lsn(2), -1, b"B\xff")),
    ("w" + THREE + THREE + ONE, XLogData(Lsn.parse("2/3"), Lsn.parse("2/3"), 1, b"")),
    ("k" + THREE + TWO + "01", PrimaryKeepalive(Lsn.parse("2/3"), 2, reply_requested=True)),
    ("k" + ONE + TWO + "00", PrimaryKeepalive(Lsn(1), 2, reply_requested=False)),
    (
        "r" + THREE + TWO + ONE + ONE + "01",
        StandbyStatusUpdate(Lsn.parse("2/3"), Lsn(2), Lsn(1), 1, reply_requested=True),
    ),
    ("r" + THREE + TWO + ONE + ONE + "00", StandbyStatusUpdate(Lsn.parse("2/3"), Lsn(2), Lsn(1), 1)),
]


def unhex(text: str) -> bytes:
    """A message of its tag and the hexadecimal rest."""
    return text[0].encode() + bytes.fromhex(text[1:])


@pytest.mark.parametrize(("text", "message"), VECTORS)
def test_both_ways(text, message):
    decode, encode = CODECS[type(message)]
    assert encode(message) == unhex(text)
    assert decode(unhex(text)) == message
    assert decode(memoryview(unhex(text))) == message


@given(strategies.walsender_messages())
def test_decode_inverts_encode(message):
    decode, encode = CODECS[type(message)]
    assert decode(encode(message)) == message


def test_the_payload_begins_after_the_header():
    message = XLogData(Lsn(1), Lsn(1), 0, b"payload")
    assert encode_xlog_data(message)[HEADER_BYTES:] == b"payload"


@pytest.mark.parametrize("path", load.COPY_DATA_FILES, ids=load.name_of)
def test_recorded_copy_data_both_ways(path):
    """Every message of a real walsender is given back, and the payloads are those recorded one by one."""
    payloads = []
    keepalives = 0
    for data in load.copy_data(path):
        message = decode_copy_data(data)
        assert CODECS[type(message)][1](message) == data
        if isinstance(message, XLogData):
            assert message.wal_start == message.wal_end
            payloads.append(message.payload)
        else:
            assert message.wal_end > 0
            keepalives += 1
    assert payloads == [vector.data for vector in load.vectors(path.with_name("messages_v1.jsonl"))]
    assert keepalives > 0


@pytest.mark.parametrize(("text", "message"), VECTORS)
def test_cut_short(text, message):
    """XLogData may end anywhere after its header, the others nowhere but at their end."""
    decode = CODECS[type(message)][0]
    least = HEADER_BYTES if isinstance(message, XLogData) else len(unhex(text))
    for length in range(least):
        with pytest.raises(MalformedMessage):
            decode(unhex(text)[:length])


@pytest.mark.parametrize("text", ["k" + ONE + TWO + "00" + "00", "r" + ONE * 4 + "00" + "00"])
def test_trailing_bytes(text):
    with pytest.raises(MalformedMessage, match="1 bytes after the end"):
        {"k": decode_primary_keepalive, "r": decode_standby_status_update}[text[0]](unhex(text))


@pytest.mark.parametrize("text", ["k" + ONE + TWO + "02", "r" + ONE * 4 + "ff"])
def test_a_flag_is_0_or_1(text):
    with pytest.raises(MalformedMessage, match="neither 0 nor 1"):
        {"k": decode_primary_keepalive, "r": decode_standby_status_update}[text[0]](unhex(text))


@pytest.mark.parametrize("decode", [decode_xlog_data, decode_primary_keepalive, decode_standby_status_update])
def test_another_tag(decode):
    with pytest.raises(MalformedMessage, match="expected the tag"):
        decode(b"x" + bytes(40))
    with pytest.raises(MalformedMessage, match="expected the tag"):
        decode(b"")


def test_copy_data_of_other_kinds():
    """A status update goes the other way; a walsender never sends one."""
    with pytest.raises(UnsupportedMessage, match=re.escape("tag b'r'")):
        decode_copy_data(unhex("r" + ONE * 4 + "00"))
    with pytest.raises(MalformedMessage, match="an empty message has no tag"):
        decode_copy_data(b"")


@given(st.binary(max_size=60) | st.builds(bytes.__add__, st.sampled_from([b"w", b"k"]), st.binary(max_size=60)))
def test_garbage(data):
    try:
        message = decode_copy_data(data)
    except ProtocolError:
        return
    assert CODECS[type(message)][1](message) == data


def test_start_replication():
    command = start_replication(
        "shop",
        Lsn.parse("16/B374D848"),
        {
            "proto_version": 4,
            "publication_names": ["shop_pub", "other"],
            "binary": True,
            "streaming": "parallel",
            "two_phase": False,
            "origin": "none",
            "messages": True,
        },
    )
    assert command == (
        'START_REPLICATION SLOT "shop" LOGICAL 16/B374D848 ('
        "proto_version '4', publication_names '\"shop_pub\",\"other\"', binary 'true', streaming 'parallel', "
        "two_phase 'false', origin 'none', messages 'true')"
    )


def test_options_that_are_not_given_are_not_sent():
    """An older server refuses an option it does not know, whatever its value."""
    command = start_replication("s", Lsn(0), {"publication_names": ["p"], "proto_version": 1})
    assert command == ("START_REPLICATION SLOT \"s\" LOGICAL 0/0 (proto_version '1', publication_names '\"p\"')")


def names_in(command: str) -> tuple[str, list[str]]:
    """Slot and publications as the server reads them: repl_scanner.l, then SplitIdentifierString."""
    match = re.fullmatch(
        r'START_REPLICATION SLOT "((?:[^"]|"")+)" LOGICAL 0/0 '
        r"\(proto_version '1', publication_names '((?:[^']|'')*)'\)",
        command,
        re.DOTALL,
    )
    assert match is not None
    text = match[2].replace("''", "'")
    names = re.findall(r'"((?:[^"]|"")+)"(?:,|$)', text, re.DOTALL)
    assert sum(len(name) + 3 for name in names) == len(text) + 1
    return match[1].replace('""', '"'), [name.replace('""', '"') for name in names]


@given(strategies.texts(1), st.lists(strategies.texts(1), min_size=1, max_size=4))
def test_any_name_arrives(slot_name, publication_names):
    options: PgoutputOptions = {"proto_version": 1, "publication_names": publication_names}
    assert names_in(start_replication(slot_name, Lsn(0), options)) == (slot_name, publication_names)


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a,b", "a\\b", "', \"x", "Großes €", " "])
def test_awkward_names_arrive(name):
    """Tried against servers too: the publication of messages_v1's recording has most of these characters."""
    options: PgoutputOptions = {"proto_version": 1, "publication_names": [name, name]}
    assert names_in(start_replication(name, Lsn(0), options)) == (name, [name, name])


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_names_that_cannot_be(name):
    with pytest.raises(ValueError, match="invalid name"):
        start_replication(name, Lsn(0), {"proto_version": 1, "publication_names": ["p"]})
    with pytest.raises(ValueError, match="invalid name"):
        start_replication("s", Lsn(0), {"proto_version": 1, "publication_names": [name]})
    with pytest.raises(ValueError, match="invalid name"):
        quote_identifier(name)


def test_no_publication():
    with pytest.raises(ValueError, match="no publication names"):
        start_replication("s", Lsn(0), {"proto_version": 1, "publication_names": []})
