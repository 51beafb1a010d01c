"""The demo's shop, and the load on it."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Final

import psycopg

from bridge.runtime.threads import Closing

SCHEMA: Final = Path(__file__).with_name("shop.sql")
"""The statements that create the shop's tables, first rows and publications, and a transaction of the load."""

_ROLLED_BACK: Final = 0.05  # the share of transactions that end in ROLLBACK
_CATCH_UP_S: Final = 0.25  # a load that is further behind its rate does not catch up


def create(conninfo: str) -> None:
    """Create the shop in an empty database."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(SCHEMA.read_bytes())


class ShopLoad(Closing):
    """Customers, orders and page views, as a stream of transactions; a thread runs them from now on.

    Args:
        conninfo: The shop's database, as `create` left it.
        per_second: How many transactions it runs in a second, at most.

    Attributes:
        committed: Transactions committed.
        rolled_back: Transactions rolled back.
    """

    def __init__(self, conninfo: str, per_second: float) -> None:
        self.committed = 0
        self.rolled_back = 0
        self._pause_s = 1 / per_second
        self._error: Exception | None = None
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shop load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due_s = time.monotonic()
        try:
            while not self._stop.wait(due_s - time.monotonic()):
                undo = random.random() < _ROLLED_BACK
                with self._connection.transaction(force_rollback=undo):
                    self._connection.execute("SELECT step()")
                self.rolled_back += undo
                self.committed += not undo
                due_s = max(due_s + self._pause_s, time.monotonic() - _CATCH_UP_S)
        except Exception as error:  # noqa: BLE001 - raised again by `check`, in the thread that waits
            self._error = error

    def check(self) -> None:
        """Raise the error that ended the thread before `close`."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End after the current transaction, and close the connection."""
        self._stop.set()
        self._thread.join()
        self._connection.close()

    def __str__(self) -> str:
        return f"{self.committed:,} transactions committed, {self.rolled_back:,} rolled back"
