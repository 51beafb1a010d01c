"""CopyData messages that follow each other in a buffer, as a server sends COPY BINARY and a walsender its stream.

Every row, and every message of a stream, is a message of its own: tag, length, content. To find where they lie takes
no Python for each: a place where one may begin is one that looks like it, and it is one when the message before ends
there.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from protocol.values.value_array import numbers_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.values.value_array import Bytes, Ints

COPY_DATA: Final = ord("d")
PREFIX_BYTES: Final = 5
"""The tag, and the length, which counts itself but not the tag."""

_COUNT_BYTES = 2  # of columns, with which a row begins
_KINDS: Final = np.isin(np.arange(256), list(b"wk"))  # with which a walsender's messages begin: XLogData, keepalive


class Frames(NamedTuple):
    """CopyData messages in a buffer.

    Attributes:
        starts: Of the content of each its first byte's index.
        ends: Of each the index of what follows.
    """

    starts: Ints
    ends: Ints


_NONE: Final = Frames(np.zeros(0, np.int64), np.zeros(0, np.int64))


def copy_frames(
    data: Bytes, end: int, find: Callable[[Bytes, int, int], Frames], beside: Callable[[int, bytes], None]
) -> tuple[Frames, int]:
    """All CopyData messages at the start of a buffer, as far as they are whole.

    Args:
        data: The buffer, with PADDING bytes behind `end`.
        end: How far it is filled.
        find: Finds many from a place on, `stream_frames` or `row_frames`; what it does not find is taken one by one.
        beside: Called with the tag and the content of each message that is none.

    Returns:
        Where they lie, and where the first message begins that is not whole.
    """
    found = [_NONE]
    at = 0
    while end - at >= PREFIX_BYTES:
        start, following = at + PREFIX_BYTES, at + 1 + int.from_bytes(data[at + 1 : at + PREFIX_BYTES].tobytes())
        if following > end:
            break
        frames = find(data, at, end)
        if len(frames.starts):
            found.append(frames)
            following = int(frames.ends[-1])
        elif data[at] == COPY_DATA:
            found.append(Frames(np.array([start]), np.array([following])))
        else:
            beside(int(data[at]), data[start:following].tobytes())
        at = following
    starts, ends = (parts[-1] if len(parts) == 2 else np.concatenate(parts) for parts in zip(*found, strict=True))
    return Frames(starts, ends), at


def row_frames(data: Bytes, begin: int, end: int, columns: int) -> Frames:
    """The rows' messages that follow each other from a place on, as far as they are whole.

    Args:
        data: The buffer, with PADDING bytes behind `end`.
        begin: Where the first message may begin.
        end: How far the buffer is filled.
        columns: How many a row has. Another message, the header's or the trailer's, ends the sequence.
    """
    begins = _tags(data, begin, end - _COUNT_BYTES)
    return _whole(data, begin, end, begins[numbers_at(data, begins, "u2", PREFIX_BYTES) == columns])


def stream_frames(data: Bytes, begin: int, end: int) -> Frames:
    """The messages of a walsender that follow each other from a place on, as far as they are whole.

    Args:
        data: The buffer, with PADDING bytes behind `end`.
        begin: Where the first message may begin.
        end: How far the buffer is filled. Another message than XLogData and a keepalive ends the sequence before.
    """
    begins = _tags(data, begin, end - 1)
    return _whole(data, begin, end, begins[_KINDS[data[begins + PREFIX_BYTES]]])


def _tags(data: Bytes, begin: int, end: int) -> Ints:
    """Where there is a tag, and the length's place before the end.

    A message of 16 MiB and more is left out: text, which has no zeros, does not look like any other's beginning.
    """
    last = max(begin, end - PREFIX_BYTES + 1)
    found: Ints = ((data[begin:last] == COPY_DATA) & (data[begin + 1 : last + 1] == 0)).nonzero()[0]
    return begin + found


def _whole(data: Bytes, begin: int, end: int, begins: Ints) -> Frames:
    """The messages from a place on, among those places where one may begin."""
    if not len(begins) or begins[0] != begin:
        return _NONE
    ends = begins + 1 + numbers_at(data, begins, "u4", 1).astype(np.int64)
    if len(begins) > 1 and not (ends[:-1] == begins[1:]).all():
        chosen = _chain(begins, ends)
        begins, ends = begins[chosen], ends[chosen]
    whole = int(np.searchsorted(ends, end, side="right"))
    return Frames(begins[:whole] + PREFIX_BYTES, ends[:whole])


def _chain(begins: Ints, ends: Ints) -> Ints:
    """Which places follow from the first, where some only look like a message, within another one's content."""
    following = np.searchsorted(begins, ends)
    direct = np.zeros(len(begins), np.bool_)
    direct[:-1] = ends[:-1] == begins[1:]
    breaks = np.flatnonzero(~direct).tolist()  # the last place is one
    chosen = []
    at = 0
    while True:
        stop = breaks[bisect_left(breaks, at)]
        chosen.append(np.arange(at, stop + 1))
        at = int(following[stop])
        if at == len(begins) or begins[at] != ends[stop]:
            return np.concatenate(chosen)
