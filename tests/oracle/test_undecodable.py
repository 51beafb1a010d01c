"""A transaction that the publisher cannot send: the command that the error names is typed, and all others arrive."""

from __future__ import annotations

import re
import shlex
from contextlib import closing, contextmanager

import pytest

from bridge import cli, faults, remedies
from bridge.errors import ApplyError, StreamError
from bridge.track import refresh
from tests.bridge.subscribed import end, wait_until
from tests.fix_bridge import Pipeline
from tests.oracle.memory_tables import in_memory


def type_in(bridge, publisher, command):
    """Run a printed command."""
    config_file = bridge.folder / "pgbridge.toml"
    subscription = bridge.subscription
    config_file.write_text(
        f'state_dir = "state"\n[subscription."{subscription.name}"]\nconnection = "{publisher.conninfo}"\n'
        f'publications = ["pub"]\nwarehouse = "{subscription.warehouse}"\n'
        f"two_phase = {str(subscription.two_phase).lower()}\n"
    )
    cli.app([*shlex.split(command)[1:], "--config", str(config_file)], standalone_mode=False)


def test_the_server_cannot_send_a_transaction(spark, publisher, pipeline):
    """The printed skip passes it and no other: those before and behind it are applied, and other tables' rows."""
    publisher.needs(15)
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE sound (id int PRIMARY KEY);"
        "CREATE PUBLICATION pub FOR TABLE t WHERE (1 / id > -5), sound"
    )
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute("INSERT INTO sound VALUES (1)")
    publisher.execute("BEGIN; INSERT INTO t VALUES (0, 1); INSERT INTO sound VALUES (2); COMMIT")
    publisher.execute("INSERT INTO t VALUES (5, 1)")
    publisher.execute("INSERT INTO sound VALUES (3)")
    with pytest.raises(StreamError, match="division by zero") as raised:
        bridge.catch_up()
    name = bridge.subscription.name
    error = bridge.catalog.last_error(name)
    command = remedies.skip(name, error.finish_lsn)
    assert raised.value.hint == f"the change is in the WAL; to skip its transaction, run: {command}"
    assert [row["id"] for row in bridge.rows("sound")] == [1]
    type_in(bridge, publisher, command)
    bridge.catch_up()
    assert bridge.catalog.skip_lsn(name) is None
    assert sorted(row["id"] for row in bridge.rows("sound")) == [1, 3]
    assert [row["id"] for row in bridge.rows("t")] == [5]
    publisher.execute("UPDATE t SET v = 2 WHERE id = 5")
    bridge.catch_up()
    assert [row["v"] for row in bridge.rows("t")] == [2]


@contextmanager
def bridge(publisher, folder, **options):
    """A subscription whose Delta tables are in memory, and how to read one."""
    with in_memory() as tables:
        pipeline = Pipeline(tables, publisher, folder, retry_max_s=0.2, **options)
        with closing(pipeline.catalog):
            yield pipeline, lambda table: sorted(tables.arrow(pipeline.path(table)).to_pylist(), key=str)


def test_the_server_cannot_send_it_to_added_tables_either(publisher, tmp_path, monkeypatch):
    """They are copied anew, behind it; the subscription's own stream has its skip, as before."""
    publisher.needs(15)
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE sound (id int PRIMARY KEY);"
        "INSERT INTO t VALUES (1, 1); CREATE PUBLICATION pub FOR TABLE sound"
    )
    bad = ["BEGIN; INSERT INTO t VALUES (0, 1); DELETE FROM t WHERE id = 0; COMMIT; INSERT INTO t VALUES (2, 2)"]

    def reached(point):
        if point == "table_copied" and bad:
            publisher.execute(bad.pop())

    with bridge(publisher, tmp_path) as (pipeline, rows):
        pipeline.catch_up()
        name = pipeline.subscription.name
        publisher.execute("ALTER PUBLICATION pub ADD TABLE t WHERE (1 / id > -5)")
        refresh.ask(pipeline.catalog, name, [None], copy_data=True)
        monkeypatch.setattr(faults, "_action", reached)
        worker = pipeline.worker(until_caught_up=False)
        worker.thread.start()
        try:
            wait_until(lambda: pipeline.catalog.last_error(refresh.sync_name(name)) is not None)
            wait_until(
                lambda: (error := pipeline.catalog.last_error(name)) is not None and error.finish_lsn is not None
            )
            type_in(pipeline, publisher, re.findall("pgbridge skip .*", pipeline.catalog.last_error(name).message)[0])
            wait_until(lambda: pipeline.catalog.subscription(refresh.sync_name(name)) is None)
        finally:
            end(worker)
        pipeline.catch_up()
        assert not bad
        assert [row["id"] for row in rows("t")] == [1, 2]
        publisher.execute("UPDATE t SET v = 3 WHERE id = 2")
        pipeline.catch_up()
        assert rows("t") == [{"id": 1, "v": 1}, {"id": 2, "v": 3}]


def test_what_was_prepared_in_binary_form_and_cannot_be_read(publisher, tmp_path):
    """It is not sent again at its COMMIT PREPARED; both printed commands, typed one after the other, make all equal."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE sound (id int PRIMARY KEY);"
        "CREATE PUBLICATION pub FOR TABLE t, sound"
    )
    with bridge(publisher, tmp_path, two_phase=True) as (pipeline, rows):
        pipeline.catch_up()
        publisher.execute("ALTER TABLE t ADD p point")
        publisher.execute("BEGIN; INSERT INTO t VALUES (1, '(1,2)'); PREPARE TRANSACTION 'read_from_text_only'")
        publisher.execute("COMMIT PREPARED 'read_from_text_only'")
        publisher.execute("ALTER TABLE t DROP p; INSERT INTO sound VALUES (1)")
        with pytest.raises(ApplyError, match="in binary form, which is read from text only") as raised:
            pipeline.catch_up()
        commands = re.findall(r"pgbridge [^;]*", raised.value.hint)
        assert [command.split()[1] for command in commands] == ["skip", "refresh"]
        for command in commands:
            type_in(pipeline, publisher, command)
            pipeline.catch_up()
        assert ([row["id"] for row in rows("t")], rows("sound")) == ([1], [{"id": 1}])
