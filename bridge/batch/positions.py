"""Where each change of a block is in the stream: the columns of `bridge.batch.change_schema.POSITION`.

No Python runs per row. They are made only for targets that keep every change, and for the data source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bridge.batch.change_schema import POSITION
from protocol.codec.messages import Truncate
from protocol.lsn import POSTGRES_EPOCH_US

if TYPE_CHECKING:
    from bridge.batch.decode_block import DecodeBlock
    from protocol.values.value_array import Bools, Ints


@dataclass(eq=False)
class Ordinals:
    """Counts the changes of the transaction that goes on in the next block; one for each batch."""

    _commit_lsn: int = -1
    _count: int = 0

    def begin(self, commit_lsn: int) -> int:
        """How many changes of a transaction were in earlier blocks."""
        return self._count if commit_lsn == self._commit_lsn else 0

    def end(self, commit_lsn: int, count: int) -> None:
        """A block has ended with a transaction that has so many changes up to here."""
        self._commit_lsn, self._count = commit_lsn, count


class BlockPositions:
    """The positions of a block's changes.

    Args:
        aborted: Which rows are of rolled back subtransactions, and do not count; None for none.
        ordinals: What earlier blocks have counted; it is moved on.
    """

    def __init__(self, block: DecodeBlock, aborted: Bools | None, ordinals: Ordinals) -> None:
        lengths = np.diff(block.first_rows)
        self._transactions = np.repeat(np.arange(len(lengths)), lengths)
        self._lsns = block.commit_lsns.astype(np.int64)
        self._xids = np.asarray(block.xids, np.int64)
        self._times_us, self._origins = _of_transactions(block)
        counted = np.ones(len(block.rows) + 1, np.int64)
        if aborted is not None:
            counted[:-1] -= aborted
        before = np.cumsum(counted) - counted  # the rows before each, and before the end
        self._first = before[block.first_rows[:-1]]
        self._ordinals = before.copy()
        self._ordinals[:-1] -= self._first[self._transactions]
        self._truncates: dict[int, tuple[int, int]] = {}  # transaction and first ordinal, by the number of the event
        carried = ordinals.begin(int(self._lsns[0])) if len(lengths) else 0
        shifts = np.zeros(len(lengths), np.int64)
        if carried:
            shifts[0] = carried
            self._ordinals[: block.first_rows[1]] += carried
        for event, (position, transaction, message) in enumerate(block.events):
            if isinstance(message, Truncate):
                number = int(np.searchsorted(self._lsns, transaction.commit_lsn))
                self._truncates[event] = number, int(before[position] - self._first[number] + shifts[number])
                shifts[number] += len(message.relation_ids)
                self._ordinals[position : block.first_rows[number + 1]] += len(message.relation_ids)
        if len(lengths):
            ordinals.end(int(self._lsns[-1]), int(before[-1] - self._first[-1] + shifts[-1]))

    def of_rows(self, rows: Ints) -> dict[str, pa.Array]:
        """The columns of row messages, by name."""
        return self._columns(self._transactions[rows], self._ordinals[rows])

    def of_truncate(self, event: int, number: int) -> dict[str, pa.Array]:
        """The columns, of one row each, of the `number`-th table that a TRUNCATE empties.

        Args:
            event: The number of the TRUNCATE among the block's events.
            number: Which of its tables, from 0.
        """
        transaction, first = self._truncates[event]
        return self._columns(np.array([transaction]), np.array([first + number]))

    def _columns(self, transactions: Ints, ordinals: Ints) -> dict[str, pa.Array]:
        values = (
            pa.array(self._lsns[transactions]),
            pa.array(ordinals),
            pa.array(self._xids[transactions]),
            pa.array(self._times_us[transactions]).cast(pa.timestamp("us", "UTC")),
            pa.nulls(len(transactions), pa.string())
            if self._origins is None
            else self._origins.take(pa.array(transactions)),
        )
        return {name: array for (name, _), array in zip(POSITION, values, strict=True)}


def _of_transactions(block: DecodeBlock) -> tuple[Ints, pa.Array | None]:
    """Each transaction's commit time, in microseconds since 1970; and its origin, None if none has one."""
    times: list[np.ndarray] = []
    origins: list[str | None] = []
    for item in block.items:
        times.append(item.commit_times_us)
        origins += [item.origin_name] * len(item)
    named = pa.array(origins, pa.string()) if any(origins) else None
    return np.concatenate(times).astype(np.int64) + POSTGRES_EPOCH_US, named
