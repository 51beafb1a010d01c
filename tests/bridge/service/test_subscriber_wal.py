"""An hour of a busy server's WAL in seconds: what is not for the subscription is confirmed, and the server removes it.

The server has a small max_wal_size and checkpoints all the time, as a busy one has in an hour. A walsender that is
never told to go on would keep all of it.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.protocol.lsn import Lsn
from tests.bridge.subscribed import end, running, wait_until
from tests.fix_bridge import Pipeline, WithoutCommitLog
from tests.fix_postgres import TEST_SETTINGS, Publisher, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

LOAD_BYTES = 208 << 20
"""WAL for each case: 13 segments, and more than 1 GiB with all of them."""

STEP_BYTES = 4 << 20
STEP_S = 0.04
"""Some 60 MB/s: a busy hour has less in a minute."""

BOUND_BYTES = 96 << 20
"""Six segments, for a machine that does other things as well; half of it is usual. A large transaction is a third of
it, because its WAL is needed until it ends."""

SOON_S = 5.0
NEARLY_NOTHING_BYTES = 256 << 10
"""Checkpoints and snapshots of running transactions go on writing."""

ROW_BYTES = 6000


class Case(NamedTuple):
    """What is written, and which subscription does not want it.

    Attributes:
        load: One step: SQL, with `{rows}` for how many rows it writes.
        setup: SQL before the subscription begins, in the published database.
        elsewhere: Whether the load is in another database.
        steps: So many of STEP_BYTES make one call of the load.
        options: The subscription's.
    """

    load: str
    setup: str = ""
    elsewhere: bool = False
    steps: int = 1
    options: dict[str, Any] = {}  # noqa: RUF012 - it is not changed


INSERT = "INSERT INTO busy SELECT g, false, repeat('x', 6000) FROM generate_series(1, {rows}) AS g; TRUNCATE busy"
CASES = {
    "another table": Case(INSERT),
    "another database": Case(INSERT, elsewhere=True),
    # TRUNCATE is published, whatever the filter says
    "rows that the filter removes": Case(
        INSERT.removesuffix("; TRUNCATE busy"), "ALTER PUBLICATION pub ADD TABLE busy WHERE (wanted)"
    ),
    "large transactions, streaming": Case(INSERT, steps=8, options={"streaming": "on"}),
    "two_phase": Case(
        INSERT.replace("INSERT", "BEGIN; INSERT").replace("; TRUNCATE busy", "; PREPARE TRANSACTION 'load'"),
        options={"two_phase": True},
    ),
}
ALWAYS = ("another table", "rows that the filter removes")
"""The others are left to `make soak`: they take as long again."""
BUSY = (
    "CREATE TABLE busy (id int, wanted boolean NOT NULL, filler text);ALTER TABLE busy ALTER filler SET STORAGE PLAIN;"
)


@pytest.fixture(scope="module")
def private_server() -> Iterator[Server]:
    """A server that removes WAL as soon as nobody needs it, and whose large transactions are spilled or streamed."""
    settings = {**TEST_SETTINGS, "max_wal_size": "64MB", "min_wal_size": "32MB", "logical_decoding_work_mem": "1MB"}
    with EmbeddedPostgres(settings=settings, fsync=False) as server:
        yield Server(str(server.folder), server.port, server.user, None, server)


@dataclass
class Slot:
    """What the server keeps for a slot, seen many times a second."""

    server: Server
    name: str

    def __post_init__(self) -> None:
        self._admin = self.server.connect()

    def positions(self) -> tuple[Lsn, Lsn, Lsn]:
        """restart_lsn, confirmed_flush_lsn, and the end of the server's flushed WAL."""
        row = self._admin.execute(
            "SELECT restart_lsn::text, confirmed_flush_lsn::text, pg_current_wal_flush_lsn()::text"
            " FROM pg_replication_slots WHERE slot_name = %s",
            (self.name,),
        ).fetchone()
        assert row is not None
        restart, confirmed, flushed = map(Lsn.parse, row)
        return restart, confirmed, flushed

    def retained_bytes(self) -> int:
        restart, _, flushed = self.positions()
        return flushed - restart

    def checkpoint(self) -> None:
        self._admin.execute("CHECKPOINT")

    def close(self) -> None:
        self._admin.close()


class Load(threading.Thread):
    """Writes a case's load in steps."""

    def __init__(self, case: Case, server: Server, dbname: str) -> None:
        super().__init__(name="load", daemon=True)
        self._case = case
        self._server = server
        self._dbname = dbname
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._write()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def _write(self) -> None:
        case = self._case
        statement = case.load.replace("{rows}", str(case.steps * STEP_BYTES // ROW_BYTES))
        with closing(self._server.connect(self._dbname)) as connection:
            for _ in range(LOAD_BYTES // (case.steps * STEP_BYTES)):
                connection.execute(statement.encode())
                if "PREPARE" in statement:
                    connection.execute("COMMIT PREPARED 'load'")
                    connection.execute("TRUNCATE busy")
                time.sleep(STEP_S * case.steps)


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.soak) for name in CASES]
)
def test_an_idle_publication_never_pins_wal(private_server, tables, tmp_path, name):
    """The slot follows at any time of the load, and nothing is committed to the table for it."""
    case = CASES[name]
    publisher = Publisher(private_server, f"wal_{list(CASES).index(name)}")
    try:
        publisher.execute(
            f"CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t; {BUSY}{case.setup}"
        )
        other = Publisher(private_server, f"{publisher.name}_other")
        other.execute(BUSY)
        other.close()
        bridge = WithoutCommitLog(tables, publisher, tmp_path, **case.options)
        with closing(bridge.catalog), closing(Slot(private_server, bridge.subscription.slot_name)) as slot:
            worker = running(bridge)
            try:
                follows(bridge, slot, Load(case, private_server, other.name if case.elsewhere else publisher.name))
            finally:
                end(worker)
            assert worker.error is None
    finally:
        publisher.drop()


def follows(bridge: Pipeline, slot: Slot, load: Load) -> None:
    commits = len(bridge.commits("t"))
    _, confirmed, begun = slot.positions()
    moves, most_bytes = 0, 0
    load.start()
    while load.is_alive():
        slot.checkpoint()
        restart, now_confirmed, flushed = slot.positions()
        moves += now_confirmed > confirmed
        confirmed = now_confirmed
        most_bytes = max(most_bytes, flushed - restart)
        assert most_bytes < BOUND_BYTES, f"{most_bytes >> 20} MiB are retained"
        time.sleep(0.1)
    assert load.error is None
    *_, ended = slot.positions()
    assert ended - begun > LOAD_BYTES * 0.9
    assert moves > 5

    def nearly_nothing_is_retained() -> bool:
        slot.checkpoint()
        return slot.retained_bytes() < NEARLY_NOTHING_BYTES

    wait_until(nearly_nothing_is_retained, SOON_S)
    assert slot.positions()[1] >= ended - NEARLY_NOTHING_BYTES
    assert len(bridge.commits("t")) == commits
