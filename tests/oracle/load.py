"""Transactions that go on beside a test, from a thread of their own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from tests.fix_postgres import Publisher


class Load:
    """One transaction after the other, until the end of the `with`.

    Args:
        publisher: Where.
        statements: Called with a connection in a transaction, and the transaction's number, from 1.
        pause_s: Between two of them.
        tolerated: Errors of the server that are meant to come: the transaction is rolled back, and is not counted.

    Attributes:
        transactions: How many there were.
    """

    def __init__(
        self,
        publisher: Publisher,
        statements: Callable[[psycopg.Connection[Any], int], None],
        *,
        pause_s: float,
        tolerated: tuple[type[psycopg.Error], ...] = (),
    ) -> None:
        self._publisher = publisher
        self._statements = statements
        self._pause_s = pause_s
        self._tolerated = tolerated
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.transactions = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._publisher.connect() as connection:
            while not self._stop.is_set():
                try:
                    with connection.transaction():
                        self._statements(connection, self.transactions + 1)
                except self._tolerated:
                    continue
                self.transactions += 1
                self._stop.wait(self._pause_s)
