"""Each row is read under the definition it was made under, in whatever order transactions end."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings, strategies as st

from pgbridge.protocol.bulk.message_array import ChunkedMessages
from pgbridge.protocol.codec import messages as m
from pgbridge.protocol.codec.pgoutput import decode
from pgbridge.protocol.codec.walsender import HEADER_BYTES
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.assembler import TransactionAssembler
from pgbridge.protocol.stream.transactions import Ending, Transaction
from tests.protocol.made_stream import receive


class Server:
    """pgoutput's bookkeeping of announced definitions (`maybe_send_schema`, `cleanup_rel_sync_cache`)."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.assembler = TransactionAssembler()
        self.ended: list[Transaction] = []
        self.version = dict.fromkeys((1, 2, 3), 0)
        self.sent: set[int] = set()
        self.streamed: dict[int, set[int]] = {}
        self.subxids: dict[int, list[int]] = {}
        self.gids: dict[str, int] = {}
        self.lsn = 0
        self.next_xid = 100

    def send(self, message: m.Message) -> None:
        ended = receive(self.assembler, message)
        if ended is not None:
            self.ended.append(replace(ended, rows=ChunkedMessages(ended.rows.messages()), events=list(ended.events)))

    def new(self, counter: str) -> int:
        setattr(self, counter, getattr(self, counter) + 1)
        value: int = getattr(self, counter)
        return value

    def alter(self) -> None:
        """A relation's definition changes: all that was announced of it is void."""
        relation_id = self.rng.choice(sorted(self.version))
        self.version[relation_id] += 1
        self.sent.discard(relation_id)
        for announced in self.streamed.values():
            announced.discard(relation_id)

    def change(self, xid: int | None = None, top: int | None = None) -> None:
        """A row whose only value is the number of columns of the definition it was made under."""
        relation_id = self.rng.choice(sorted(self.version))
        announced = self.sent if top is None else self.streamed[top]
        columns = self.version[relation_id] + 1
        if relation_id not in announced:
            announced.add(relation_id)
            definition = tuple(m.Column(f"c{i}", 23, -1, is_key=False) for i in range(columns))
            self.send(m.Relation(relation_id, "public", f"t{relation_id}", "d", definition, xid))
        self.send(m.Insert(relation_id, (m.Value(m.ValueKind.NULL),) * columns, xid))

    def whole(self, gid: str | None = None) -> None:
        xid, lsn = self.new("next_xid"), self.new("lsn")
        if gid:
            self.send(m.BeginPrepare(Lsn(lsn), Lsn(lsn), 0, xid, gid))
        else:
            self.send(m.Begin(Lsn(lsn), 0, xid))
        for _ in range(self.rng.randint(0, 4)):
            self.change()
            if self.rng.random() < 0.3:
                self.alter()  # within the transaction
        self.send(m.Prepare(0, Lsn(lsn), Lsn(lsn), 0, xid, gid) if gid else m.Commit(0, Lsn(lsn), Lsn(lsn), 0))
        if gid:
            self.gids[gid] = xid

    def segment(self) -> None:
        if self.streamed and self.rng.random() < 0.7:
            top, first = self.rng.choice(sorted(self.streamed)), False
        else:
            top, first = self.new("next_xid"), True
            self.streamed[top], self.subxids[top] = set(), [top]
        self.send(m.StreamStart(top, first))
        for _ in range(self.rng.randint(0, 3)):
            if self.rng.random() < 0.3:
                self.subxids[top].append(self.new("next_xid"))
            self.change(self.subxids[top][-1], top)
            if self.rng.random() < 0.2:
                self.alter()
        self.send(m.StreamStop())

    def end_streamed(self) -> None:
        if not self.streamed:
            return
        top = self.rng.choice(sorted(self.streamed))
        what = self.rng.choice(("commit", "abort", "prepare", "subabort"))
        lsn = Lsn(self.new("lsn"))
        if what == "subabort":
            if len(self.subxids[top]) > 1:  # the last one: those before it are its parents
                self.send(m.StreamAbort(top, self.subxids[top].pop()))
                self.streamed[top].clear()
            return
        announced = self.streamed.pop(top)
        if what == "commit":
            self.send(m.StreamCommit(top, 0, lsn, lsn, 0))
            self.sent |= announced
        elif what == "abort":
            self.send(m.StreamAbort(top, top))
        else:
            gid = f"g{self.new('next_xid')}"
            self.send(m.StreamPrepare(0, lsn, lsn, 0, top, gid))
            self.gids[gid] = top

    def end_prepared(self) -> None:
        if self.gids:
            gid = self.rng.choice(sorted(self.gids))
            xid, lsn = self.gids.pop(gid), Lsn(self.new("lsn"))
            if self.rng.random() < 0.7:
                self.send(m.CommitPrepared(0, lsn, lsn, 0, xid, gid))
            else:
                self.send(m.RollbackPrepared(0, lsn, lsn, 0, 0, xid, gid))

    def step(self) -> None:
        self.rng.choice(
            (
                self.alter,
                self.whole,
                lambda: self.whole(f"g{self.new('next_xid')}"),
                self.segment,
                self.segment,
                self.end_streamed,
                self.end_prepared,
            )
        )()


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32))
def test_definitions_reach_the_transactions_in_the_order_of_their_ends(seed):
    """Each row is read under the definition that the server made it under.

    Transactions leave in another order than their changes came: with segments in turn, rolled back subtransactions,
    prepared ones that end much later.
    """
    server = Server(random.Random(seed))
    for _ in range(40):
        server.step()
    known: dict[int, m.Relation] = {}
    for transaction in server.ended:
        if transaction.ending is not Ending.COMMIT:
            continue
        known |= {relation.relation_id: relation for relation in transaction.relations}
        for position, row in enumerate(transaction.rows.messages()):
            for event in (event for before, event in transaction.events if before == position):
                if isinstance(event, m.Relation) and event.xid not in transaction.aborted:
                    known[event.relation_id] = event
            insert = decode(row[HEADER_BYTES:], in_stream=transaction.in_stream)
            assert isinstance(insert, m.Insert)
            if insert.xid not in transaction.aborted:
                assert len(known[insert.relation_id].columns) == len(insert.new_tuple)
