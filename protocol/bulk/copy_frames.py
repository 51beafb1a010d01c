"""CopyData messages that follow each other in a buffer, as a server sends COPY BINARY and a walsender its stream.

Each row of a COPY, and each message of a stream, is a CopyData message: tag, length, content. No Python runs for each
of them: find candidate headers; keep those that start where the previous message ends.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import numpy as np

from protocol.bulk.message_array import MessageArray
from protocol.values.value_array import Bytes, Ints, numbers_at

if TYPE_CHECKING:
    from collections.abc import Callable

COPY_DATA: Final = ord("d")
PREFIX_BYTES: Final = 5
"""The tag, and the length, which counts itself but not the tag."""

_COUNT_BYTES = 2  # the number of columns, with which a row begins
_KINDS: Final = np.isin(np.arange(256), list(b"wk"))  # first bytes of a walsender's messages: XLogData, keepalive
_NONE: Final = np.zeros(0, np.int64)


def copy_frames(
    data: Bytes, end: int, find: Callable[[Bytes, int, int], MessageArray], other: Callable[[int, bytes], None]
) -> tuple[MessageArray, int]:
    """Find all whole CopyData messages at the start of a buffer.

    Args:
        data: The buffer, with PADDING bytes behind `end`.
        end: Number of bytes in the buffer.
        find: `stream_frames` or `row_frames`: finds many messages at once; those it does not find are read one by one.
        other: Called with the tag and the content of each message that is not CopyData.

    Returns:
        The contents of the messages, and the position of the first message that is not whole.
    """
    starts, ends = [_NONE], [_NONE]
    at = 0
    while end - at >= PREFIX_BYTES:
        start, following = at + PREFIX_BYTES, at + 1 + int.from_bytes(data[at + 1 : at + PREFIX_BYTES].tobytes())
        if following > end:
            break
        frames = find(data, at, end)
        if len(frames):
            starts.append(frames.starts)
            ends.append(frames.ends)
            following = int(frames.ends[-1])
        elif data[at] == COPY_DATA:
            starts.append(np.array([start]))
            ends.append(np.array([following]))
        else:
            other(int(data[at]), data[start:following].tobytes())
        at = following
    if len(starts) == 2:
        return MessageArray(data, starts[1], ends[1]), at
    return MessageArray(data, np.concatenate(starts), np.concatenate(ends)), at


def row_frames(data: Bytes, begin: int, end: int, columns: int) -> MessageArray:
    """Find the whole rows that follow each other from a position on.

    Args:
        data: The buffer, with PADDING bytes behind `end`.
        begin: Where the first message may begin.
        end: Number of bytes in the buffer.
        columns: Number of columns of a row. Any other message, the header's or the trailer's, ends the sequence.
    """
    begins = _candidates(data, begin, end - _COUNT_BYTES)
    return _whole(data, begin, end, begins[numbers_at(data, begins, "u2", PREFIX_BYTES) == columns])


def stream_frames(data: Bytes, begin: int, end: int) -> MessageArray:
    """Find the whole messages of a walsender that follow each other from a position on.

    Args:
        data: The buffer, with PADDING bytes behind `end`.
        begin: Where the first message may begin.
        end: Number of bytes in the buffer. Any other message than XLogData and keepalive ends the sequence.
    """
    begins = _candidates(data, begin, end - 1)
    return _whole(data, begin, end, begins[_KINDS[data[begins + PREFIX_BYTES]]])


def _candidates(data: Bytes, begin: int, end: int) -> Ints:
    """Positions that have CopyData's tag and behind it, before `end`, room for a length below 16 MiB.

    Longer messages are left out, so that text, which has no zero bytes, never looks like the beginning of a message. If
    the first one is longer, there are none: a mask over hundreds of megabytes would take as much again.
    """
    if data[begin + 1]:
        return _NONE
    last = max(begin, end - PREFIX_BYTES + 1)
    candidates: Ints = ((data[begin:last] == COPY_DATA) & (data[begin + 1 : last + 1] == 0)).nonzero()[0]
    return begin + candidates


def _whole(data: Bytes, begin: int, end: int, begins: Ints) -> MessageArray:
    """The whole messages from a position on, given candidates for their beginnings."""
    if not len(begins) or begins[0] != begin:
        return MessageArray(data, _NONE, _NONE)
    ends = begins + 1 + numbers_at(data, begins, "u4", 1).astype(np.int64)
    if len(begins) > 1 and not (ends[:-1] == begins[1:]).all():
        chosen = _chain(begins, ends)
        begins, ends = begins[chosen], ends[chosen]
    whole = int(np.searchsorted(ends, end, side="right"))
    return MessageArray(data, begins[:whole] + PREFIX_BYTES, ends[:whole])


def _chain(begins: Ints, ends: Ints) -> Ints:
    """Indices of the candidates that start where the previous message ends, from the first on.

    The others lie within the content of a message.
    """
    following = np.searchsorted(begins, ends)
    direct = np.zeros(len(begins), np.bool_)
    direct[:-1] = ends[:-1] == begins[1:]
    breaks = np.flatnonzero(~direct).tolist()  # among them is the last candidate
    chosen = []
    at = 0
    while True:
        stop = breaks[bisect_left(breaks, at)]
        chosen.append(np.arange(at, stop + 1))
        at = int(following[stop])
        if at == len(begins) or begins[at] != ends[stop]:
            return np.concatenate(chosen)
