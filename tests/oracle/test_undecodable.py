"""A transaction that the publisher cannot send: the command that the error names is typed, and all others arrive."""

from __future__ import annotations

import re

import pytest

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog_rows import sync_name
from pgbridge.bridge.runtime import faults, remedies
from pgbridge.bridge.runtime.errors import ApplyError, StreamError
from tests.bridge.subscribed import end, wait_until
from tests.oracle.typed import bridge, type_in


def test_the_server_cannot_send_a_transaction(publisher, tmp_path):
    """The printed skip passes it and no other: those before and behind it are applied, and other tables' rows."""
    publisher.needs(15)
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE sound (id int PRIMARY KEY);"
        "CREATE PUBLICATION pub FOR TABLE t WHERE (1 / id > -5), sound"
    )
    with bridge(publisher, tmp_path) as (memory_pipeline, rows):
        memory_pipeline.catch_up()
        publisher.execute("INSERT INTO sound VALUES (1)")
        publisher.execute("BEGIN; INSERT INTO t VALUES (0, 1); INSERT INTO sound VALUES (2); COMMIT")
        publisher.execute("INSERT INTO t VALUES (5, 1)")
        publisher.execute("INSERT INTO sound VALUES (3)")
        with pytest.raises(StreamError, match="division by zero") as raised:
            memory_pipeline.catch_up()
        name, finish_lsn = memory_pipeline.subscription.name, raised.value.finish_lsn
        assert finish_lsn is not None
        command, copied = re.findall(r"pgbridge [^;]*", raised.value.hint)
        assert raised.value.hint.startswith("the change is in the WAL; to skip its transaction, run: ")
        assert command == remedies.skip(name, finish_lsn)
        assert rows("sound") == [{"id": 1}]
        type_in(memory_pipeline, command)
        memory_pipeline.catch_up()
        assert memory_pipeline.catalog.skip_lsn(name) is None
        assert (rows("sound"), rows("t")) == ([{"id": 1}, {"id": 3}], [{"id": 5, "v": 1}])
        publisher.execute("UPDATE t SET v = 2 WHERE id = 5")
        memory_pipeline.catch_up()
        assert rows("t") == [{"id": 5, "v": 2}]
        type_in(memory_pipeline, copied.replace("TABLE", "public.sound"))
        memory_pipeline.catch_up()
        assert rows("sound") == [{"id": 1}, {"id": 2}, {"id": 3}]


def said(memory_pipeline):
    """The subscription's last error."""
    error = memory_pipeline.catalog.last_error(memory_pipeline.subscription.name)
    return "" if error is None else error.message


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

    with bridge(publisher, tmp_path) as (memory_pipeline, rows):
        memory_pipeline.catch_up()
        name = memory_pipeline.subscription.name
        publisher.execute("ALTER PUBLICATION pub ADD TABLE t WHERE (1 / id > -5)")
        refresh.ask(memory_pipeline.catalog, name, [None], copy_data=True)
        monkeypatch.setattr(faults, "_action", reached)
        worker = memory_pipeline.worker(until_caught_up=False)
        worker.thread.start()
        try:
            wait_until(lambda: memory_pipeline.catalog.last_error(sync_name(name)) is not None)
            wait_until(lambda: "pgbridge skip" in said(memory_pipeline))
            type_in(memory_pipeline, re.findall("pgbridge skip [^;]*", said(memory_pipeline))[0])
            wait_until(lambda: memory_pipeline.catalog.subscription(sync_name(name)) is None)
        finally:
            end(worker)
        memory_pipeline.catch_up()
        assert not bad
        assert [row["id"] for row in rows("t")] == [1, 2]
        publisher.execute("UPDATE t SET v = 3 WHERE id = 2")
        memory_pipeline.catch_up()
        assert rows("t") == [{"id": 1, "v": 1}, {"id": 2, "v": 3}]


def test_what_was_prepared_in_binary_form_and_cannot_be_read(publisher, tmp_path):
    """It is not sent again at its COMMIT PREPARED; both printed commands, typed one after the other, make all equal."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE sound (id int PRIMARY KEY);"
        "CREATE PUBLICATION pub FOR TABLE t, sound"
    )
    with bridge(publisher, tmp_path, two_phase=True) as (memory_pipeline, rows):
        memory_pipeline.catch_up()
        publisher.execute("ALTER TABLE t ADD p point")
        publisher.execute("BEGIN; INSERT INTO t VALUES (1, '(1,2)'); PREPARE TRANSACTION 'read_from_text_only'")
        publisher.execute("COMMIT PREPARED 'read_from_text_only'")
        publisher.execute("ALTER TABLE t DROP p; INSERT INTO sound VALUES (1)")
        with pytest.raises(ApplyError, match="in binary form, which is read from text only") as raised:
            memory_pipeline.catch_up()
        commands = re.findall(r"pgbridge [^;]*", raised.value.hint)
        assert [command.split()[1] for command in commands] == ["skip", "refresh"]
        for command in commands:
            type_in(memory_pipeline, command)
            memory_pipeline.catch_up()
        assert ([row["id"] for row in rows("t")], rows("sound")) == ([1], [{"id": 1}])


def test_a_culprit_that_is_not_known(publisher, tmp_path):
    """A slot with two_phase: the printed command copies all tables afresh, behind it."""
    publisher.needs(15)
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t WHERE (1 / id > -5)")
    with bridge(publisher, tmp_path, two_phase=True) as (memory_pipeline, rows):
        memory_pipeline.catch_up()
        publisher.execute("BEGIN; INSERT INTO t VALUES (0); DELETE FROM t; COMMIT; INSERT INTO t VALUES (1)")
        with pytest.raises(StreamError, match="its transaction is not known") as raised:
            memory_pipeline.catch_up()
        type_in(memory_pipeline, raised.value.hint.partition("run: ")[2])
        memory_pipeline.catch_up()
        publisher.execute("INSERT INTO t VALUES (2)")
        memory_pipeline.catch_up()
        assert [row["id"] for row in rows("t")] == [1, 2]
