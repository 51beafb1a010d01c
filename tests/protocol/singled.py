"""Runs of transactions, taken apart."""

from __future__ import annotations

from pgbridge.protocol.bulk.message_array import ChunkedMessages
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Transaction, TransactionRun


def singles(item: Transaction | TransactionRun) -> list[Transaction]:
    """A transaction, or the transactions of a run."""
    if isinstance(item, Transaction):
        return [item]
    return [
        Transaction(
            int(item.xids[i]),
            Lsn(int(item.commit_lsns[i])),
            int(item.commit_times_us[i]),
            Lsn(int(item.end_lsns[i])),
            ChunkedMessages(item.rows.part(*item.first_rows[i : i + 2]).messages()),
        )
        for i in range(len(item))
    ]
