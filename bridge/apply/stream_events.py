"""Log events for what a stream brings beside rows: notices, logical messages, conflicts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.effects.conflicts import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.effects.conflicts import Conflicts
    from pgbridge.protocol.codec.messages import LogicalMessage
    from pgbridge.protocol.lsn import Lsn
    from pgbridge.protocol.stream.transactions import Transaction

_MAX_CONTENT_BYTES = 1000
_PER_MINUTE: Final = 60
"""So many logical messages, and so many notices, are logged in a minute; the others are counted."""


class _Limit:
    """Lets so many events a minute through, and tells how many it did not."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._since_s, self._let, self._held = now_s(), 0, 0

    def lets(self) -> bool:
        """Whether one more is logged."""
        if self._let < _PER_MINUTE:
            self._let += 1
            return True
        self._held += 1
        return False

    def held_back(self) -> int:
        """Once a minute: how many were not logged in it; else 0."""
        if self._now_s() < self._since_s + 60:
            return 0
        held, self._held = self._held, 0
        self._since_s, self._let = self._now_s(), 0
        return held


class StreamEvents:
    """Logs the events of one stream."""

    def __init__(self, log: FilteringBoundLogger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._notices: set[str] = set()
        self._notice_limit, self._message_limit = _Limit(now_s), _Limit(now_s)

    def publisher_notice(self, text: str) -> None:
        """The server sent a notice. Logged once for each first line: the lines after it differ only in an LSN."""
        first = text.partition("\n")[0]
        if held := self._notice_limit.held_back():
            self._log.warning("more notices came than are logged", not_logged=held)
        if first not in self._notices and self._notice_limit.lets():
            self._notices.add(first)
            self._log.warning("the publisher warns", notice=text)

    def logical_messages(self, delivered: Iterable[tuple[Transaction, LogicalMessage]]) -> None:
        """A batch had messages of pg_logical_emit_message."""
        if held := self._message_limit.held_back():
            self._log.info("more logical messages came than are logged", not_logged=held)
        for transaction, message in delivered:
            if not self._message_limit.lets():
                continue
            content = message.content[:_MAX_CONTENT_BYTES].decode(errors="backslashreplace")
            self._log.info(
                "logical message",
                prefix=message.prefix,
                content=content if len(message.content) <= _MAX_CONTENT_BYTES else content + "…",
                content_bytes=len(message.content),
                lsn=str(message.lsn),
                transactional=message.transactional,
                xid=transaction.xid or None,
            )

    def schema_differs(self, relation: str, text: str, remedy: str) -> None:
        """A Delta table does not get a column as the server has it."""
        self._log.warning(text, relation=relation, hint=f"to copy the table afresh, run: {remedy}")

    def toast_lost(self, relation: str, rows: int) -> None:
        """Rows came to match a row filter by an UPDATE, and the stream does not carry their unchanged TOAST values."""
        self._log.warning(
            "an UPDATE made rows match a row filter; their unchanged TOAST values are not in the stream, so are NULL",
            relation=relation,
            rows=rows,
        )

    def conflicts(self, conflicts: Conflicts, finish_lsn: Lsn, table: str | None = None) -> None:
        """A batch had conflicts that did not stop it: one event for each kind, with some of the keys.

        Args:
            table: The Delta table that has the keys; they are not logged then.
        """
        for name, count in conflicts.counts.items():
            examples = conflicts.kept.get(name, ())[:EXAMPLES]
            remote = [conflict.remote for conflict in examples if conflict.remote is not None]
            text = f'conflict detected on relation "{conflicts.relation}": conflict={name}'
            keys = {"keys": [conflict.key for conflict in examples]} | ({"remote_rows": remote} if remote else {})
            more = keys if table is None else {"table": table}
            self._log.warning(text, rows=count, **more, finish_lsn=str(finish_lsn))

    def conflicts_not_written(self, error: BaseException) -> None:
        """Conflicts are not in their Delta table."""
        self._log.warning("conflicts cannot be written to their table", error=str(error).partition("\n")[0])
