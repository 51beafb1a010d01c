"""Finds runs of transactions that hold nothing but rows: Begin, rows, Commit, and again.

`TransactionAssembler` takes one message at a time; here thousands are taken at once, in NumPy. A transaction that has
another form, or is wrong in any field, is left to the assembler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from protocol.codec.walsender import HEADER_BYTES
from protocol.stream.transactions import ROW_TAGS, TransactionRun
from protocol.values.value_array import Bytes, Ints, numbers_at

if TYPE_CHECKING:
    from protocol.bulk.message_array import MessageArray

_BEGIN, _COMMIT = b"BC"
_IS_ROW: Final = np.isin(np.arange(256), list(ROW_TAGS))
# As in `transaction_messages`: tag, final LSN, time, xid; tag, flags, commit LSN, end LSN, time.
_BEGIN_BYTES = HEADER_BYTES + 21
_COMMIT_BYTES = HEADER_BYTES + 26


class RunFinder:
    """Finds the runs in consecutive messages of a stream.

    Args:
        messages: The messages, each in its XLogData and longer than its header.

    Attributes:
        controls: Indices of the control messages: those that are not rows.
    """

    def __init__(self, messages: MessageArray) -> None:
        self._messages = messages
        tags = messages.data[messages.starts + HEADER_BYTES]
        self._is_row = _IS_ROW[tags]
        self.controls: Ints = np.flatnonzero(~self._is_row)
        control_tags: Bytes = tags[self.controls]
        pairs = (control_tags[:-1] == _BEGIN) & (control_tags[1:] == _COMMIT)
        # By control message: it is a Begin and the next one a Commit; no row stands between it and the next one.
        self._starts_pair = np.append(pairs, [False])
        self._adjoins = np.append(np.diff(self.controls) == 1, [False])

    def run_from(self, control: int) -> TransactionRun | None:
        """Return the run that begins with a control message, which must stand outside of a transaction.

        Args:
            control: The message's position in `controls`.

        Returns:
            All transactions up to the first that has another form or is wrong; None if that is the first of all.
        """
        pairs = self._starts_pair[control::2]
        if not pairs[0]:
            return None
        adjoins = self._adjoins[control + 1 :: 2][: len(pairs)]
        goes_on = pairs[1:] & adjoins[: len(pairs) - 1]
        count = len(pairs) if goes_on.all() else int(goes_on.argmin()) + 1
        return self._decode(control, count)

    def _decode(self, control: int, count: int) -> TransactionRun | None:
        """Decode `count` pairs of Begin and Commit, up to the first that is wrong."""
        of_run = self.controls[control : control + 2 * count]
        data, starts = self._messages.data, self._messages.starts[of_run]
        lengths = self._messages.ends[of_run] - starts
        begins, commits = starts[::2] + HEADER_BYTES, starts[1::2] + HEADER_BYTES
        final_lsns = numbers_at(data, begins, "u8", 1)
        commit_lsns = numbers_at(data, commits, "u8", 2)
        right = (lengths[::2] == _BEGIN_BYTES) & (lengths[1::2] == _COMMIT_BYTES)
        right &= (data[commits + 1] == 0) & (final_lsns != 0) & (final_lsns == commit_lsns)
        if not right.all():
            count = int(right.argmin())
            return self._decode(control, count) if count else None
        first, last = int(of_run[0]), int(of_run[-1])
        rows = self._messages.part(first, last).where(self._is_row[first:last]).trimmed()
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
