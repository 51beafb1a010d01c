"""What an owner does late, that stood still while another machine went on, and streams without a pause.

Each is at the last moment before a commit, when the owner has checked everything. A pause of the other machine would
hide a loss: it reads the tables' logs when a stream begins.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest

from pgbridge.bridge.catalog import refresh, reset
from pgbridge.bridge.lake.commit import messages, restore
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import PublisherError, StateError, TakenOver, TargetError
from tests.bridge.made_daemon import wait_until
from tests.faults import test_matrix as matrix
from tests.faults.lives import _RESTORE
from tests.faults.test_takeover import Undone, recovered
from tests.oracle.memory_tables import MemoryTables

FIRST = matrix.SCHEMA + "CREATE PUBLICATION pub FOR TABLE a, b"


class Other:
    """Another machine with the same subscription and tables, which goes on when it is told to."""

    def __init__(self, lives, life, server) -> None:
        self.life, self.server = lives(), server
        self.life.bridge.subscription, self.life.path = life.bridge.subscription, life.path
        self.worker: Any = None

    def take_over(self, *tables: str) -> None:
        """Recover, and stream; returns once the tables are equal to the server's."""
        recovered(self.life, self.server)
        self.worker = self.life.bridge.worker(until_caught_up=False)
        self.worker.thread.start()
        self.equal(*tables)

    def equal(self, *tables: str) -> None:
        """Wait until the tables are equal to the server's; it has no error."""
        wait_until(lambda: self._differences(tables) == [] or not self.worker.thread.is_alive(), 90)
        assert self._differences(tables) == []
        assert self.error is None

    def _differences(self, tables) -> Any:
        try:
            return self.life.differences(tables)
        except Exception as error:  # noqa: BLE001 - a column is not there yet
            return [str(error)]

    @property
    def error(self):
        """Its last error."""
        return self.life.bridge.catalog.last_error(self.life.name)

    def end(self) -> None:
        """Stop."""
        if self.worker is not None:
            self.worker.stop()
            self.worker.thread.join(60)


@pytest.fixture
def others():
    """Makes other machines, which end with the test."""
    with ExitStack() as stack:

        def make(lives, life, server) -> Other:
            made = Other(lives, life, server)
            stack.callback(made.end)
            return made

        yield make


def test_the_copies_of_a_subscription_that_begins_afresh(lives, others, private_server, monkeypatch):
    server = private_server
    server.execute(FIRST)
    life = lives(workers__max_sync_workers=1)
    life.caught_up()
    other = others(lives, life, server)
    reset.start_afresh(life.bridge.catalog, life.name, {("public", "a"), ("public", "b")})
    server.drop_slot("forked")
    replace, stood = MemoryTables.replace, list[str]()

    def overwrite(tables, rows, path, stamp, **more):
        if not stood:
            stood.append(path)
            other.take_over("a", "b")
            server.execute(matrix.each(matrix.CHANGES))
            other.equal("a", "b")
        replace(tables, rows, path, stamp, **more)

    monkeypatch.setattr(MemoryTables, "replace", overwrite)
    error = life.live()
    assert isinstance(error, TakenOver), repr(error)
    server.execute(matrix.each(matrix.LAST))
    other.equal("a", "b")


def test_the_copy_of_an_added_table(lives, others, private_server, monkeypatch):
    """The main stream is in a long batch meanwhile, and records nothing."""
    server = private_server
    server.execute(FIRST)
    life = lives()
    life.caught_up()
    other = others(lives, life, server)
    server.execute("ALTER PUBLICATION pub ADD TABLE c")
    refresh.ask(life.bridge.catalog, life.name, [None], copy_data=True)
    replace, begun, over, stood = MemoryTables.replace, threading.Event(), threading.Event(), list[str]()

    def overwrite(tables, rows, path, stamp, **more):
        if path.endswith("/c") and not stood:
            assert begun.wait(60)
            stood.append(path)
            other.take_over("a", "b", "c")
            server.execute("INSERT INTO c VALUES (50, 'after'); UPDATE c SET v = 'new' WHERE id = 1")
            other.equal("a", "b", "c")
            over.set()
        replace(tables, rows, path, stamp, **more)

    def passing(here):
        if here == "refresh_taken":
            server.execute(matrix.each(matrix.CHANGES))
        if here == "table_begun" and not over.is_set() and other.worker is None:
            begun.set()
            over.wait(60)

    monkeypatch.setattr(MemoryTables, "replace", overwrite)
    error = life.live(until=lambda: False, on_passing=passing)
    assert isinstance(error, TakenOver), repr(error)
    server.execute("INSERT INTO c VALUES (51, 'later')")
    other.equal("a", "b", "c")


def test_a_restore(lives, others, private_server, monkeypatch):
    """It reverts what came since. Nothing is made worse, and whoever commits on top says so, with what helps."""
    server = private_server
    server.execute(FIRST)
    life = lives()
    other = others(lives, life, server)
    scene = Undone(life, server, "undo_begun")
    scene.begin()
    scene.go_on()
    version, bring_back, stood = restore.UndoneBatch.version, restore._bring_back, list[str]()

    def late(batch, history, position):
        wanted = version(batch, history, position)
        if wanted is not None and not stood:
            stood.append(history.path)
            life.spark.checks.clear()
            other.take_over("a", "b")
            server.execute(matrix.each(matrix.LAST))
            other.equal("a", "b")
            stood.append("and the other machine goes on")
        return wanted

    def later(spark, path):
        if len(stood) < 2:  # the other one undoes the batch, too
            return bring_back(spark, path)
        server.execute(matrix.each("INSERT INTO {0} VALUES (301, 'between');"))
        wait_until(lambda: other.error is not None)
        return bring_back(spark, path)

    monkeypatch.setattr(restore.UndoneBatch, "version", late)
    monkeypatch.setattr(restore, "_bring_back", later)
    error = life.live()
    assert error is not None
    assert "also reverted version" in str(error)
    assert "also reverted version" in other.error.message
    other.end()
    (statement,) = set(_RESTORE.findall(other.error.message))
    other.life.spark.sql(statement).collect()
    other.life.caught_up()
    assert other.life.differences(matrix.TABLES) == []


@pytest.mark.parametrize("point", ["claimed", "fenced"])
def test_a_recovery(lives, others, private_server, point):
    """A third machine has recovered since, and streams."""
    server = private_server
    server.execute(FIRST)
    life = lives()
    life.caught_up()
    second, third = others(lives, life, server), others(lives, life, server)
    passed = list[str]()

    def stands(here):
        if here == point and not passed:
            passed.append(here)
            third.take_over("a", "b")
            server.execute(matrix.each(matrix.CHANGES))
            third.equal("a", "b")

    faults.install(stands)
    try:
        _, error = second.life.recover_all()
    finally:
        faults.install(lambda _: None)
    # once it is behind its fences, it looks whether the slot is in use
    assert isinstance(error, TakenOver if point == "claimed" else PublisherError), repr(error)
    server.execute(matrix.each(matrix.LAST))
    third.equal("a", "b")
    error = second.life.live()
    assert isinstance(error, StateError), repr(error)
    third.equal("a", "b")


@pytest.mark.parametrize("point", ["claimed", "fenced"])
def test_a_recovery_that_is_killed_is_made_again(lives, private_server, point):
    private_server.execute(FIRST)
    life = lives()
    life.caught_up()
    life.lose_state()

    def killed(here):
        if here == point:
            raise RuntimeError(here)

    faults.install(killed)
    try:
        with pytest.raises(RuntimeError, match=point):
            life.recover()
    finally:
        faults.install(lambda _: None)
    life.recover()
    private_server.execute(matrix.each(matrix.CHANGES))
    life.caught_up()
    assert life.differences(matrix.TABLES) == []


def test_a_state_that_was_to_begin_afresh(lives, others, private_server):
    """It was killed when it had made the slot, which is the other machine's by now: it is not dropped."""
    server = private_server
    server.execute(FIRST)
    life = lives()
    life.caught_up()
    other = others(lives, life, server)
    reset.start_afresh(life.bridge.catalog, life.name, {("public", "a"), ("public", "b")})
    server.drop_slot("forked")
    life.killed_at("slot_created")
    other.life.recover()
    other.life.caught_up()
    server.execute(matrix.each(matrix.CHANGES))
    other.life.caught_up()
    server.execute(matrix.each(matrix.LAST))
    error = life.live()
    assert isinstance(error, TakenOver), repr(error)
    other.life.caught_up()
    assert other.life.differences(matrix.TABLES) == []


def test_another_slot_with_another_state_is_another_life(lives, others, private_server):
    server = private_server
    server.execute(FIRST)
    life = lives(target__adopt=True)
    life.caught_up()
    others(lives, life, server).life.recover()
    fresh = lives(target__adopt=True, slot_name="another")
    warehouse = life.bridge.subscription.warehouse
    fresh.bridge.subscription = fresh.bridge.subscription.model_copy(update={"warehouse": warehouse})
    fresh.caught_up()


# --- what Delta alone refuses -----------------------------------------------------------------------------------------


@pytest.mark.soak  # `tests.bridge.recovery.test_fence` has what Delta refuses
def test_the_fill_of_a_column(delta_lives, others, private_server, monkeypatch):
    """It is a MERGE over all rows."""
    monkeypatch.setattr("tests.faults.lives._LIFE_S", 300)
    server = private_server
    server.execute(FIRST)
    life = delta_lives()
    life.caught_up()
    other = others(delta_lives, life, server)
    server.execute("ALTER TABLE a ADD COLUMN n int DEFAULT 7; INSERT INTO a VALUES (11, 'x')")

    def stands(here):
        if here == "schema_changed" and other.worker is None:
            other.take_over("a", "b")
            server.execute("UPDATE a SET n = 100 + id")
            other.equal("a", "b")

    error = life.live(on_passing=stands)
    assert isinstance(error, TakenOver), repr(error)
    server.execute("INSERT INTO a VALUES (12, 'y')")
    other.equal("a", "b")


@pytest.mark.soak  # as above
def test_the_deletion_of_messages(delta_lives, others, private_server, monkeypatch):
    monkeypatch.setattr("tests.faults.lives._LIFE_S", 300)
    server = private_server
    server.execute(FIRST)
    life = delta_lives(messages="table")
    life.caught_up()
    other = others(delta_lives, life, server)
    server.execute("INSERT INTO a VALUES (11, 'x'); SELECT pg_logical_emit_message(true, 'p', 'one')")
    life.killed_at("table_committed")
    delete, stood = messages.delete, list[str]()

    def contents():
        return sorted(bytes(row.content) for row in life.spark.read.format("delta").load(stood[0]).collect())

    def late(spark, own):
        if not stood:
            stood.append(own.path)
            other.take_over("a", "b")
            server.execute("INSERT INTO a VALUES (12, 'x'); SELECT pg_logical_emit_message(true, 'p', 'two')")
            wait_until(lambda: contents() == [b"one", b"two"])
        return delete(spark, own)

    monkeypatch.setattr(messages, "delete", late)
    error = life.live()
    assert isinstance(error, (TakenOver, TargetError)), repr(error)
    assert contents() == [b"one", b"two"]
    other.equal("a", "b")
