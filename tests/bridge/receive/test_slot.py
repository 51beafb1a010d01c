"""The slot's snapshot is the state at its consistent point, and a slot that cannot be trusted is not streamed from."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import psycopg
import pytest

from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection, check_slot, refusal
from pgbridge.bridge.receive.slot_status import SlotStatus
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import AnotherServer, PublisherError, PublisherWentBack, SlotAdvanced
from pgbridge.bridge.track.position import Missing, Position
from pgbridge.protocol.lsn import Lsn

GOOD = SlotStatus(
    "pgoutput", "logical", "shop", active=False, active_pid=None, confirmed_flush_lsn=Lsn(0x100), wal_status="reserved"
)


def check(slot_name: str, status: SlotStatus | None, *, database: str, durable_lsn: Lsn | None) -> Lsn:
    """Of a subscription named shop."""
    return check_slot(slot_name, status, subscription="shop", database=database, durable_lsn=durable_lsn)


@pytest.fixture
def replication(publisher):
    with ReplicationConnection(publisher.conninfo, application_name="test") as connection:
        yield connection


@pytest.fixture
def name(publisher):
    """A slot's name of this test's own: slots are the server's, not a database's."""
    return f"{publisher.name}_slot"


def find(publisher, name: str) -> SlotStatus | None:
    with Publisher(publisher.conninfo, application_name="test") as asked:
        return asked.slot(name)


def status(publisher, name: str) -> SlotStatus:
    """The status of a slot that is there."""
    found = find(publisher, name)
    assert found is not None
    return found


def wait_for(condition, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- identity, making and dropping ------------------------------------------------------------------------------------


def test_system_identifier(replication, publisher):
    expected = publisher.query("SELECT system_identifier::text FROM pg_control_system()")[0][0]
    server = replication.history()
    assert (server.system_identifier, server.timeline, server.in_recovery, server.left) == (expected, 1, False, {})
    assert server.flush_lsn <= Lsn.parse(publisher.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])


def test_when_the_server_was_started(replication, publisher):
    """The same on every connection to it."""
    with Publisher(publisher.conninfo, application_name="test") as asked:
        assert replication.history().started_us == asked.started_us()
    (expected,) = publisher.query("SELECT extract(epoch FROM pg_postmaster_start_time()) * 1000000")[0]
    assert replication.history().started_us == int(expected)


AT = Position("7", 2, Lsn(0x100))


def test_why_a_server_is_refused():
    """With what it lacks and what is durable, and with what can be done."""
    other = refusal(Missing("it has system identifier 8", another_server=True), AT, anew="do it anew")
    assert isinstance(other, AnotherServer)
    assert other.message == "the publisher is another server: it has system identifier 8"
    assert not other.retry
    lags = refusal(Missing("it has WAL up to 0/FF", later=True), AT, anew="do it anew")
    assert type(lags) is PublisherError
    assert lags.message == (
        "the standby lags: it has WAL up to 0/FF, but changes up to 0/100 of timeline 2 are durable here"
    )
    assert lags.retry
    back = refusal(Missing("it has WAL up to 0/FF"), AT, anew="do it anew")
    assert isinstance(back, PublisherWentBack)
    assert "it has WAL up to 0/FF, but changes up to 0/100 of timeline 2 are durable here" in back.message
    assert back.hint is not None
    assert back.hint.endswith("; do it anew")
    assert not back.retry


def test_create_and_drop(replication, publisher, name):
    snapshot = replication.create_slot(name)
    made = status(publisher, name)
    assert (made.plugin, made.slot_type, made.database) == ("pgoutput", "logical", publisher.name)
    assert made.confirmed_flush_lsn == snapshot.consistent_point
    assert check(name, made, database=publisher.name, durable_lsn=None) == snapshot.consistent_point
    replication.drop_slot(name)
    assert find(publisher, name) is None


def test_slot_outlives_its_connection(publisher, name):
    with ReplicationConnection(publisher.conninfo, application_name="test") as connection:
        connection.create_slot(name)
    assert find(publisher, name) is not None


def test_temporary_slot_goes_with_its_connection(publisher, name):
    with ReplicationConnection(publisher.conninfo, application_name="test") as connection:
        connection.create_slot(name, temporary=True)
        assert find(publisher, name) is not None
    wait_for(lambda: find(publisher, name) is None)


@pytest.mark.parametrize("temporary", [False, True])
@pytest.mark.parametrize("export_snapshot", [False, True])
def test_two_phase(replication, publisher, name, temporary, export_snapshot):
    """In the server's words, in any company."""
    replication.create_slot(name, temporary=temporary, export_snapshot=export_snapshot, two_phase=True)
    assert status(publisher, name).two_phase


def test_without_two_phase(replication, publisher, name):
    replication.create_slot(name)
    assert not status(publisher, name).two_phase


def test_without_a_snapshot(replication, name):
    assert replication.create_slot(name, export_snapshot=False).name is None


def test_name_is_taken(replication, name):
    replication.create_slot(name)
    with pytest.raises(PublisherError, match=f'cannot create replication slot "{name}": .*already exists') as caught:
        replication.create_slot(name)
    assert not caught.value.retry


def test_name_that_the_server_refuses(replication):
    """Quoted, so that its case is kept and it cannot be anything but a name."""
    with pytest.raises(PublisherError, match='replication slot name "Shop" contains invalid character'):
        replication.create_slot("Shop")
    with pytest.raises(PublisherError, match=r"syntax error|contains invalid character"):
        replication.create_slot('x" LOGICAL pgoutput; DROP_REPLICATION_SLOT "x')


def test_drop_of_no_slot(replication, name):
    with pytest.raises(PublisherError, match=f'cannot drop replication slot "{name}": .*does not exist'):
        replication.drop_slot(name)


def test_drop_waits_for_whoever_streams(replication, publisher, name):
    """A walsender whose client was killed lives on for some moments."""
    replication.create_slot(name)
    walsender = psycopg.connect(publisher.conninfo, autocommit=True, replication="database")
    publisher.execute("CREATE PUBLICATION p")
    walsender.execute(f"START_REPLICATION SLOT {name} LOGICAL 0/0 (proto_version '1', publication_names 'p')")
    assert status(publisher, name).active_pid == walsender.info.backend_pid
    timer = threading.Timer(0.1, walsender.pgconn.finish)
    timer.start()
    replication.drop_slot(name)
    timer.join()
    assert find(publisher, name) is None


def test_role_without_replication(publisher, name):
    """It may not even have the connection; the error says so where it is opened."""
    role = f"{publisher.name}_role"
    publisher.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        conninfo = psycopg.conninfo.make_conninfo(publisher.conninfo, user=role, password="x")
        with pytest.raises(PublisherError, match=r"WAL sender|walsender"):
            ReplicationConnection(conninfo, application_name="test")
    finally:
        publisher.execute(f"DROP ROLE {role}")


# --- the snapshot -----------------------------------------------------------------------------------------------------


def rows_in(publisher, snapshot: str | None, query: str) -> list[tuple[int, ...]]:
    """A query's rows as of an exported snapshot."""
    with publisher.connect() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        rows: list[tuple[int, ...]] = connection.execute(query.encode()).fetchall()
        return rows


def changed_after(publisher, name: str) -> int:
    """How many row messages the slot would send."""
    query = (
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
        " 'publication_names', 'p') WHERE get_byte(data, 0) IN (ascii('I'), ascii('U'), ascii('D'))"
    )
    return int(publisher.query(query, (name,))[0][0])


def test_snapshot_is_the_state_at_the_consistent_point(replication, publisher, name):
    """It has what was committed before; what is committed later is in the stream."""
    publisher.execute(
        "CREATE TABLE t (n int PRIMARY KEY); INSERT INTO t VALUES (1), (2); CREATE PUBLICATION p FOR TABLE t"
    )
    snapshot = replication.create_slot(name)
    publisher.execute("INSERT INTO t VALUES (3); DELETE FROM t WHERE n = 1; CREATE TABLE later (n int)")
    assert rows_in(publisher, snapshot.name, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    assert publisher.query("SELECT n FROM t ORDER BY n") == [(2,), (3,)]
    assert changed_after(publisher, name) == 2


def test_snapshot_under_load_misses_nothing_and_has_nothing_twice(replication, publisher, name):
    """Transactions run while the slot is made: each row is in the snapshot or in the stream, and in one of them."""
    publisher.execute("CREATE TABLE t (n int); CREATE PUBLICATION p FOR TABLE t")
    stop = threading.Event()
    written: list[int] = []

    def write(first: int) -> None:
        with publisher.connect() as connection:
            n = first
            while not stop.is_set():
                connection.execute("INSERT INTO t VALUES (%s)", (n,))
                written.append(n)
                n += 3

    writers = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    for writer in writers:
        writer.start()
    try:
        wait_for(lambda: len(written) > 50)
        snapshot = replication.create_slot(name)
        enough = len(written) + 50
        wait_for(lambda: len(written) > enough)
        copied = rows_in(publisher, snapshot.name, "SELECT count(*), count(DISTINCT n) FROM t")[0]
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert copied[0] == copied[1]
    assert copied[0] + changed_after(publisher, name) == len(written)
    assert 0 < copied[0] < len(written)


def test_snapshot_lives_until_the_next_command(replication, publisher, name):
    snapshot = replication.create_slot(name)
    assert rows_in(publisher, snapshot.name, "SELECT 1") == [(1,)]
    replication.history()
    with pytest.raises(psycopg.Error, match="does not exist|invalid snapshot identifier"):
        rows_in(publisher, snapshot.name, "SELECT 1")


# --- an existing slot is judged ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [None, 0x100, 0x200])
def test_good_slot(durable):
    """At the origin or behind it: what is behind is sent by the origin's LSN, or left out by it."""
    durable_lsn = None if durable is None else Lsn(durable)
    assert check("s", GOOD, database="shop", durable_lsn=durable_lsn) == 0x100


def test_busy_slot_is_no_reason_to_refuse():
    """Its walsender may be our own of a moment ago; START_REPLICATION says when it is not free yet."""
    busy = replace(GOOD, active=True, active_pid=77)
    assert check("s", busy, database="shop", durable_lsn=Lsn(0x100)) == 0x100


def test_two_phase_of_the_slot_is_no_reason_to_refuse():
    """START_REPLICATION gives it to the slot where it is asked for, and where it is not, the slot's counts."""
    assert check("s", replace(GOOD, two_phase=True), database="shop", durable_lsn=Lsn(0x100)) == 0x100


@pytest.mark.parametrize(
    ("slot", "durable", "message", "hint"),
    [
        (
            None,
            None,
            'replication slot "s" does not exist on the publisher',
            "run on the server: SELECT pg_create_logical_replication_slot('s', 'pgoutput');",
        ),
        (
            None,
            0x100,
            'replication slot "s" does not exist on the publisher any more: changes after 0/100 are lost',
            "run: pgbridge resync shop",
        ),
        (
            replace(GOOD, plugin="test_decoding"),
            None,
            'replication slot "s" is logical with plugin test_decoding, not logical with pgoutput',
            "choose another slot_name",
        ),
        (
            replace(GOOD, slot_type="physical", plugin=None, database=None, confirmed_flush_lsn=None),
            None,
            'replication slot "s" is physical',
            "choose another slot_name",
        ),
        (
            replace(GOOD, database="hr"),
            None,
            'replication slot "s" was created in database "hr", not in "shop"',
            "set dbname in the connection, or another slot_name",
        ),
        (
            replace(GOOD, wal_status="lost"),
            0x100,
            'replication slot "s" is invalid: the server has removed WAL that it needs; changes after 0/100 are lost',
            "run: pgbridge resync shop",
        ),
        (
            replace(GOOD, wal_status="lost", invalidation_reason="idle_timeout"),
            0x100,
            'replication slot "s" is invalid: nobody streamed from it for idle_replication_slot_timeout; changes after',
            "run: pgbridge resync shop",
        ),
        (
            replace(GOOD, wal_status="lost"),
            None,
            'replication slot "s" is invalid: the server has removed WAL that it needs',
            "SELECT pg_drop_replication_slot('s');",
        ),
    ],
    ids=["missing", "dropped", "other-plugin", "physical", "other-database", "lost", "idle", "lost-before-use"],
)
def test_slot_that_is_not_streamed_from(slot, durable, message, hint):
    with pytest.raises(PublisherError) as caught:
        check("s", slot, database="shop", durable_lsn=None if durable is None else Lsn(durable))
    assert str(caught.value).startswith(message)
    assert hint in caught.value.hint
    assert not caught.value.retry
    assert not isinstance(caught.value, SlotAdvanced)


def test_slot_that_was_moved():
    """By a single byte already: the transaction that ends there may be one we never had."""
    with pytest.raises(SlotAdvanced) as caught:
        check("s", GOOD, database="shop", durable_lsn=Lsn(0xFF))
    assert "has confirmed 0/100, but only changes up to 0/FF are durable here" in str(caught.value)
    assert not caught.value.retry


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')", "with plugin test_decoding"),
        ("SELECT pg_create_physical_replication_slot('{name}', true)", "is physical"),
    ],
)
def test_slots_of_another_kind_on_a_server(publisher, name, make, message):
    publisher.query(make.format(name=name))
    try:
        with pytest.raises(PublisherError, match=message):
            check(name, status(publisher, name), database=publisher.name, durable_lsn=None)
    finally:
        publisher.query("SELECT pg_drop_replication_slot(%s)", (name,))


def test_slot_of_another_database_on_a_server(publisher, replication, name):
    replication.create_slot(name)
    with Publisher(publisher.server.conninfo(), application_name="test") as elsewhere:
        slot, database = elsewhere.slot(name), elsewhere.database
    with pytest.raises(PublisherError, match=f'created in database "{publisher.name}", not in "postgres"'):
        check(name, slot, database=database, durable_lsn=None)


def test_slot_that_somebody_advanced_on_a_server(publisher, replication, name):
    """pg_replication_slot_advance, or a second consumer: changes are lost to us, which must not go unseen."""
    publisher.execute("CREATE TABLE t (n int); CREATE PUBLICATION p FOR TABLE t")
    snapshot = replication.create_slot(name)
    publisher.execute("INSERT INTO t VALUES (1)")
    publisher.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (name,))
    with pytest.raises(SlotAdvanced, match=f"only changes up to {snapshot.consistent_point} are durable here"):
        check(
            name,
            status(publisher, name),
            database=publisher.name,
            durable_lsn=snapshot.consistent_point,
        )


@pytest.fixture
def private_server():
    """A server that keeps next to no WAL for its slots, and has one of them only."""
    settings: dict[str, str | int | bool] = {
        "max_slot_wal_keep_size": "1MB",
        "min_wal_size": "32MB",
        "max_wal_size": "32MB",
        "max_replication_slots": 1,
    }
    with EmbeddedPostgres(settings=settings, fsync=False) as server:
        yield server


def test_slot_whose_wal_is_gone(private_server):
    """And on the way there: no slot is left for a second subscription."""
    conninfo = private_server.conninfo()
    with ReplicationConnection(conninfo, application_name="test") as replication:
        replication.create_slot("kept")
        with pytest.raises(PublisherError, match="all replication slots are in use") as caught:
            replication.create_slot("second")
        assert "ALTER SYSTEM SET max_replication_slots" in caught.value.hint
        assert not caught.value.retry
    with Publisher(conninfo, application_name="test") as publisher:
        for _ in range(4):
            publisher.connection.execute("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
        publisher.connection.execute("CHECKPOINT")
        lost = publisher.slot("kept")
        assert lost is not None
        assert lost.wal_status == "lost"
        with pytest.raises(
            PublisherError, match="needed more WAL than max_slot_wal_keep_size|has removed WAL that it needs"
        ):
            check("kept", lost, database="postgres", durable_lsn=Lsn(1 << 60))


def test_a_slot_that_is_to_be_used_is_made_by_the_printed_statement(publisher, name):
    with pytest.raises(PublisherError, match="does not exist on the publisher") as caught:
        check(name, find(publisher, name), database=publisher.name, durable_lsn=None)
    publisher.execute(caught.value.hint.partition("run on the server: ")[2])
    try:
        assert check(name, find(publisher, name), database=publisher.name, durable_lsn=None)
    finally:
        publisher.execute(remedies.drop_slot(name))
    assert find(publisher, name) is None
