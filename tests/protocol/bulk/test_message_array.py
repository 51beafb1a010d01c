"""Messages are read from their buffers as they are, whatever lies between them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, strategies as st

from pgbridge.protocol.bulk.message_array import ChunkedMessages, MessageArray
from pgbridge.protocol.values.value_array import PADDING

MESSAGES = st.lists(st.binary(max_size=5), max_size=6)


def spread(messages: list[bytes], before: int = 0, between: int = 3, behind: int = 0) -> MessageArray:
    """Messages with something else around them, as in the buffer of a socket."""
    data = b"x" * before
    places = []
    for message in messages:
        data += b"x" * between
        places.append((len(data), len(data) + len(message)))
        data += message
    starts, ends = np.array(places, np.int64).reshape(-1, 2).T
    return MessageArray(np.frombuffer(data + b"x" * (behind + PADDING), np.uint8), starts, ends)


@given(MESSAGES, st.data())
def test_a_part_and_a_choice(messages, data):
    array = spread(messages)
    begin, end = sorted(data.draw(st.tuples(st.integers(0, 7), st.integers(0, 7))))
    which = data.draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages)))
    assert array.part(begin, end).messages() == messages[begin:end]
    assert array.part(begin).messages() == messages[begin:]
    chosen = [message for message, wanted in zip(messages, which, strict=True) if wanted]
    assert array.where(np.array(which, np.bool_)).messages() == chosen
    assert [array[i] for i in range(len(array))] == messages
    assert (len(array), array.size_bytes) == (len(messages), sum(map(len, messages)))
    assert array.lengths.tolist() == [len(message) for message in messages]


@given(st.lists(MESSAGES, max_size=4), st.integers(0, 4))
def test_concatenated(parts, between):
    array = MessageArray.concatenated([spread(part, between=between) for part in parts])
    assert array.messages() == [message for part in parts for message in part]
    assert not len(array) or len(array.data) >= array.ends[-1] + PADDING


def test_one_part_is_not_copied():
    one = spread([b"a", b"b"])
    assert MessageArray.concatenated([MessageArray.of(), one]) is one


def test_a_prefix_is_left_out():
    """A message shorter than the prefix gets a negative length."""
    array = spread([b"abcd", b"a"]).without_prefix(2)
    assert array[0] == b"cd"
    assert array.lengths.tolist() == [2, -1]


def test_a_few_messages_do_not_keep_a_large_buffer():
    few = spread([b"abc", b"de"], before=100, behind=1000)
    trimmed = few.trimmed()
    assert trimmed.messages() == [b"abc", b"de"]
    assert trimmed.data.base is None
    assert len(trimmed.data) < 100
    none = few.part(0, 0).trimmed()
    assert (len(none), len(none.data)) == (0, PADDING)
    most = spread([bytes(1000)], behind=500)
    assert most.trimmed() is most


@given(st.lists(MESSAGES, max_size=5), st.data())
def test_rows_are_what_they_were_extended_by(parts, data):
    """Whatever part of them is asked for."""
    rows = ChunkedMessages(parts[0] if parts else ())
    for part in parts[1:]:
        rows.extend(spread(part))
    messages = [message for part in parts for message in part]
    cuts = data.draw(st.lists(st.integers(0, len(messages)), max_size=3))
    found = [rows.part(begin, end).messages() for begin, end in pairwise([0, *sorted(cuts), len(messages)])]
    assert [message for part in found for message in part] == messages
    assert (len(rows), rows.size_bytes) == (len(messages), sum(map(len, messages)))
    assert rows.memory_bytes >= 60 * len(messages) + 600 * sum(map(bool, parts)) + rows.size_bytes
    assert rows == ChunkedMessages(messages)
    assert (rows == ChunkedMessages([*messages, b""])) is False
    assert repr(rows) == f"ChunkedMessages({messages})"
    rows.clear()
    assert (len(rows), rows.size_bytes, rows.messages()) == (0, 0, [])
