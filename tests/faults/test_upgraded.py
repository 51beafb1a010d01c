"""pg_upgrade makes another server of the publisher, with its slots: the subscription goes on there, without a copy."""

from __future__ import annotations

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.runtime.errors import AnotherServer
from tests.faults import test_matrix as matrix
from tests.faults.test_recover import begun, copies


def upgrade(life, server):
    """Upgrade the server, and have the configuration lead to the new one."""
    server.upgrade()
    life.set_options(connection=server.conninfo)


def refused(life) -> str:
    """What the error of another server says."""
    error = life.live()
    assert isinstance(error, AnotherServer), repr(error)
    return str(error)


def test_the_subscription_goes_on(lives, private_server):
    server = private_server
    life = begun(lives, server)
    server.execute(matrix.each(matrix.CHANGES))
    life.caught_up()
    upgrade(life, server)
    server.execute(matrix.each(matrix.OTHERS))
    assert "if pg_upgrade made this one of it, stop the daemon, and run: pgbridge origin forked --up" in refused(life)
    done = life.pgbridge("origin", "forked", "--upgraded")
    assert done.code == 0, done
    assert "2 tables have the OIDs that they had" in done.out
    life.caught_up()
    assert copies(life) == []
    assert life.differences(matrix.TABLES) == []
    server.execute(f"ALTER TABLE a ADD COLUMN n int DEFAULT 7; {matrix.each(matrix.LAST)}")
    life.killed_at("batch_committed")
    life.caught_up()
    assert life.differences(matrix.TABLES) == []
    again = life.pgbridge("origin", "forked", "--upgraded")
    assert (again.code, "the server is the one that the subscription began with" in again.err) == (1, True)


def test_a_state_that_is_lost_afterwards(lives, private_server):
    """The warehouse knows the subscription by its new server."""
    life = begun(lives, private_server)
    upgrade(life, private_server)
    assert life.pgbridge("origin", "forked", "--upgraded").code == 0
    private_server.execute(matrix.each(matrix.CHANGES))
    life.caught_up()
    private_server.execute(matrix.each(matrix.OTHERS))
    life.lose_state()
    life.recover()
    life.caught_up()
    assert copies(life) == []
    assert life.differences(matrix.TABLES) == []


def test_tables_that_were_being_added_are_copied_again(lives, private_server):
    server = private_server
    life = begun(lives, server)
    server.execute("ALTER PUBLICATION pub ADD TABLE c")
    refresh.ask(life.bridge.catalog, life.name, [None], copy_data=True)
    life.killed_at("sync_caught_up", stays=True)
    server.advance_slot("pgbridge_forked_sync")
    server.advance_slot("forked")
    upgrade(life, server)
    assert life.pgbridge("origin", "forked", "--upgraded").code == 0
    server.execute(matrix.each(matrix.CHANGES) + matrix.CHANGES.format("c"))
    life.caught_up()
    assert copies(life) == ["public.c"]
    assert life.differences((*matrix.TABLES, "c")) == []


def test_a_server_that_pg_upgrade_did_not_make(lives, private_server):
    """It has the tables, the publication and a slot of the same names."""
    life = begun(lives, private_server)
    private_server.replace()
    life.set_options(connection=private_server.conninfo)
    private_server.execute("CREATE TABLE other (); " + matrix.SCHEMA + "CREATE PUBLICATION pub FOR TABLE a, b")
    private_server.grow(5)
    private_server.query("SELECT pg_create_logical_replication_slot('forked', 'pgoutput')")
    refused(life)
    done = life.pgbridge("origin", "forked", "--upgraded")
    assert done.code == 1
    assert 'was not made by pg_upgrade of the one that the subscription began with: table "public.a"' in done.err


def test_without_its_slot(lives, private_server):
    life = begun(lives, private_server)
    private_server.drop_slot("forked")
    upgrade(life, private_server)
    done = life.pgbridge("origin", "forked", "--upgraded")
    assert done.code == 1
    assert 'replication slot "forked" does not exist' in done.err


def test_what_only_the_old_server_could_have_finished(lives, private_server):
    """pg_upgrade refuses such a server; so it is one that somebody has moved the slot on."""
    life = begun(lives, private_server)
    private_server.execute(matrix.each(matrix.CHANGES))
    life.killed_at("table_committed")
    private_server.advance_slot("forked")
    upgrade(life, private_server)
    done = life.pgbridge("origin", "forked", "--upgraded")
    assert done.code == 1
    assert 'subscription "forked" has a batch that was begun and not finished' in done.err
