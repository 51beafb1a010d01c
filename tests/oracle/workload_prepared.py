"""The random workload with prepared transactions: many are open at a time, and others commit between their halves."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal, NamedTuple

from psycopg import sql

from tests.oracle.workload import Emitted, Operation, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.oracle.workload import Key


class Prepared(NamedTuple):
    """A prepared transaction that is open.

    Attributes:
        before: The keys that existed of those it touched: what there is again after ROLLBACK PREPARED.
        after: The same after COMMIT PREPARED.
        locked: All keys it touched: who else touched one would wait for its end.
        messages: Its transactional messages, which it sends at COMMIT PREPARED.
    """

    gid: str
    before: dict[str, list[Key]]
    after: dict[str, list[Key]]
    locked: dict[str, set[Key]]
    messages: list[Emitted]


class PreparedWorkload(Workload):
    """A workload whose `step` also prepares transactions, and ends earlier ones.

    A step may leave some open. No slot is ready to use on the server before they ended, as it waits for them.

    Args:
        conninfo: The publisher's database.
        seed: Decides on everything.
        operations: What transactions are made of.
        max_open: How many may be open at a time; a native subscriber on the same server takes as many again of
            its max_prepared_transactions.
    """

    def __init__(
        self, conninfo: str, seed: int, operations: Sequence[Operation] | None = None, *, max_open: int = 5
    ) -> None:
        super().__init__(conninfo, seed, operations)
        self.open: list[Prepared] = []
        self._max_open = max_open

    def finish_prepared(self) -> None:
        """End all that are open, some by COMMIT PREPARED and some by ROLLBACK PREPARED."""
        while self.open:
            self._finish()

    def prepare(self) -> None:
        """Prepare a transaction; its rows are locked until it ends."""
        keys, n_messages = copy.deepcopy(self._keys), len(self.messages)
        for touched in self._touched.values():
            touched.clear()
        self._connection.execute("BEGIN")
        self._changes()
        gid = self._free_gid()
        self._connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid)))
        locked = copy.deepcopy(self._touched)
        prepared = Prepared(
            gid, _among(locked, keys), _among(locked, self._keys), locked, self._take_messages(n_messages)
        )
        self._keys = {table: [key for key in keys[table] if key not in locked[table]] for table in keys}
        for table, some in locked.items():
            self._locked[table] |= some
        self.open.append(prepared)
        self.counts["prepare"] += 1

    def _transaction(self) -> None:
        action = self.random.random()
        if action < 0.2 and len(self.open) < self._max_open:
            self.prepare()
        elif action > 0.85 and self.open:
            self._finish()
        else:
            super()._transaction()

    def _finish(self) -> None:
        """End one of those that are open, not the oldest first."""
        prepared = self.open.pop(self.random.randrange(len(self.open)))
        outcome: Literal["COMMIT", "ROLLBACK"] = "COMMIT" if self.random.random() < 0.65 else "ROLLBACK"
        self._connection.execute(sql.SQL(outcome + " PREPARED {}").format(sql.Literal(prepared.gid)))
        for table, keys in (prepared.after if outcome == "COMMIT" else prepared.before).items():
            self._locked[table] -= prepared.locked[table]
            self._keys[table] += keys
        if outcome == "COMMIT":
            self.messages += prepared.messages
        self.counts[f"{outcome.lower()} prepared"] += 1

    def _free_gid(self) -> str:
        """Soon used again, as an application's may be; with the database's name, as they are the server's."""
        taken = {prepared.gid for prepared in self.open}
        names = (f"{self._connection.info.dbname}'s {number}" for number in range(len(taken) + 1))
        return next(name for name in names if name not in taken)


def _among(some: dict[str, set[Key]], keys: dict[str, list[Key]]) -> dict[str, list[Key]]:
    """The keys that are in both, in the order of the lists, which is the same in every run."""
    return {table: [key for key in keys[table] if key in some[table]] for table in keys}
