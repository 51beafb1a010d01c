"""Positions that the server does not have: each test ends with equal tables, or with a refusal whose HINT helps.

What a subscription knows to be durable is a position in one history of its server: its origin, a batch that was cut
short, each table's copy, and the position of added tables. A promoted standby, a backup of the state or of a table, and
an operator at the slot each make one of them wrong. Rows 11 to 15 are those that the old primary alone has had.

The tables are in memory, except where what went back is a Delta table, or Delta's stamps.
"""

from __future__ import annotations

import time

import pytest

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.receive.stream import walreceiver
from pgbridge.protocol.codec import walsender
from tests.faults.lives import Crash, equal_or_refused, refused

ROWS = "INSERT INTO {table} SELECT n, '{text}' FROM generate_series({first}, {last}) n;"
KEYED = "CREATE TABLE {table} (id int PRIMARY KEY, v text);" + ROWS.format(
    table="{table}", text="common", first=1, last=5
)
AFTER = "INSERT INTO {table} VALUES (201, 'after');"


def rows(*tables: str, first: int, last: int, text: str) -> str:
    """Statements that insert rows into each table."""
    return "".join(ROWS.format(table=table, first=first, last=last, text=text) for table in tables)


def lost(*tables: str) -> str:
    """Rows that the old primary has, and the new one does not."""
    return rows(*tables, first=11, last=15, text="lost with the old primary")


def new(*tables: str) -> str:
    """Rows that the new primary has in their place."""
    updates = "".join(f"UPDATE {table} SET v = 'updated on the new primary' WHERE id = 1;" for table in tables)
    return rows(*tables, first=101, last=103, text="new primary") + updates


def made(lives, server, *tables, published=(), **options):
    """A subscription that has copied its tables."""
    server.execute("".join(KEYED.format(table=table) for table in tables))
    server.execute(f"CREATE PUBLICATION pub FOR TABLE {', '.join(published or tables)}")
    life = lives(**options)
    life.caught_up()
    return life


def goes_on(server, *tables):
    """The new primary's history becomes longer than what is durable, and has something to send there."""
    server.grow(5)  # more than any test writes after its copy
    server.execute("".join(AFTER.format(table=table) for table in tables))


# --- a batch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("longer", [False, True], ids=["shorter", "longer"])
def test_a_batch_that_was_cut_short_is_not_finished_with_other_transactions(lives, private_server, longer):
    """It ends beyond the point where the new primary left the timeline, perhaps also beyond its WAL."""
    server = private_server
    life = made(lives, server, "a", "b")
    server.save("standby")
    server.grow()
    server.execute(lost("a", "b"))
    life.killed_at("table_committed")
    server.switch_to("standby")
    server.execute(new("a", "b"))
    if longer:
        goes_on(server, "a", "b")
    equal_or_refused(life, "a", "b")


# --- tables beyond the origin ---------------------------------------------------------------------------------------


def test_a_table_that_was_copied_beyond_what_the_standby_has(lives, private_server):
    """The documented way to fail over: the stream waits for the standby, the copy of an added table does not."""
    server = private_server
    life = made(lives, server, "a", "b", published=("a",), failover=True, workers__max_sync_workers=1)
    server.execute("ALTER PUBLICATION pub ADD TABLE b")
    server.query("SELECT pg_create_physical_replication_slot('standby', true)")
    server.postgres.settings["synchronized_standby_slots"] = "standby"
    server.save("standby")
    server.execute(lost("a", "b"))
    server.grow()
    refresh.ask(life.bridge.catalog, life.name, [None], copy_data=True)
    life.killed_at("handed_over", stays=True)
    assert life.bridge.catalog.remote_lsn(life.name) < server.confirmed("pgbridge_forked_sync")
    del server.postgres.settings["synchronized_standby_slots"]
    server.switch_to("standby")
    server.execute(new("a", "b"))
    assert equal_or_refused(life, "a", "b") == "refused" or life.warned_of("b")


def test_a_table_of_a_copy_that_was_cut_short(lives, private_server):
    """The first table is copied under a later snapshot than the origin's, the second is not when the primary dies."""
    server = private_server
    server.execute(KEYED.format(table="a") + KEYED.format(table="b") + "CREATE PUBLICATION pub FOR TABLE a, b")
    life = lives(workers__max_sync_workers=1)
    life.killed_at("table_copied")
    server.save("standby")
    server.execute(lost("a", "b"))
    server.grow()
    life.killed_at("table_copied", 2)
    assert sorted(rel.state for rel in life.bridge.catalog.rels(life.name)) == ["d", "f"]
    server.switch_to("standby")
    server.execute(new("a", "b"))
    assert equal_or_refused(life, "a", "b") == "refused" or life.warned_of("a")


STUCK = "CREATE TABLE a (id int PRIMARY KEY, at timestamp); INSERT INTO a VALUES (1, now()::timestamp)"


def stuck(lives, server):
    """A subscription that cannot go on, to which a table is added; the standby has no more than that."""
    server.execute(STUCK + "; CREATE PUBLICATION pub FOR TABLE a;" + KEYED.format(table="b"))
    life = lives(workers__max_sync_workers=1)
    life.caught_up()
    server.execute("ALTER PUBLICATION pub ADD TABLE b; INSERT INTO a VALUES (6, 'infinity')")
    server.save("standby")
    server.execute(lost("b"))
    server.grow()
    refresh.ask(life.bridge.catalog, life.name, [None], copy_data=True)
    return life


def promoted_and_unstuck(life, server):
    """The operator does what the HINT says, after the promotion."""
    server.switch_to("standby")
    server.execute(new("b"))
    life.set_options(unrepresentable="null")
    server.execute("DELETE FROM a WHERE id = 6")


def test_a_table_that_is_handed_over_while_the_subscription_is_stuck(lives, private_server):
    """It is at the position of its own stream, which the new primary does not have."""
    server = private_server
    life = stuck(lives, server)
    life.killed_at("sync_caught_up", stays=True)
    promoted_and_unstuck(life, server)
    assert equal_or_refused(life, "a", "b") == "refused" or life.warned_of("b")


def test_a_copy_at_a_lower_lsn_than_the_one_before(lives, private_server):
    """The copy before it is committed, but not recorded; its LSN is one that the new primary has not reached."""
    server = private_server
    life = stuck(lives, server)
    life.killed_at("table_copied", stays=True)
    promoted_and_unstuck(life, server)
    equal_or_refused(life, "a", "b")


# --- between the checks and the stream ------------------------------------------------------------------------------


@pytest.fixture
def in_the_window(monkeypatch):
    """Has something happen once, at the first call of a function."""

    def hook(owner, name, happens):
        happened: list[bool] = []
        before = getattr(owner, name)

        def hooked(*arguments, **options):
            if not happened:
                happened.append(True)
                happens()
            return before(*arguments, **options)

        monkeypatch.setattr(owner, name, hooked)
        return happened

    return hook


@pytest.mark.parametrize(
    ("owner", "name"),
    [(walreceiver.WalReceiver, "__init__"), (walsender, "start_replication")],
    ids=["before the stream's connection", "before START_REPLICATION"],
)
def test_a_slot_that_is_advanced_after_it_was_checked(lives, private_server, in_the_window, owner, name):
    """PostgreSQL forwards the start of the stream to what the slot has confirmed, and does not say so."""
    server = private_server
    life = made(lives, server, "a")
    server.execute(lost("a"))
    happened = in_the_window(owner, name, lambda: server.advance_slot(life.name))
    equal_or_refused(life, "a")
    assert happened


def test_a_server_that_is_replaced_after_it_was_checked(lives, private_server, in_the_window):
    """Several hosts, or an address that moves: the stream is from another server than the one that was asked."""
    server = private_server
    life = made(lives, server, "a", schema_evolution="strict")
    server.save("standby")
    server.grow()
    server.execute(lost("a"))
    life.caught_up()

    def replaced():
        server.switch_to("standby")
        server.execute(new("a"))
        goes_on(server, "a")

    happened = in_the_window(walreceiver.WalReceiver, "__init__", replaced)
    equal_or_refused(life, "a")
    assert happened


def test_a_look_at_a_standby_does_not_make_the_timeline_unknown(lives, private_server):
    """An address that leads to a standby for a moment, and then to a primary that lacks what is durable."""
    server = private_server
    life = made(lives, server, "a")
    server.save("early")
    server.execute(lost("a"))
    life.caught_up()
    server.save("standby")
    server.switch_to("standby", promote=False)
    outcome = life.live()
    if outcome is not None:
        refused(outcome, positions=0)
    server.switch_to("early")
    server.execute(new("a"))
    goes_on(server, "a")
    equal_or_refused(life, "a")


# --- tables and state from a backup ---------------------------------------------------------------------------------

CHANGED = "UPDATE a SET v = 'changed' WHERE id = 2;" + lost("a")
KEYLESS = "CREATE TABLE bag (n int); ALTER TABLE bag REPLICA IDENTITY FULL; INSERT INTO bag VALUES (1), (1), (2);"


@pytest.mark.parametrize("meanwhile", ["", "INSERT INTO a VALUES (202, 'meanwhile')"], ids=["idle", "more changes"])
def test_a_table_that_is_put_back_from_a_backup(delta_lives, private_server, meanwhile):
    """It lacks the changes since; the stream goes on after them."""
    server = private_server
    life = made(delta_lives, server, "a")
    life.save_table("a")
    server.execute(CHANGED)
    life.caught_up()
    life.put_back_table("a")
    if meanwhile:
        server.execute(meanwhile)
    equal_or_refused(life, "a", words=["public.a"])


def test_a_table_that_is_restored_by_hand(delta_lives, private_server):
    """Its log still has the stamps of what it lacks."""
    server = private_server
    life = made(delta_lives, server, "a")
    version = life.version("a")
    server.execute(CHANGED)
    life.caught_up()
    life.spark.sql(f"RESTORE delta.`{life.path('a')}` TO VERSION AS OF {version}").collect()
    server.execute(AFTER.format(table="a"))
    equal_or_refused(life, "a", words=["public.a"])


def test_a_table_that_forgets_its_stamps(delta_lives, private_server):
    """`delta.setTransactionRetentionDuration`: Delta would take a finished commit for one that it does not have."""
    server = private_server
    server.execute(KEYLESS + "CREATE PUBLICATION pub FOR TABLE bag")
    life = delta_lives()
    life.caught_up()
    life.spark.sql(
        f"ALTER TABLE delta.`{life.path('bag')}` "
        "SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 1 second')"
    ).collect()
    server.execute("INSERT INTO bag VALUES (1), (3), (3)")
    outcome = life.live("table_committed")
    if not isinstance(outcome, Crash):
        assert outcome is not None, "the fault point was not passed"
        refused(outcome, positions=0, words=["delta.setTransactionRetentionDuration"])
        life.spark.sql(
            f"ALTER TABLE delta.`{life.path('bag')}` UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration')"
        ).collect()
    time.sleep(2)  # longer than the retention
    equal_or_refused(life, "bag", positions=0)


def test_a_state_directory_that_is_put_back_and_has_an_earlier_epoch(delta_lives, private_server):
    """Origin and slot agree; but the tables' logs have the stamp of a batch that was undone since the backup."""
    server = private_server
    server.execute(KEYLESS + "CREATE PUBLICATION pub FOR TABLE bag")
    life = delta_lives()
    life.caught_up()
    life.save_state()
    server.execute("INSERT INTO bag VALUES (1), (3), (3)")
    life.killed_at("batch_committed")
    undone = life.live("batch_undone")
    assert undone is None or isinstance(undone, Crash)
    life.put_back_state()
    equal_or_refused(life, "bag")


def test_an_undo_touches_the_tables_of_its_batch_alone(lives, private_server):
    """Six tables; the batch that was cut short, while its tables were flushed, has changes of one."""
    server = private_server
    tables = [f"t{number}" for number in range(6)]
    life = made(lives, server, *tables)
    server.execute(lost("t3"))
    life.killed_at("batch_committed")
    before = {table: life.version(table) for table in tables}
    assert equal_or_refused(life, *tables) == "equal"
    touched = {table for table in tables if life.version(table) != before[table]}
    assert touched <= {"t3"}
