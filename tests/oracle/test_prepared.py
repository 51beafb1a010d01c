"""What the server sends of prepared transactions: the facts that whoever receives them stands on.

Each is a case of `ReorderBufferPrepare` and `ReorderBufferFinishPrepared` in PostgreSQL's reorderbuffer.c, or of
`CreateDecodingContext` in logical.c.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.protocol.codec.messages import (
    BeginPrepare,
    CommitPrepared,
    LogicalMessage,
    Prepare,
    RollbackPrepared,
    StreamPrepare,
)
from pgbridge.protocol.lsn import Lsn
from tests.oracle.walsender import STREAM_EVERYTHING, Sent, Walsender, names

PREPARE = ["BeginPrepare", "Insert", "Prepare"]


@pytest.fixture
def server(publisher):
    """A publisher of t, not of other, which a test takes for a server of its own."""
    publisher.execute(
        "CREATE TABLE t (n int PRIMARY KEY); CREATE TABLE other (n int); CREATE PUBLICATION p FOR TABLE t"
    )
    return publisher


@pytest.fixture
def slot(server):
    """Makes the test's slot; gives its name."""

    def make(*, two_phase: bool = True) -> str:
        name = f"{server.name}_slot"
        server.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)", (name, two_phase))
        return name

    return make


def prepare(server, gid: str, statements: str) -> str:
    """Prepare a transaction; gives its identifier, which is the server's, not a database's."""
    server.execute(f"BEGIN; {statements}; PREPARE TRANSACTION '{server.name}_{gid}'")
    return f"'{server.name}_{gid}'"


def only(sent: list[Sent], kind: type):
    """The only message of a kind."""
    (found,) = [item.message for item in sent if isinstance(item.message, kind)]
    return found


def here(server) -> Lsn:
    return Lsn.parse(server.query("SELECT pg_current_wal_insert_lsn()::text")[0][0])


def test_prepare_is_sent_at_prepare_and_its_end_by_itself(server, slot):
    """Others may commit in between; wal_start of Prepare and of Commit Prepared is the end of their own record."""
    name = slot()
    with Walsender(server.conninfo, name, two_phase=True) as walsender:
        gid = prepare(server, "a", "INSERT INTO t VALUES (1)")
        sent = walsender.read()
        assert names(sent) == PREPARE
        begun, prepared = only(sent, BeginPrepare), only(sent, Prepare)
        assert sent[-1].wal_start == prepared.end_lsn == begun.end_lsn <= here(server)
        assert (begun.prepare_lsn, begun.xid, begun.gid) == (prepared.prepare_lsn, prepared.xid, gid.strip("'"))
        server.execute("INSERT INTO t VALUES (2)")
        assert names(walsender.read()) == ["Begin", "Insert", "Commit"]
        server.execute(f"COMMIT PREPARED {gid}")
        (ended,) = walsender.read()
        committed = only([ended], CommitPrepared)
        assert ended.wal_start == committed.end_lsn > committed.commit_lsn > prepared.end_lsn
        assert (committed.xid, committed.gid) == (begun.xid, begun.gid)


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ("INSERT INTO other VALUES (1)", ["BeginPrepare", "Prepare", "RollbackPrepared"]),
        (
            "SAVEPOINT s; INSERT INTO t VALUES (1); ROLLBACK TO s",
            ["BeginPrepare", "Prepare", "RollbackPrepared"],
        ),
        ("SELECT 1", []),
        ("SELECT pg_current_xact_id()", []),
    ],
    ids=["unpublished", "rolled-back", "read-only", "with-an-xid"],
)
def test_prepared_without_published_changes(server, slot, statements, expected):
    """Other empty transactions are not sent; of prepared ones only those that changed nothing in this database."""
    with Walsender(server.conninfo, slot(), two_phase=True) as walsender:
        gid = prepare(server, "a", statements)
        server.execute(f"ROLLBACK PREPARED {gid}")
        assert names(walsender.read()) == expected


@pytest.mark.parametrize("outcome", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize(("start", "again"), [("prepare_lsn", True), ("prepare_lsn + 1", False), ("end_lsn", False)])
def test_prepare_is_sent_again_until_its_beginning_is_passed(server, slot, start, again, outcome):
    """As with a commit, the record's first byte decides; its end, Commit or Rollback Prepared, comes in any case."""
    name = slot()
    with Walsender(server.conninfo, name, two_phase=True) as walsender:
        gid = prepare(server, "a", "INSERT INTO t VALUES (1)")
        begun = only(walsender.read(), BeginPrepare)
    starts = {
        "prepare_lsn": begun.prepare_lsn,
        "prepare_lsn + 1": Lsn(begun.prepare_lsn + 1),
        "end_lsn": begun.end_lsn,
    }
    with Walsender(server.conninfo, name, starts[start], two_phase=True) as walsender:
        assert names(walsender.read()) == (PREPARE if again else [])
        server.execute(f"{outcome} PREPARED {gid}")
        assert names(walsender.read()) == [f"{outcome.title()}Prepared"]
    with Walsender(server.conninfo, name, starts[start], two_phase=True) as walsender:
        sent = names(walsender.read())
        if outcome == "ROLLBACK":
            sent = [name for name in sent if name != "Insert"]  # 18 leaves the rows out, knowing that they are void
        rows = ["Insert"] if outcome == "COMMIT" else []
        prepared = ["BeginPrepare", *rows, "Prepare"] if again else []
        assert sent == [*prepared, f"{outcome.title()}Prepared"]


def test_stream_gives_two_phase_to_a_slot_without(server, slot):
    """What was prepared before comes whole at COMMIT PREPARED, and of what is rolled back only that."""
    name = slot(two_phase=False)
    earlier, never = (prepare(server, gid, f"INSERT INTO t VALUES ({n})") for n, gid in enumerate(("earlier", "never")))
    with Walsender(server.conninfo, name, here(server), two_phase=True) as walsender:
        assert walsender.read() == []
        assert server.query("SELECT two_phase FROM pg_replication_slots WHERE slot_name = %s", (name,)) == [(True,)]
        later = prepare(server, "later", "INSERT INTO t VALUES (2)")
        after_later = walsender.read()
        assert names(after_later) == PREPARE
        server.execute(f"COMMIT PREPARED {earlier}")
        sent = walsender.read()
        assert names(sent) == [*PREPARE, "CommitPrepared"]
        assert only(sent, BeginPrepare).end_lsn < only(after_later, BeginPrepare).prepare_lsn  # positions go back
        server.execute(f"ROLLBACK PREPARED {never}")
        assert names(walsender.read()) == ["RollbackPrepared"]
        server.execute(f"COMMIT PREPARED {later}")
        assert names(walsender.read()) == ["CommitPrepared"]


@pytest.mark.parametrize("options", [{"proto_version": 1}, {"proto_version": 2, "two_phase": False}], ids=str)
def test_slot_keeps_two_phase_whatever_is_asked(server, slot, options):
    with Walsender(server.conninfo, slot(), **options) as walsender:
        gid = prepare(server, "a", "INSERT INTO t VALUES (1)")
        server.execute(f"COMMIT PREPARED {gid}")
        assert names(walsender.read()) == [*PREPARE, "CommitPrepared"]


def test_what_is_prepared_while_a_slot_is_made(server):
    """A slot waits for what was open when it began. What is prepared meanwhile comes whole at its end, if it comes."""
    name = f"{server.name}_slot"
    gid = prepare(server, "open", "INSERT INTO t VALUES (1)")
    made: list[Lsn] = []

    def make() -> None:
        with ReplicationConnection(server.conninfo, application_name="test") as replication:
            made.append(replication.create_slot(name, two_phase=True).consistent_point)

    maker = threading.Thread(target=make)
    maker.start()
    _wait_for_a_transaction(server)
    second = prepare(server, "second", "INSERT INTO other VALUES (1)")
    server.execute(f"COMMIT PREPARED {gid}")
    _wait_for_a_transaction(server)  # it has gone on to the second
    committed, rolled_back = (
        prepare(server, gid, f"INSERT INTO t VALUES ({n})") for n, gid in enumerate(("third", "fourth"), 3)
    )
    assert not made
    server.execute(f"COMMIT PREPARED {second}")
    maker.join(20)
    with Walsender(server.conninfo, name, two_phase=True) as walsender:
        assert walsender.read() == []
        server.execute(f"COMMIT PREPARED {committed}")
        server.execute(f"ROLLBACK PREPARED {rolled_back}")
        sent = walsender.read()
        assert names(sent) == [*PREPARE, "CommitPrepared", "RollbackPrepared"]
        assert only(sent, BeginPrepare).end_lsn < made[0] < only(sent, CommitPrepared).commit_lsn
        assert only(sent, RollbackPrepared).prepare_end_lsn < made[0]


def _wait_for_a_transaction(server) -> None:
    """Wait until the walsender of this database waits for a transaction's end (for a moment that is the same one)."""
    deadline = time.monotonic() + 20
    query = (
        "SELECT 1 FROM pg_stat_activity JOIN pg_locks l USING (pid)"
        " JOIN pg_prepared_xacts ON transaction = l.transactionid"
        " WHERE backend_type = 'walsender' AND datname = current_database() AND NOT l.granted"
    )
    while not server.query(query):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("outcome", ["COMMIT", "ROLLBACK"])
def test_streamed_and_prepared(server, slot, outcome):
    """Stream Prepare ends it; a message outside of transactions comes between two parts of it, never inside one."""
    server.needs(16)
    name = slot()
    options: dict[str, Any] = {"settings": STREAM_EVERYTHING, "streaming": "on", "two_phase": True, "messages": True}
    with Walsender(server.conninfo, name, **options) as walsender:
        gid = prepare(
            server,
            "a",
            "INSERT INTO t VALUES (1); SAVEPOINT s; INSERT INTO t VALUES (2); ROLLBACK TO s;"
            " SELECT pg_logical_emit_message(false, 'p', '')",
        )
        sent = walsender.read()
        part = ["StreamStart", "Insert", "StreamStop"]
        assert names(sent) == [*part, *part, "StreamAbort", "LogicalMessage", "StreamPrepare"]
        ended = only(sent, StreamPrepare)
        assert sent[-1].wal_start == ended.end_lsn
    with Walsender(server.conninfo, name, ended.end_lsn, **options) as walsender:
        server.execute(f"{outcome} PREPARED {gid}")
        assert names(walsender.read()) == [f"{outcome.title()}Prepared"]


def test_streamed_transaction_comes_from_its_beginning_again(server, slot):
    """However far its parts were confirmed: they are not durable before its end."""
    server.needs(16)
    name = slot()
    options: dict[str, Any] = {"settings": STREAM_EVERYTHING, "streaming": "on"}
    with server.connect() as writer:
        writer.execute("BEGIN; INSERT INTO t VALUES (1)")
        with Walsender(server.conninfo, name, **options) as walsender:
            assert names(walsender.read()) == ["StreamStart", "Insert", "StreamStop"]
            walsender.read(confirm=here(server))
        with Walsender(server.conninfo, name, **options) as walsender:
            writer.execute("INSERT INTO t VALUES (2); COMMIT")
            again = walsender.read()
    assert names(again).count("Insert") == 2
    assert names(again)[-1] == "StreamCommit"


def test_lsn_of_a_message_outside_of_transactions_is_its_end(server, slot):
    """Who confirmed it does not get it again; who did not, does."""
    name = slot()
    before = here(server)
    server.query("SELECT pg_logical_emit_message(false, 'p', 'text')")
    with Walsender(server.conninfo, name, before, messages=True) as walsender:
        message = only(walsender.read(), LogicalMessage)
    assert before < message.lsn <= here(server)
    with Walsender(server.conninfo, name, message.lsn, messages=True) as walsender:
        assert walsender.read() == []
    with Walsender(server.conninfo, name, before, messages=True) as walsender:
        assert only(walsender.read(), LogicalMessage) == message
