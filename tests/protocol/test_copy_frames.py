"""Rows' messages in a buffer are found where one after another walks to them, whatever their contents look like."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.copy_frames import row_frames
from protocol.slices import PADDING

COLUMNS = 3
COUNT = struct.pack(">H", COLUMNS)
LOOKS_LIKE_A_ROW = b"d\0\0\0\x06" + COUNT


def message(content: bytes, tag: bytes = b"d") -> bytes:
    return tag + struct.pack(">I", len(content) + 4) + content


def find(buffer: bytes, begin: int = 0, end: int | None = None) -> list[bytes]:
    """The contents of the frames; behind `end` lies what was there before."""
    data = np.frombuffer(buffer + LOOKS_LIKE_A_ROW * (PADDING // 7 + 1), np.uint8)
    frames = row_frames(data, begin, len(buffer) if end is None else end, COLUMNS)
    return [bytes(data[start:stop]) for start, stop in zip(*frames, strict=True)]


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
