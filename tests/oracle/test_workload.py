"""The workload is the same for the same seed, does all it says, and a native subscriber can follow it."""

from __future__ import annotations

import pytest

from pgbridge.protocol.codec.messages import BeginPrepare, CommitPrepared, LogicalMessage, Prepare
from tests.oracle.native import NativeSubscriber, text_rows
from tests.oracle.walsender import Walsender
from tests.oracle.workload import KEYS, OPERATIONS, TABLES, Emitted, Operation, Workload
from tests.oracle.workload_prepared import PreparedWorkload

SEED = 20261121


def everything(conninfo: str):
    """The rows of all four tables."""
    return {table: text_rows(conninfo, table) for table in TABLES}


@pytest.fixture
def loaded(publisher):
    """A workload after 200 transactions."""
    with Workload(publisher.conninfo, SEED) as workload:
        workload.create_tables()
        workload.step(200)
        yield workload


def test_same_seed_same_tables(publisher, loaded, postgresql_server):
    before = everything(publisher.conninfo)
    publisher.execute("DROP TABLE docs, lines, labels, events")
    with Workload(publisher.conninfo, SEED) as again:
        again.create_tables()
        again.step(120)
        again.step(80)
    assert everything(publisher.conninfo) == before
    assert again.counts == loaded.counts


def test_every_operation_and_outcome_occurs(loaded):
    outcomes = {"commit", "rollback", "release savepoint", "rollback to savepoint"}
    assert set(loaded.counts) == {operation.name for operation in OPERATIONS} | outcomes


def test_model_of_keys_is_the_tables_content(publisher, loaded):
    """Rolled back transactions and savepoints leave the model as they leave the server."""
    for table, columns in KEYS.items():
        rows = publisher.query(f"SELECT {', '.join(columns)} FROM {table}")
        assert sorted(rows) == sorted(loaded._keys[table])
        assert rows


def test_messages_are_those_that_are_sent(publisher):
    """Of what is rolled back only the non-transactional ones, and of what is prepared the others only at its end."""
    publisher.execute("CREATE PUBLICATION p")
    slot_name = f"{publisher.name}_slot"
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", (slot_name,))
    with (
        PreparedWorkload(publisher.conninfo, SEED) as workload,
        Walsender(publisher.conninfo, slot_name, two_phase=True, messages=True) as walsender,
    ):
        workload.create_tables()
        workload.step(100)
        workload.finish_prepared()
        sent: list[Emitted] = []
        held: dict[int, list[Emitted]] = {}
        begin = 0
        for _, message in walsender.read():
            match message:
                case BeginPrepare():
                    begin = len(sent)
                case Prepare():
                    held[message.xid], sent[begin:] = sent[begin:], []
                case CommitPrepared():
                    sent += held.pop(message.xid)
                case LogicalMessage():
                    sent.append(Emitted(message.transactional, message.prefix, message.content.decode()))
        assert sorted(sent) == sorted(workload.messages)
        assert {message.transactional for message in sent} == {False, True}


@pytest.mark.parametrize("finish", [False, True])
def test_model_of_keys_with_prepared_transactions(publisher, finish):
    """While they are open, their rows are out of reach; then they are there as their outcome has it."""
    with PreparedWorkload(publisher.conninfo, SEED) as workload:
        workload.create_tables()
        workload.step(150)
        if finish:
            workload.finish_prepared()
        else:
            workload.prepare()
        assert bool(workload.open) is not finish
        for table, columns in KEYS.items():
            rows = publisher.query(f"SELECT {', '.join(columns)} FROM {table}")
            assert sorted(row for row in rows if row not in workload._locked[table]) == sorted(workload._keys[table])
            assert any(workload._locked.values()) is not finish
        workload.finish_prepared()
        assert publisher.query("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()") == [(0,)]
        outcomes = {"prepare", "commit prepared", "rollback prepared"}
        assert outcomes <= set(workload.counts)
        assert workload.counts["prepare"] == workload.counts["commit prepared"] + workload.counts["rollback prepared"]


def test_same_seed_same_tables_with_prepared_transactions(publisher):
    contents = []
    for _ in range(2):
        with PreparedWorkload(publisher.conninfo, SEED) as workload:
            workload.create_tables()
            workload.step(120)
            workload.finish_prepared()
            contents.append((everything(publisher.conninfo), workload.messages, workload.counts))
        publisher.execute("DROP TABLE docs, lines, labels, events")
    assert contents[0] == contents[1]


def test_bodies_are_toasted(publisher, loaded):
    ((toast_table,),) = publisher.query(
        "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'public.docs'::regclass"
    )
    ((values,),) = publisher.query(f"SELECT count(DISTINCT chunk_id) FROM {toast_table}")
    ((bodies,),) = publisher.query("SELECT count(body) FROM docs")
    assert 0 < bodies <= values


def test_events_are_never_the_same(publisher, loaded):
    ((rows, different),) = publisher.query("SELECT count(*), count(DISTINCT serial) FROM events")
    assert rows == different > 0


def test_own_operations_take_part(publisher):
    """A table of operations of one's own adds operations that the default one lacks."""

    def truncate(_, connection):
        connection.execute("TRUNCATE events")

    with Workload(publisher.conninfo, SEED, [Operation("truncate", 1, truncate)]) as workload:
        workload.create_tables()
        workload.step(3)
    assert set(workload.counts) <= {"truncate", "commit", "rollback"}


def test_native_subscriber_ends_equal(publisher):
    """Copy under load, then the stream: the oracle's tables are the publisher's."""
    with Workload(publisher.conninfo, SEED) as workload:
        workload.create_tables()
        workload.step(100)
        with NativeSubscriber(publisher.conninfo, [workload.publication()]) as native:
            workload.step(200)
            native.wait_caught_up()
            assert everything(native.conninfo) == everything(publisher.conninfo)


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("streaming", ["off", "on"])
def test_native_subscriber_ends_equal_with_prepared_transactions(publisher, streaming, two_phase):
    """Also while some are open, which nobody sees."""
    publisher.stream_everything()
    options = {"streaming": streaming, "two_phase": two_phase}
    with PreparedWorkload(publisher.conninfo, SEED) as workload:
        workload.create_tables()
        with NativeSubscriber(publisher.conninfo, [workload.publication()], options=options) as native:
            native.wait_caught_up()
            workload.step(150)
            workload.prepare()
            native.wait_caught_up()
            assert everything(native.conninfo) == everything(publisher.conninfo)
            prepared = native.query("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
            assert prepared == [(len(workload.open) if two_phase else 0,)]
            ((streamed,),) = publisher.query(
                "SELECT stream_count FROM pg_stat_replication_slots WHERE slot_name = %s", (native.name,)
            )
            assert (streamed > 0) is (streaming == "on")
            workload.finish_prepared()
            native.wait_caught_up()
            assert everything(native.conninfo) == everything(publisher.conninfo)
