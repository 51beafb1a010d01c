"""The targets hold for what servers sent, and see each way of breaking the promise."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fuzz import targets
from fuzz.targets import TARGETS, Broken, framed
from pgbridge.protocol.codec.messages import Begin, Insert, Value, ValueKind
from pgbridge.protocol.codec.pgoutput import encode
from pgbridge.protocol.errors import MalformedMessage
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.types import Kind

BEGIN = b"\0" + encode(Begin(Lsn(1), 2, 3))
ROW = encode(Insert(7, (Value(ValueKind.TEXT, b"x"),)))
TEXT = next(i for i, type_ in enumerate(targets.TYPES) if type_.kind is Kind.TEXT)
KEEPALIVE = b"k" + bytes(17)
COPIED = framed(4, [TEXT], [b"\0\1\0\0\0\1x", b"\xff\xff"])


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("data", [b"", b"\0", b"\1", bytes(100), b"\xff" * 100])
def test_any_bytes_are_taken(name, data):
    TARGETS[name](data)


def raising(error):
    def broken(*_, **__):
        raise error

    return broken


@pytest.mark.parametrize(
    ("target", "data", "broken"),
    [
        ("pgoutput", BEGIN, "decode"),
        ("walsender", KEEPALIVE, "decode_copy_data"),
        ("columns", framed(0, [TEXT], [ROW]), "RowMessages"),
        ("copy", COPIED, "CopyDecoder.decode"),
    ],
)
def test_another_exception_is_seen(monkeypatch, target, data, broken):
    monkeypatch.setattr(f"fuzz.targets.{broken}", raising(IndexError()))
    with pytest.raises(IndexError):
        TARGETS[target](data)


@pytest.mark.parametrize(
    ("target", "data", "broken"),
    [("pgoutput", BEGIN, "encode"), ("walsender", KEEPALIVE, "encode_primary_keepalive")],
)
def test_other_bytes_are_seen(monkeypatch, target, data, broken):
    monkeypatch.setattr(targets, broken, lambda _: b"other")
    with pytest.raises(Broken, match="6f74686572"):
        TARGETS[target](data)


@pytest.mark.parametrize("target", ["columns", "copy"])
def test_an_invalid_table_is_seen(monkeypatch, target):
    """Text that is not UTF-8, in a table."""
    array = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    owner = "RowMessages" if target == "columns" else "CopyDecoder"
    monkeypatch.setattr(f"fuzz.targets.{owner}.decode", lambda *_, **__: pa.table({"c0": array}))
    with pytest.raises(pa.ArrowInvalid):
        TARGETS[target](framed(0, [TEXT], [ROW]))


def test_missing_rows_are_seen(monkeypatch):
    monkeypatch.setattr("fuzz.targets.RowMessages.decode", lambda *_, **__: pa.table({"op": []}))
    with pytest.raises(Broken, match="0 rows of 1 messages"):
        targets.columns(framed(0, [TEXT], [ROW]))


@pytest.mark.parametrize(
    ("decode", "reason"),
    [
        (raising(MalformedMessage("INSERT", 0, "no")), "only the strict codec refuses"),
        (lambda *_, **__: Begin(Lsn(1), 2, 3), "is not a row message"),
        (lambda *_, **__: Insert(7, ()), "another number of columns than 1"),
    ],
)
def test_a_strict_codec_of_another_opinion_is_seen(monkeypatch, decode, reason):
    monkeypatch.setattr(targets, "decode", decode)
    with pytest.raises(Broken, match=reason):
        targets.columns(framed(0, [TEXT], [ROW]))
