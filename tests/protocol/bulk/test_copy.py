"""COPY BINARY of a real server is read as its text output says; an incomplete copy is refused.

Messages in a buffer are found where one after another walks to them, whatever their contents look like.
"""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st

from pgbridge.protocol.bulk import decode_chunk
from pgbridge.protocol.bulk.copy import (
    CopyDecoder,
    copy_expression,
    copy_frames,
    decode_copy_binary,
    row_frames,
    stream_frames,
)
from pgbridge.protocol.errors import (
    MalformedMessage,
    ProtocolError,
    UnexpectedMessage,
    UnrepresentableValue,
    UnsupportedMessage,
)
from pgbridge.protocol.values.types import resolve
from pgbridge.protocol.values.value_array import PADDING
from tests.protocol import independent
from tests.protocol.sampled import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

INT4, TEXT, DATE = resolve(23, -1), resolve(25, -1), resolve(1082, -1)
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"


def row(*values: bytes | None) -> bytes:
    fields = (struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in values)
    return struct.pack(">h", len(values)) + b"".join(fields)


ONE, TWO = row(b"\0\0\0\1", b"a"), row(b"\0\0\0\2", None)
PYTHON = {"id": [1, 2], "t": ["a", None]}


def decode(messages: Sequence[bytes | bytearray | memoryview], **options: Any) -> pa.Table:
    return decode_copy_binary(messages, [INT4, TEXT], ["id", "t"], **options)


def copied(connection: psycopg.Connection[Any], query: str) -> list[bytes]:
    with connection.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT binary)") as copy:
        return [bytes(message) for message in copy]


@pytest.mark.parametrize("declaration", SAMPLES)
def test_copied_values_are_read_as_the_server_writes_them(samples, declaration):
    """Types that are not read in binary form are sent as text, whatever casts to text they have."""
    sent = samples.send(declaration, SAMPLES[declaration])
    expected = [independent.read(None if text is None else text.decode(), sent.type) for text in sent.texts]
    query = f"SELECT id, {copy_expression('v', sent.type)} FROM sample ORDER BY id"
    table = decode_copy_binary(
        copied(samples.connection, query), [INT4, sent.type], ["id", "v"], unrepresentable="null"
    )
    table.validate(full=True)
    assert table["v"].type == sent.type.arrow
    assert table["id"].to_pylist() == list(range(1, len(expected) + 1))
    assert independent.comparable(table["v"].to_pylist()) == independent.comparable(map(independent.nulled, expected))


def test_where_the_server_puts_header_and_trailer(samples):
    """The header in front of the first row, or of the trailer; each row and the trailer in one message."""
    none, two = (copied(samples.connection, f"SELECT generate_series(1, {n})") for n in (0, 2))
    assert none == [HEADER + TRAILER]
    assert two == [HEADER + row(b"\0\0\0\1"), row(b"\0\0\0\2"), TRAILER]


@pytest.mark.parametrize("name", ["v", "a b", 'quo"te', "ünï", "SELECT"])
def test_any_column_name_is_quoted(samples, name):
    expression = copy_expression(name, TEXT)
    samples.connection.execute("DROP TABLE IF EXISTS named")
    samples.connection.execute(f"CREATE TEMP TABLE named ({expression} text)")
    assert (
        decode_copy_binary(copied(samples.connection, f"SELECT {expression} FROM named"), [TEXT], [name]).num_rows == 0
    )


@pytest.mark.parametrize(
    ("oid", "expression"),
    [
        (23, '"v"'),
        (1007, '"v"'),
        *((oid, 'CASE WHEN "v" IS DISTINCT FROM NULL THEN pg_catalog.concat("v") END') for oid in (600, 1017, 99999)),
    ],
)
def test_expression(oid, expression):
    assert copy_expression("v", resolve(oid, -1)) == expression


@pytest.mark.parametrize(
    "messages",
    [
        [HEADER + ONE, TWO, TRAILER],
        [HEADER, ONE, TWO, TRAILER],
        [HEADER[:-4] + b"\0\0\0\3abc" + ONE, TWO, TRAILER],
        [HEADER[:11] + b"\0\0\0\1" + HEADER[15:] + ONE, TWO, TRAILER],
        [memoryview(HEADER + ONE), bytearray(TWO), TRAILER],
    ],
    ids=["in front", "alone", "extended", "uncritical flag", "other buffers"],
)
def test_forms_of_a_copy(messages):
    assert decode(messages).to_pydict() == PYTHON
    for cut in range(len(messages) + 1):
        decoder = CopyDecoder([INT4, TEXT], ["id", "t"])
        parts = [decoder.decode(messages[:cut]), decoder.decode([]), decoder.decode(messages[cut:])]
        decoder.finish()
        assert pa.concat_tables(parts).to_pydict() == PYTHON


@pytest.mark.parametrize("messages", [[HEADER + TRAILER], [HEADER, TRAILER]])
def test_no_rows(messages):
    table = decode(messages)
    assert table.schema == pa.schema([("id", pa.int32()), ("t", pa.string())])
    assert table.num_rows == 0


def test_a_large_value_is_held_once_beside_its_message():
    """It may have hundreds of megabytes: no mask, no header and no comparison takes as much again."""
    size = 32 << 20
    content = HEADER + row(b"\0\0\0\1", b"a" * size)
    data = np.frombuffer(b"d" + struct.pack(">I", 4 + len(content)) + content + bytes(PADDING), np.uint8)
    tracemalloc.start()
    try:
        rows, end = copy_frames(data, len(data) - PADDING, partial(row_frames, columns=2), lambda *_: None)
        found = CopyDecoder([INT4, TEXT], ["id", "t"]).decode(rows)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (end, len(found)) == (len(data) - PADDING, 1)
    assert len(found["t"][0].as_py()) == size
    assert size < peak_bytes < 1.1 * size


def test_rows_in_several_stretches(monkeypatch):
    monkeypatch.setattr(decode_chunk, "DECODE_CHUNK_ROWS", 7)
    numbers = np.arange(100)
    rows = [row(struct.pack(">i", n), b"x" * n if n % 3 else None) for n in numbers.tolist()]
    table = decode([HEADER, *rows, TRAILER])
    assert table["id"].num_chunks == 15
    assert table["id"].to_pylist() == numbers.tolist()
    assert table["t"].to_pylist() == ["x" * n if n % 3 else None for n in numbers.tolist()]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "it had no header"),
        ([HEADER + ONE], "without a trailer"),
        ([HEADER], "without a trailer"),
        ([ONE, TRAILER], "does not start with the header"),
        ([HEADER[:-1], TRAILER], "does not start with the header"),
        ([HEADER[:-4] + b"\0\0\0\1", TRAILER], "header extension of 1 bytes"),
        ([HEADER[:-4] + b"\xff" * 4, TRAILER], "header extension of -1 bytes"),
        ([HEADER + ONE, TRAILER, TWO, TRAILER], "row of 2 columns"),
        ([HEADER + row(b"\0\0\0\1"), TRAILER], "row of 2 columns"),
        ([HEADER, b"\0", TRAILER], "no number of columns"),
        ([HEADER, b"", TRAILER], "no number of columns"),
        ([HEADER, ONE[:-1], TRAILER], 'offset 10: the value of column "t" exceeds the message'),
        ([HEADER, ONE[:12], TRAILER], 'column "t" exceeds the message'),
        ([HEADER, b"\0\2" + struct.pack(">i", -2) + ONE[6:], TRAILER], 'offset 2: .*column "id" exceeds the message'),
        ([HEADER, ONE + b"x", TRAILER], "bytes after the end"),
        ([HEADER, row(b"\0\0\1", b"a"), TRAILER], 'column "id": int4 of 3 bytes, expected 4'),
    ],
)  # fmt: skip
def test_malformed(messages, reason):
    with pytest.raises(MalformedMessage, match=reason):
        decode(messages)


def test_rows_after_the_trailer():
    decoder = CopyDecoder([INT4, TEXT], ["id", "t"])
    decoder.decode([HEADER + ONE, TRAILER])
    with pytest.raises(UnexpectedMessage, match="the copy has ended"):
        decoder.decode([TWO])


def test_critical_flags():
    """A bit of the upper half announces another format (bit 16: OIDs in front of the columns)."""
    with pytest.raises(UnsupportedMessage, match="0x00010000"):
        decode([HEADER[:11] + b"\0\1\0\0" + HEADER[15:] + ONE, TRAILER])


def test_unrepresentable_value_names_its_row_in_the_call(monkeypatch):
    monkeypatch.setattr(decode_chunk, "DECODE_CHUNK_ROWS", 2)
    day, infinity = row(struct.pack(">i", 1)), row(struct.pack(">i", 2**31 - 1))
    decoder = CopyDecoder([DATE], ["d"])
    decoder.decode([HEADER + day, day])
    with pytest.raises(UnrepresentableValue) as caught:
        decoder.decode([day, day, day, infinity, TRAILER])
    assert (caught.value.column, caught.value.value, caught.value.row) == ("d", "infinity", 3)
    messages = [HEADER + day, infinity, TRAILER]
    table = decode_copy_binary(messages, [DATE], ["d"], unrepresentable="null")
    assert table["d"].null_count == 1


@given(st.data())
def test_broken_copies_raise_protocol_errors(data):
    """Cut, overwritten and made-up bytes never escape as another error."""
    messages = [bytearray(m) for m in (HEADER + ONE, TWO, ONE, TRAILER)]
    for _ in range(data.draw(st.integers(1, 3))):
        message = data.draw(st.sampled_from(messages))
        if message and data.draw(st.booleans()):
            message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
        else:
            del message[data.draw(st.integers(0, len(message))) :]
    with contextlib.suppress(ProtocolError):
        decode(messages).validate(full=True)


COLUMNS = 3
COUNT = struct.pack(">H", COLUMNS)
LOOKS_LIKE_A_ROW = b"d\0\0\0\x06" + COUNT


def message(content: bytes, tag: bytes = b"d") -> bytes:
    return tag + struct.pack(">I", len(content) + 4) + content


def find(buffer: bytes, begin: int = 0, end: int | None = None) -> list[bytes]:
    """The contents of the rows; behind `end` are bytes of an earlier message."""
    data = np.frombuffer(buffer + LOOKS_LIKE_A_ROW * (PADDING // 7 + 1), np.uint8)
    return row_frames(data, begin, len(buffer) if end is None else end, COLUMNS).messages()


def test_rows_one_after_another():
    rows = [COUNT + b"abc", COUNT, COUNT + bytes(300)]
    buffer = b"".join(map(message, rows))
    assert find(buffer) == rows
    assert find(b"xx" + buffer, begin=2) == rows
    assert find(buffer, begin=len(buffer)) == []


@pytest.mark.parametrize("other", [message(b"\xff\xff"), message(COUNT, b"c"), message(b"PGCOPY\n\xff\r\n\0" + COUNT)])
def test_another_message_ends_them(other):
    row = message(COUNT + b"x")
    assert find(row + other + row) == [COUNT + b"x"]
    assert find(other + row) == []


contents = st.lists(
    st.sampled_from([b"d", b"\0", LOOKS_LIKE_A_ROW, message(COUNT + b"abc"), b"dd\0\0\0\x07\0\3", COUNT])
)


@given(st.lists(contents.map(b"".join), max_size=12), st.integers(0, 40))
@example([LOOKS_LIKE_A_ROW, b"", b"d", LOOKS_LIKE_A_ROW * 3], 0)
def test_what_only_looks_like_a_message_is_none(parts, missing):
    rows = [COUNT + part for part in parts]
    buffer = b"".join(map(message, rows))
    end = max(0, len(buffer) - missing)
    whole = []
    at = 0
    for row in rows:
        at += 5 + len(row)
        if at <= end:
            whole.append(row)
    assert find(buffer, end=end) == whole


STREAMED = st.lists(st.sampled_from([b"w", b"k", b"d", b"\0", b"d\0\0\0\x06w", message(b"wabc"), b"dd\0\0\0\x07w"]))


@given(st.lists(STREAMED.map(b"".join), max_size=12), st.lists(st.sampled_from([b"N", b"S"]), max_size=12), st.data())
def test_a_stream_with_other_messages_between(contents, others, data):
    """The walsender's messages are found at once, any other by itself; a message that is not whole is left."""
    places = data.draw(st.lists(st.integers(0, len(contents)), min_size=len(others), max_size=len(others)))
    sent = [(b"d", content) for content in contents]
    for place, tag in zip(places, others, strict=True):
        sent.insert(place, (tag, b"beside"))
    buffer = b"".join(message(content, tag) for tag, content in sent)
    end = max(0, len(buffer) - data.draw(st.integers(0, 40)))
    whole = []
    at = 0
    for tag, content in sent:
        if at + 5 + len(content) > end:
            break
        at += 5 + len(content)
        whole.append((tag, content))
    beside: list[tuple[bytes, bytes]] = []
    padded = np.frombuffer(buffer + LOOKS_LIKE_A_ROW * (PADDING // 7 + 1), np.uint8)
    found, left = copy_frames(padded, end, stream_frames, lambda tag, body: beside.append((bytes([tag]), body)))
    assert found.messages() == [content for tag, content in whole if tag == b"d"]
    assert beside == [(tag, content) for tag, content in whole if tag != b"d"]
    assert left == at


def test_a_stream_is_found_in_one_go():
    """Any other message than a walsender's ends the sequence."""
    contents = [b"w" * 30, b"k" * 18, b"wd\0\0\0\x05w"]
    data = np.frombuffer(b"".join(map(message, contents)) + message(b"?") + bytes(PADDING), np.uint8)
    assert stream_frames(data, 0, len(data) - PADDING).messages() == contents


def test_a_message_that_is_too_large_to_look_like_one():
    """It is found by itself."""
    contents = [b"w1", b"w" * (1 << 24), b"w2"]
    data = np.frombuffer(b"".join(map(message, contents)) + bytes(PADDING), np.uint8)
    found, left = copy_frames(data, len(data) - PADDING, stream_frames, lambda *_: None)
    assert found.lengths.tolist() == [2, 1 << 24, 2]
    assert left == len(data) - PADDING
