"""Messages are cut into chunks of bounded size, and errors name the place in the message."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from protocol.bulk import decode_chunk
from protocol.bulk.columns import RowMessages
from protocol.bulk.decode_chunk import decode_in_chunks
from protocol.bulk.message_array import MessageArray
from protocol.codec.messages import Column, Insert, Relation, Value, ValueKind
from protocol.codec.pgoutput import encode
from protocol.errors import MalformedMessage, UnrepresentableValue
from protocol.values import numeric
from protocol.values.types import resolve
from protocol.values.value_array import TooLargeError

NUMERICS = Relation(7, "", "t", "d", (Column("n", 1700, -1, False),))
HUNDREDTHS = bytes.fromhex("0001 0014 0000 0000 0001")  # 1 followed by 80 zeros


@given(st.lists(st.binary(max_size=6), max_size=30), st.data(), st.integers(1, 5), st.integers(1, 20))
def test_chunks_are_the_chosen_messages_in_order(messages, data, most_rows, most_bytes):
    """Each once, no more than so many at a time, and more than so many bytes only if it is one message."""
    chosen = np.array(
        data.draw(st.lists(st.integers(0, max(len(messages) - 1, 0)), unique=True, max_size=len(messages))), np.int64
    )
    chosen.sort()
    found: list[bytes] = []

    def decode(chunk, rows):
        assert len(chunk) == len(rows)
        assert chunk.first_row == len(found)
        assert [chunk.name(i) for i in range(len(rows))] == [f"message {row}" for row in rows]
        assert len(rows) <= most_rows
        assert len(rows) == 1 or chunk.ends[-1] - chunk.starts[0] <= most_bytes
        found.extend(chunk.data[a:b].tobytes() for a, b in zip(chunk.starts, chunk.ends, strict=True))
        return len(rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_chunk, "DECODE_CHUNK_ROWS", most_rows)
        patch.setattr(decode_chunk, "DECODE_CHUNK_BYTES", most_bytes)
        counts = decode_in_chunks(MessageArray.of(messages), chosen, lambda i: f"message {i}", decode)
    assert found == [messages[i] for i in chosen]
    assert sum(counts) == len(chosen)


def test_skipped_bytes():
    array = MessageArray.of([b"abX", b"cdYZ"]).without_prefix(2)
    parts = decode_in_chunks(array, np.arange(2), str, lambda s, _: s.data[s.starts].tobytes())
    assert parts == [b"XY"]


def test_chunks_that_are_too_large_are_halved():
    sizes = []

    def decode(chunk, rows):
        sizes.append(len(rows))
        if len(rows) > 2:
            raise TooLargeError
        return rows.tolist()

    parts = decode_in_chunks(MessageArray.of([b"x"] * 7), np.arange(7), str, decode)
    assert [row for part in parts for row in part] == list(range(7))
    assert sizes == [7, 3, 1, 2, 4, 2, 2]


def test_values_that_are_too_large_together(monkeypatch):
    """Long numerics are written in several chunks; one that is too long alone cannot be represented."""
    monkeypatch.setattr(numeric, "_MAX_TEXT_BYTES", 300)
    messages = [encode(Insert(7, (Value(ValueKind.BINARY, HUNDREDTHS),)))] * 10
    table = RowMessages(messages).decode(NUMERICS, [resolve(1700, -1)])
    assert table["new_0"].to_pylist() == ["1" + "0" * 80] * 10
    assert table["new_0"].num_chunks > 1
    monkeypatch.setattr(numeric, "_MAX_TEXT_BYTES", 50)
    with pytest.raises(UnrepresentableValue, match="longest") as caught:
        RowMessages(messages).decode(NUMERICS, [resolve(1700, -1)])
    assert (caught.value.column, caught.value.row) == ("n", 0)


def test_checks_name_the_first_place():
    array = MessageArray.of([b"abc", b"defg"])

    def decode(chunk, _):
        owners, positions = np.array([0, 1, 1]), np.array([1, 4, 5])
        chunk.check(np.array([True, True, True]), owners, positions, "fine")
        with pytest.raises(MalformedMessage, match="malformed b message at offset 1: bad"):
            chunk.check(np.array([True, False, False]), owners, positions, "bad")
        chunk.check_end(np.array([0, 1]), np.array([3, 7]))
        with pytest.raises(MalformedMessage, match="malformed b message at offset 3: bytes after"):
            chunk.check_end(np.array([0, 1]), np.array([3, 6]))

    decode_in_chunks(array, np.arange(2), lambda i: "ab"[i], decode)
