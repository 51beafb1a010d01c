"""The catalog's part of `<warehouse>/pgbridge/commits`: the records that are not in that table yet.

A batch is recorded in the transaction that moves the origin, so a record says that the batch is durable, and one that
was undone has none. That a table joins the subscription's batches or leaves them is recorded by triggers (`schema`).
Records are numbered in the order in which they became true; a number is never used twice.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from pgbridge.bridge.catalog import catalog_rows
    from pgbridge.bridge.catalog.database import Transactions


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A record.

    Attributes:
        kind: `batch`: the batch is durable. `joined`: a table follows the stream from then on. `left`: it does not any
            more, because it was removed, or is copied afresh.
        origin: The application id of the batch's commits; None for other kinds.
        start_lsn: The batch's start; of other kinds, the origin's LSN at that moment.
        end_lsn: The batch's end. Of `joined`: the table has exactly what ends at or before it.
        first_commit_us: When the batch's first transaction was committed: microseconds since 2000-01-01 UTC; None if
            that is not known.
        last_commit_us: When its last one was.
        tables: (namespace, name, path) of each table that it may have committed to, or that joined or left.
        recorded_s: When it was recorded, in seconds since 1970.
    """

    number: int
    kind: Literal["batch", "joined", "left"]
    origin: str | None
    start_lsn: Lsn
    end_lsn: Lsn
    first_commit_us: int | None
    last_commit_us: int | None
    transactions: int
    tables: tuple[tuple[str, str, str], ...]
    recorded_s: float


def put(db: sqlite3.Connection, subscription: str, batch: catalog_rows.AppliedBatch, end_lsn: Lsn) -> None:
    """Record a batch, within the transaction that moves the origin; a tablesync worker's is not recorded."""
    if ":" in subscription or not batch.transactions:
        return
    db.execute(
        "INSERT INTO commit_record (subscription, kind, origin, start_lsn, end_lsn, first_commit_us, last_commit_us, "
        "transactions, tables, recorded) VALUES (?, 'batch', ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(subscription, batch.origin, batch.start_lsn, end_lsn),
            *(batch.first_commit_us or None, batch.last_commit_us or None),
            *(batch.transactions, json.dumps(batch.tables), time.time()),
        ),
    )


def pending(catalog: Transactions, subscription: str, most: int = -1) -> Sequence[CommitRecord]:
    """The records that are to be appended, the oldest first; at most so many."""
    rows = catalog.rows(
        "SELECT number, kind, origin, start_lsn, end_lsn, first_commit_us, last_commit_us, transactions, tables, "
        "recorded FROM commit_record WHERE subscription = ? ORDER BY number LIMIT ?",
        subscription,
        most,
    )
    return [
        CommitRecord(
            *(number, kind, origin, Lsn(start), Lsn(end), first_us, last_us, transactions),
            tuple((namespace, name, path) for namespace, name, path in json.loads(tables)),
            recorded_s,
        )
        for number, kind, origin, start, end, first_us, last_us, transactions, tables, recorded_s in rows
    ]


def oldest_s(catalog: Transactions, subscription: str) -> float | None:
    """When the oldest of these records was made, in seconds since 1970; None if there is none."""
    rows = catalog.rows("SELECT min(recorded) FROM commit_record WHERE subscription = ?", subscription)
    return None if rows[0][0] is None else float(rows[0][0])


def join_again(catalog: Transactions, subscription: str) -> None:
    """Record all tables that follow the stream as joined now: the table of commits was lost."""
    with catalog.transaction() as db:
        db.execute(
            "INSERT INTO commit_membership SELECT * FROM commit_membership WHERE subscription = ?", (subscription,)
        )


def leave(catalog: Transactions, subscription: str, tables: Sequence[tuple[str, str, str]]) -> None:
    """Record that tables, each (namespace, name, path), do not follow the stream."""
    with catalog.transaction() as db:
        db.executemany(
            "INSERT INTO commit_record (subscription, kind, start_lsn, end_lsn, tables, recorded) "
            "SELECT subscription, 'left', remote_lsn, remote_lsn, ?2, ?3 FROM origin WHERE subscription = ?1",
            [(subscription, json.dumps([table]), time.time()) for table in tables],
        )


def number_from(catalog: Transactions, number: int) -> None:
    """Have records from now on get higher numbers: the table has them up to this one, and this catalog is new."""
    with catalog.transaction() as db:
        db.execute(
            "INSERT INTO sqlite_sequence SELECT 'commit_record', 0 "
            "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'commit_record')"
        )
        db.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'commit_record'", (number,))


def appended(catalog: Transactions, subscription: str, up_to: int) -> None:
    """Drop the records up to a number: the table has them, and it is flushed."""
    with catalog.transaction() as db:
        db.execute("DELETE FROM commit_record WHERE subscription = ? AND number <= ?", (subscription, up_to))
