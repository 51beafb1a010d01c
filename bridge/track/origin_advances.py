"""Moves the origins of many subscriptions in few transactions.

Each transaction of the catalog waits for the disk, and only one can run. With hundreds of subscriptions to a server
that writes WAL, all of them advance their origins about once a second, and none of it is urgent. As with PostgreSQL's
commit_delay and commit_siblings, those that come while another one is written share the next transaction.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from protocol.lsn import Lsn

COMMIT_DELAY_S: Final = 0.05
"""How long a transaction waits for others, if the one before had several origins."""


@dataclass(eq=False)
class _Advance:
    """One origin that is to move. `moved` is None until a transaction has tried."""

    name: str
    remote_lsn: Lsn
    moved: bool | None = None


@dataclass(eq=False)
class OriginAdvances:
    """Advances origins; one thread writes for all that wait.

    Attributes:
        transaction: Begins a transaction of the catalog.
        ready_rels: Makes a subscription's tables ready whose copies the origin has passed.
    """

    transaction: Callable[[], AbstractContextManager[sqlite3.Connection]]
    ready_rels: Callable[[sqlite3.Connection, str], None]
    _waiting: list[_Advance] = field(init=False, default_factory=list)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)  # of `_waiting`
    _turn: threading.Lock = field(init=False, default_factory=threading.Lock)
    _siblings: bool = field(init=False, default=False)

    def advance(self, name: str, remote_lsn: Lsn) -> bool:
        """Move an origin; return whether it moved, which is durable then.

        Raises:
            StateError: As from the transaction. Others that waited are not affected: they try by themselves.
        """
        mine = _Advance(name, remote_lsn)
        with self._lock:
            self._waiting.append(mine)
        with self._turn:
            if mine.moved is None:
                self._write(mine)
        assert mine.moved is not None  # noqa: S101 - this thread or one before it has written it
        return mine.moved

    def _write(self, mine: _Advance) -> None:
        if self._siblings:
            time.sleep(COMMIT_DELAY_S)
        with self._lock:
            group, self._waiting = self._waiting, []
        self._siblings = len(group) > 1
        try:
            with self.transaction() as db:
                moved = [self._move(db, one) for one in group]
        except BaseException:
            with self._lock:
                self._waiting = [one for one in group if one is not mine] + self._waiting
            raise
        for one, has_moved in zip(group, moved, strict=True):
            one.moved = has_moved

    def _move(self, db: sqlite3.Connection, one: _Advance) -> bool:
        moved = db.execute(
            "UPDATE origin SET remote_lsn = ?2 WHERE subscription = ?1 AND remote_lsn < ?2 "
            "AND NOT EXISTS (SELECT 1 FROM batch WHERE subscription = ?1)",
            (one.name, one.remote_lsn),
        )
        self.ready_rels(db, one.name)
        return moved.rowcount > 0
