"""Finds, in messages as they come, runs of transactions that hold nothing but rows: Begin, rows, Commit, and again.

What `TransactionAssembler` does with one message at a time is done here with thousands, in NumPy; what is not of this
form, or not right in every field, is left to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from protocol.transactions import ROW_TAGS, TransactionRun
from protocol.values.value_array import Bytes, Ints, numbers_at
from protocol.walsender import HEADER_BYTES

if TYPE_CHECKING:
    from protocol.message_array import MessageArray

_BEGIN, _COMMIT = b"BC"
_IS_ROW: Final = np.isin(np.arange(256), list(ROW_TAGS))
# As in `boundaries`: tag, final LSN, time, xid; tag, flags, commit LSN, end LSN, time.
_BEGIN_BYTES = HEADER_BYTES + 21
_COMMIT_BYTES = HEADER_BYTES + 26


class Messages:
    """Consecutive messages of a stream, each in its XLogData.

    Args:
        messages: Each longer than XLogData's header.

    Attributes:
        controls: Indices of those that are no rows.
    """

    def __init__(self, messages: MessageArray) -> None:
        self.messages = messages
        tags = messages.data[messages.starts + HEADER_BYTES]
        self._is_row = _IS_ROW[tags]
        self.controls: Ints = np.flatnonzero(~self._is_row)
        self._tags: Bytes = tags[self.controls]
        # A Begin whose Commit is the next control, with no row between the Commit and the control after it.
        pairs = (self._tags[:-1] == _BEGIN) & (self._tags[1:] == _COMMIT)
        self._starts_pair = np.append(pairs, [False])
        self._adjoins = np.append(np.diff(self.controls) == 1, [False])

    def run_from(self, control: int) -> TransactionRun | None:
        """The run that begins with a control message, which must come outside of a transaction.

        Args:
            control: Its place in `controls`.

        Returns:
            All transactions up to the first that is not plain or not right; None where that is this one.
        """
        pairs = self._starts_pair[control::2]
        if not pairs[0]:
            return None
        adjoins = self._adjoins[control + 1 :: 2][: len(pairs)]
        goes_on = pairs[1:] & adjoins[: len(pairs) - 1]
        count = len(pairs) if goes_on.all() else int(goes_on.argmin()) + 1
        return self._decoded(control, count)

    def _decoded(self, control: int, count: int) -> TransactionRun | None:
        of_run = self.controls[control : control + 2 * count]
        data, starts = self.messages.data, self.messages.starts[of_run]
        lengths = self.messages.ends[of_run] - starts
        begins, commits = starts[::2] + HEADER_BYTES, starts[1::2] + HEADER_BYTES
        final_lsns = numbers_at(data, begins, "u8", 1)
        commit_lsns = numbers_at(data, commits, "u8", 2)
        right = (lengths[::2] == _BEGIN_BYTES) & (lengths[1::2] == _COMMIT_BYTES)
        right &= (data[commits + 1] == 0) & (final_lsns != 0) & (final_lsns == commit_lsns)
        if not right.all():
            count = int(right.argmin())
            if not count:
                return None
            return self._decoded(control, count)
        first, last = int(of_run[0]), int(of_run[-1])
        rows = self.messages.part(first, last).where(self._is_row[first:last]).trimmed()
        first_rows = of_run[::2] - first - 2 * np.arange(count)
        return TransactionRun(
            numbers_at(data, begins, "u4", 17),
            commit_lsns,
            numbers_at(data, commits, "u8", 10),
            numbers_at(data, begins, "u8", 9).astype(np.int64),
            rows,
            np.append(first_rows, len(rows)),
            np.cumsum(rows.lengths),
        )
