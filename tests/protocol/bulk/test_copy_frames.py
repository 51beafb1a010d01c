"""Messages in a buffer are found where one after another walks to them, whatever their contents look like."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.bulk.copy_frames import copy_frames, row_frames, stream_frames
from protocol.values.value_array import PADDING

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
