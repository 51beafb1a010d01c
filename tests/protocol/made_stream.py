"""A message of each class, and assemblers that are brought to a state by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec import messages as m
from pgbridge.protocol.codec.pgoutput import decode, encode
from pgbridge.protocol.codec.walsender import XLogData, encode_xlog_data
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.assembler import State, TransactionAssembler

if TYPE_CHECKING:
    from pgbridge.protocol.stream.transactions import Transaction

BEGIN = m.Begin(Lsn(0x200), 7, 725)
COMMIT = m.Commit(0, Lsn(0x200), Lsn(0x230), 7)
RELATION = m.Relation(16384, "public", "t", "d", (m.Column("id", 23, -1, is_key=True),))
ROW = b"I a row, as received"

EXAMPLES: dict[type, m.Message] = {
    type(message): message
    for message in (
        BEGIN,
        COMMIT,
        m.Origin(Lsn(1), "elsewhere"),
        RELATION,
        m.Type(16390, "public", "mood"),
        m.Insert(16384, ()),
        m.Update(16384, ()),
        m.Delete(16384, key_tuple=()),
        m.Truncate((16384,)),
        m.LogicalMessage(transactional=False, lsn=Lsn(5), prefix="p", content=b"c"),
        m.StreamStart(725, first_segment=True),
        m.StreamStop(),
        m.StreamCommit(725, 0, Lsn(0x200), Lsn(0x230), 7),
        m.StreamAbort(725, 725),
        m.BeginPrepare(Lsn(0x200), Lsn(0x230), 7, 725, "g"),
        m.Prepare(0, Lsn(0x200), Lsn(0x230), 7, 725, "g"),
        m.CommitPrepared(0, Lsn(0x200), Lsn(0x230), 7, 725, "g"),
        m.RollbackPrepared(0, Lsn(0x200), Lsn(0x230), 7, 7, 725, "g"),
        m.StreamPrepare(0, Lsn(0x200), Lsn(0x230), 7, 725, "g"),
    )
}
"""One message of each class."""

LEADS_TO = {
    State.IDLE: (),
    State.IN_TRANSACTION: (BEGIN,),
    State.IN_PREPARED: (EXAMPLES[m.BeginPrepare],),
    State.IN_STREAM: (EXAMPLES[m.StreamStart],),
}


def assembler_in(state: State, *before: m.Message) -> TransactionAssembler:
    """A new assembler, brought to a state."""
    assembler = TransactionAssembler()
    for message in (*before, *LEADS_TO[state]):
        assembler.control(message)
    assert assembler.state is state
    return assembler


def wrapped(message: m.Message) -> bytes:
    """A message as it comes: in XLogData."""
    return encode_xlog_data(XLogData(Lsn(0), Lsn(0), 0, encode(message)))


def receive(assembler: TransactionAssembler, message: m.Message) -> Transaction | None:
    """Take a message as the receive loop does."""
    in_stream = assembler.state is State.IN_STREAM
    if isinstance(message, m.Insert | m.Update | m.Delete):
        assembler.rows().extend(MessageArray.of([wrapped(message)]))
        return None
    return assembler.control(decode(encode(message), in_stream=in_stream))
