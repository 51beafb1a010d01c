"""CopyData messages that follow each other in a buffer, as a server sends the rows of COPY BINARY: where each lies.

Every row is a message of its own: tag, length, content. That takes no Python for each: a place where a row may begin
is one that looks like it, and it is one when the message before ends there.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from protocol.slices import numbers_at

if TYPE_CHECKING:
    from protocol.slices import Bytes, Ints

COPY_DATA: Final = ord("d")
PREFIX_BYTES: Final = 5
"""The tag, and the length, which counts itself but not the tag."""

_COUNT_BYTES = 2  # of columns, with which a row begins


class Frames(NamedTuple):
    """CopyData messages in a buffer.

    Attributes:
        starts: Of the content of each its first byte's index.
        ends: Of each the index of what follows.
    """

    starts: Ints
    ends: Ints


def row_frames(data: Bytes, begin: int, end: int, columns: int) -> Frames:
    """The rows' messages that follow each other from a place on, as far as they are whole.

    Args:
        data: The buffer, with PADDING bytes behind `end`.
        begin: Where the first message may begin.
        end: How far the buffer is filled.
        columns: How many a row has. Another message, the header's or the trailer's, ends the sequence.
    """
    last = end - PREFIX_BYTES - _COUNT_BYTES
    begins = begin + np.flatnonzero(data[begin : max(begin, last + 1)] == COPY_DATA)
    begins = begins[numbers_at(data, begins, "u2", PREFIX_BYTES) == columns]
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


_NONE: Final = Frames(np.zeros(0, np.int64), np.zeros(0, np.int64))
