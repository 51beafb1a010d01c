"""What a walsender sends of transactions: pgoutput's messages, also of streamed and of prepared ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgbridge.protocol.codec import messages as m, pgoutput
from pgbridge.protocol.codec.walsender import XLogData, encode_xlog_data

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.simulation.server import WalTransaction

_INT8: Final = 20


def relation_ids(tables: Sequence[str]) -> dict[str, int]:
    """The relid of each table."""
    return {table: number for number, table in enumerate(tables, 1)}


class Walsender:
    """One stream: it tells each table's definition before the first row, and again within each streamed transaction."""

    def __init__(self, tables: Sequence[str]) -> None:
        self._relids = relation_ids(tables)
        self._announced: set[str] = set()

    def segments(self, transactions: Iterable[WalTransaction]) -> Iterator[list[bytes]]:
        """The messages of transactions in the order of their ends, in parts between which others may come.

        What was streamed comes in two segments, of which the first one is sent before the transaction that ends before.
        """
        late: list[bytes] = []
        for transaction in transactions:
            if transaction.is_streamed and transaction.kind in {"commit", "prepare"}:
                first, rest = self._streamed(transaction)
                yield _sent(transaction, first)
                yield late
                late = _sent(transaction, rest)
            else:
                yield late
                late = _sent(transaction, self._whole(transaction))
        yield late

    def _whole(self, t: WalTransaction) -> list[m.Message]:
        if t.kind == "commit prepared":
            return [m.CommitPrepared(0, t.commit_lsn, t.end_lsn, 0, t.xid, t.gid)]
        if t.kind == "rollback prepared":
            return [m.RollbackPrepared(0, t.prepare_end_lsn, t.end_lsn, 0, 0, t.xid, t.gid)]
        rows: list[m.Message] = []
        for table, numbers in t.rows.items():
            if table not in self._announced:
                self._announced.add(table)
                rows.append(self._relation(table))
            rows += (self._insert(table, number) for number in numbers)
        if t.kind == "prepare":
            begin = m.BeginPrepare(t.commit_lsn, t.end_lsn, 0, t.xid, t.gid)
            return [begin, *rows, m.Prepare(0, t.commit_lsn, t.end_lsn, 0, t.xid, t.gid)]
        return [m.Begin(t.commit_lsn, 0, t.xid), *rows, m.Commit(0, t.commit_lsn, t.end_lsn, 0)]

    def _streamed(self, t: WalTransaction) -> tuple[list[m.Message], list[m.Message]]:
        """Two segments; the first one ends with rows of a subtransaction, which is rolled back then.

        With it the walsender forgets the definitions that it has told within the transaction. Without rows there is no
        second segment.
        """
        subxid = t.xid + 1
        first: list[m.Message] = [m.StreamStart(t.xid, first_segment=True)]
        second: list[m.Message] = []
        told, again = set[str](), set[str]()
        for table, numbers in t.rows.items():
            for number in numbers:
                rows, known = (first, told) if number % 2 else (second, again)
                if table not in known:
                    known.add(table)
                    rows.append(self._relation(table, t.xid))
                rows.append(self._insert(table, number, t.xid))
        for table in t.rows:
            if table not in told:
                first.append(self._relation(table, subxid))
            first.append(self._insert(table, 500, subxid))
        rest: list[m.Message] = [m.StreamAbort(t.xid, subxid)]
        if second:
            rest += [m.StreamStart(t.xid, first_segment=False), *second, m.StreamStop()]
        if t.kind == "prepare":
            rest.append(m.StreamPrepare(0, t.commit_lsn, t.end_lsn, 0, t.xid, t.gid))
        else:
            rest.append(m.StreamCommit(t.xid, 0, t.commit_lsn, t.end_lsn, 0))
            self._announced |= again
        return [*first, m.StreamStop()], rest

    def _relation(self, table: str, xid: int | None = None) -> m.Relation:
        column = m.Column("n", _INT8, -1, is_key=False)
        return m.Relation(self._relids[table], "public", table, "d", (column,), xid)

    def _insert(self, table: str, number: int, xid: int | None = None) -> m.Insert:
        return m.Insert(self._relids[table], (m.Value(m.ValueKind.TEXT, str(number).encode()),), xid)


def _sent(transaction: WalTransaction, messages: Iterable[m.Message]) -> list[bytes]:
    lsn = transaction.commit_lsn
    return [encode_xlog_data(XLogData(lsn, lsn, 0, pgoutput.encode(message))) for message in messages]
