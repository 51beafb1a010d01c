"""A block while it is decoded, and the errors that name a place in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bridge.apply.effects.operations import COMMANDS
from bridge.errors import ApplyContext, ApplyError
from protocol.columns import RowMessages
from protocol.errors import ProtocolError
from protocol.walsender import HEADER_BYTES

if TYPE_CHECKING:
    from bridge.apply.batch.collector import ChangeCollector
    from bridge.apply.batch.decode_block import DecodeBlock
    from protocol.lsn import Lsn


class Decoding:
    """One block while it is decoded: its messages, and the collectors of changes by their target's path.

    Raises:
        ApplyError: One of its messages is not a row message.
    """

    def __init__(self, block: DecodeBlock, collectors: dict[str, ChangeCollector], origin_name: str) -> None:
        self.block = block
        self.collectors = collectors
        self._origin_name = origin_name
        try:
            self.messages = RowMessages(block.rows, skip_bytes=HEADER_BYTES, in_stream=block.in_stream)
        except ProtocolError as error:
            xid, commit_lsn = block.transaction_of(0)
            context = ApplyContext(origin_name, commit_lsn, xid)
            raise ApplyError(str(error), context) from error

    def since(self, rows: np.ndarray, lsn: Lsn) -> np.ndarray:
        """The rows among these whose transactions commit at or after `lsn`."""
        return rows[np.searchsorted(rows, self.block.first_row_from(lsn)) :]

    def failed(
        self,
        message: str,
        row: int,
        *,
        relation: str | None = None,
        column: str | None = None,
        hint: str = "",
    ) -> ApplyError:
        """An error at a row of the block; its context names the transaction."""
        xid, commit_lsn = self.block.transaction_of(row)
        command = COMMANDS[int(self.messages.tags[row])]
        context = ApplyContext(self._origin_name, commit_lsn, xid, relation, command, column)
        return ApplyError(message, context, hint=hint)
