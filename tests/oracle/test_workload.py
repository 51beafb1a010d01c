"""The workload is the same for the same seed, does all it says, and a native subscriber can follow it."""

from __future__ import annotations

import pytest

from tests.oracle.native import NativeSubscriber, text_rows
from tests.oracle.workload import KEYS, OPERATIONS, TABLES, Operation, Workload

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
    """A table of operations of one's own adds what the default one has not."""

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
