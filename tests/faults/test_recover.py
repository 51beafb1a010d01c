"""A lost state directory: made anew from the tables, the manifest and the slot, whatever was under way.

The tables are in memory, except where it is Delta that refuses. `test_matrix` has each fault point with Delta tables.
"""

from __future__ import annotations

import re
import threading

import pytest

from pgbridge.bridge.catalog import manifest, refresh
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamp_options
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.recovery.manifest_table import record
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import (
    NeedsResync,
    PublisherError,
    PublisherWentBack,
    SlotAdvanced,
    StateError,
    StoreError,
    TakenOver,
)
from pgbridge.bridge.track.spool import SpoolFile
from pgbridge.protocol.lsn import Lsn
from tests.faults import test_matrix as matrix
from tests.faults.lives import equal_or_refused
from tests.simulation.lake import Manifests

IN_MEMORY = [*faults.FAULT_POINTS, *faults.REFRESH_POINTS, "table_waits"]
COPIED = {
    "slot_created": ["public.a", "public.b"],
    "table_copied": ["public.a", "public.b"],
    "refresh_taken": ["public.c"],
    "manifest_written": ["public.c"],
    "table_waits": ["public.a"],
}
"""What is copied after the recovery: only what was not copied to its end, or has to be copied again in any case."""


def recovery_of(error: BaseException | None) -> str:
    """The hint of an error that says that the state was lost."""
    assert isinstance(error, StateError), repr(error)
    assert "pgbridge recover" in error.hint
    return error.hint


def copies(life) -> list[str]:
    """The tables that the last life has begun to copy, by their names: several are copied at the same time."""
    return sorted(event["relation"] for event in life.events if event["event"] == "table copy started")


@pytest.mark.parametrize("point", IN_MEMORY)
def test_lost_when_killed_at_a_point(lives, private_server, point):
    server, scene_of = private_server, matrix.SCENES[point]
    server.execute(matrix.SCHEMA + "CREATE PUBLICATION pub FOR TABLE a, b")
    life = lives(**scene_of.options)
    scene = scene_of(life, server, point)
    scene.begin()
    scene.go_on()
    life.killed_at(point, scene.number, stays=scene.stays)
    life.lose_state()
    scene.end()
    server.execute(matrix.each(matrix.LAST))
    error = life.live()
    if point in matrix.FIRST:  # nothing was recorded anywhere
        assert isinstance(error, PublisherError)
        assert "pg_drop_replication_slot" in error.hint
    else:
        assert life.name in recovery_of(error)
    life.remedy(error)
    refused = {"table_waits", "table_copied"}  # a resync is needed in any case; a table has rows already
    assert equal_or_refused(life, *scene.tables, positions=0) == ("refused" if point in refused else "equal")
    expected = COPIED.get(point, [])
    if point in refused:  # it may be refused before the other table's copy begins
        assert set(copies(life)) <= set(expected)
    else:
        assert copies(life) == expected


# --- what is not as usual -------------------------------------------------------------------------------------------


def begun(lives, server, **options):
    """A subscription of the tables a and b that has caught up."""
    server.execute(matrix.SCHEMA + "CREATE PUBLICATION pub FOR TABLE a, b")
    life = lives(**options)
    life.caught_up()
    return life


def test_what_would_become_of_it(lives, private_server):
    life = begun(lives, private_server)
    private_server.execute(matrix.each(matrix.CHANGES))
    life.killed_at("batch_committed")
    life.lose_state()
    slot_line, *lines = life.recover(dry_run=True)  # commits in memory have no time
    assert slot_line.startswith('replication slot "forked": the stream goes on at ')
    assert all("goes on; its changes up to " in line for line in lines[:2])
    assert lines[2:] == ["nothing is changed"]
    recovery_of(life.live())
    assert life.recover()[-1] == f"the state is made anew in {life.folder / 'state'}; start the daemon"
    assert equal_or_refused(life, *matrix.TABLES) == "equal"


def test_a_batch_of_which_a_table_has_a_part_is_undone(lives, private_server):
    """Of a table that is altered, the batch's commits come one after the other."""
    life = begun(lives, private_server)
    private_server.execute(f"ALTER TABLE a ADD COLUMN n int DEFAULT 7; {matrix.each(matrix.CHANGES)}")
    life.killed_at("table_committed")
    life.lose_state()
    life.recover()
    assert life.bridge.catalog.batch(life.name).must_be_undone
    assert equal_or_refused(life, *matrix.TABLES) == "equal"
    assert copies(life) == []


def test_a_server_that_has_forgotten_what_was_confirmed_last(lives, private_server):
    """A slot's position is on its disk at checkpoints only; what the manifest relies on must not come again."""
    life = begun(lives, private_server, two_phase=True)
    private_server.save("before")
    private_server.execute(f"BEGIN; {matrix.each(matrix.CHANGES)} PREPARE TRANSACTION 'p'")
    life.caught_up()
    private_server.execute("COMMIT PREPARED 'p'")
    life.caught_up()
    known = life.bridge.remote_lsn()
    slot_lsn = private_server.query("SELECT confirmed_flush_lsn FROM pg_replication_slots")[0][0]
    life.lose_state()
    lines = life.recover()
    assert str(max(known, Lsn.parse(slot_lsn))) in lines[0]
    assert equal_or_refused(life, *matrix.TABLES) == "equal"


def all_is_copied_again(life):
    """By a recovery, without the slot."""
    assert life.recover()[0] == 'replication slot "forked" is gone: all tables are copied again, with another slot'
    life.caught_up()
    assert copies(life) == ["public.a", "public.b"]
    assert life.differences(matrix.TABLES) == []


def test_a_server_that_went_back_is_told_at_once(lives, private_server):
    """Once it has written as much again, nothing would tell."""
    life = begun(lives, private_server, two_phase=True)
    private_server.save("before")
    private_server.execute(f"BEGIN; {matrix.each(matrix.CHANGES)} PREPARE TRANSACTION 'p'")
    life.caught_up()
    private_server.execute("COMMIT PREPARED 'p'")
    life.caught_up()
    private_server.switch_to("before")
    life.lose_state()
    with pytest.raises(PublisherWentBack) as caught:
        life.recover()
    assert "to copy all tables again, run on the server:" in caught.value.hint
    life.remedy(caught.value)
    private_server.execute(matrix.each(matrix.CHANGES))
    all_is_copied_again(life)


def test_what_tables_have_and_the_server_has_not_is_undone(lives, private_server):
    """Also if it has written as much again when the daemon is started."""
    life = begun(lives, private_server)
    private_server.save("before")
    private_server.execute(matrix.each(matrix.CHANGES))
    life.killed_at("batch_committed")
    private_server.switch_to("before")
    life.lose_state()
    lines = life.recover()
    assert ["are undone" in line for line in lines if line.startswith("public.")] == [True, True]
    private_server.execute(matrix.each(matrix.LAST))
    assert equal_or_refused(life, *matrix.TABLES) == "equal"
    assert copies(life) == []


@pytest.mark.parametrize("end", ["COMMIT PREPARED 'p'", "ROLLBACK PREPARED 'p'"])
def test_the_changes_of_a_prepared_transaction_are_lost(lives, private_server, end):
    """The server sends them once. The tables that it changes are copied again, once it has ended."""
    life = begun(lives, private_server, two_phase=True)
    private_server.execute(f"BEGIN; {matrix.CHANGES.format('a')} PREPARE TRANSACTION 'p'")
    life.caught_up()
    assert [row.gid for row in life.bridge.catalog.prepared(life.name)] == ["p"]
    life.lose_state()
    assert 'public.a: copied again, once prepared transactions have ended: "p"' in life.recover()
    private_server.execute(matrix.LAST.format("b"))
    private_server.execute(end)
    life.caught_up()
    assert copies(life) == ["public.a"]
    assert life.differences(matrix.TABLES) == []
    assert life.bridge.catalog.prepared(life.name) == []


def test_its_changes_are_there_if_only_the_catalog_is_lost(lives, private_server):
    life = begun(lives, private_server, two_phase=True)
    private_server.execute(f"BEGIN; {matrix.CHANGES.format('a')} PREPARE TRANSACTION 'p'")
    life.caught_up()
    life.lose_state("catalog.sqlite")
    life.recover()
    private_server.execute("COMMIT PREPARED 'p'")
    life.caught_up()
    assert copies(life) == []
    assert life.differences(matrix.TABLES) == []


def test_without_the_slot_all_is_copied_again(lives, private_server):
    life = begun(lives, private_server)
    private_server.drop_slot("forked")
    private_server.execute(matrix.each(matrix.CHANGES))
    life.lose_state()
    all_is_copied_again(life)


def test_a_table_that_waits_still_waits(lives, private_server):
    life = begun(lives, private_server)
    private_server.execute("ALTER TABLE a ALTER w TYPE int USING length(w); INSERT INTO a VALUES (7, 'x', 1)")
    assert isinstance(life.live(), NeedsResync)
    private_server.execute(matrix.each(matrix.CHANGES))
    assert isinstance(life.live(), NeedsResync), "the others have gone on"
    life.lose_state()
    assert any(line.startswith("public.a: waits for its resync: column") for line in life.recover())
    assert equal_or_refused(life, *matrix.TABLES, positions=0) == "refused"
    assert copies(life) == ["public.a"]


def test_nothing_is_confirmed_that_the_warehouse_does_not_know(lives, private_server, monkeypatch):
    """A table that waits has less than the others: if that were lost, its changes would be, too."""
    life = begun(lives, private_server)
    confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots"
    before = private_server.query(confirmed)

    def full(*_):
        raise StoreError("the store has no room")

    monkeypatch.setattr(Manifests, "append", full)
    private_server.execute(f"ALTER TABLE a ALTER w TYPE int USING length(w); {matrix.each(matrix.CHANGES)}")
    assert isinstance(life.live(), StoreError)
    assert private_server.query(confirmed) == before
    monkeypatch.undo()
    assert isinstance(life.live(), NeedsResync)
    assert private_server.query(confirmed) > before


def test_a_state_that_was_put_back_from_a_backup(lives, private_server):
    """It stays. If it is older than the tables, it is moved away, as the HINT says."""
    life = begun(lives, private_server)
    life.save_state()
    private_server.execute(matrix.each(matrix.CHANGES))
    life.caught_up()
    life.put_back_state()
    error = life.live()
    assert isinstance(error, SlotAdvanced)
    assert "if state_dir was put back from a backup, and the warehouse was not, move it away" in error.hint
    with pytest.raises(StateError, match='has the state of "forked"') as caught:
        life.recover()
    assert "move the directory away, and repeat the command" in caught.value.hint
    life.lose_state()
    life.recover()
    assert equal_or_refused(life, *matrix.TABLES) == "equal"
    assert copies(life) == []


def test_nothing_is_known_of_another_slot(lives, private_server):
    life = begun(lives, private_server)
    life.lose_state()
    life.set_options(slot_name="another")
    with pytest.raises(StateError, match='has nothing of subscription "forked" with the slot "another"'):
        life.recover()


def test_a_slot_that_another_daemon_uses(lives, private_server):
    life = begun(lives, private_server)
    life.lose_state()
    with ReplicationConnection(private_server.conninfo, application_name="another") as another:
        options = "(proto_version '1', publication_names 'pub')"
        another.connection.pgconn.exec_(f"START_REPLICATION SLOT forked LOGICAL 0/0 {options}".encode())
        with pytest.raises(PublisherError, match="is in use by process"):
            life.recover()
    life.recover()
    life.caught_up()


def test_one_that_was_dropped_begins_anew(lives, private_server):
    life = begun(lives, private_server)
    assert life.pgbridge("drop", life.name).code == 0
    assert life.pgbridge("enable", life.name).code == 0
    life.set_options(target__adopt=True)
    life.caught_up()
    assert copies(life) == ["public.a", "public.b"]


def test_a_daemon_that_lives_on_cannot_commit_its_batch(delta_lives, private_server):
    """It was cut off, and the slot with it; Delta refuses what it commits late."""
    life = begun(delta_lives, private_server)
    row = life.bridge.catalog.subscription(life.name)
    private_server.execute(matrix.each(matrix.CHANGES))
    life.killed_at("table_begun")
    end_lsn = life.bridge.catalog.batch(life.name).end_lsn
    life.lose_state()
    written_at = life.recover()[1]
    at = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    again = "if they were put back from a backup since, run afterwards: pgbridge resync forked"
    assert re.fullmatch(f"the Delta tables were last written to at {at}; {again}", written_at)
    before = life.version("a")
    late = CommitStamp(row.batch_app_id, Lsn(end_lsn - 1), end_lsn)
    rows = life.spark.sql("SELECT 999 AS id, 'late' AS v, NULL AS w")
    append_rows(rows, str(life.path("a")), stamp_options(late))
    assert life.version("a") == before
    assert equal_or_refused(life, *matrix.TABLES) == "equal"
    assert copies(life) == []


# --- documents ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", matrix.FIRST)
def test_the_document_of_an_earlier_life_is_none_of_the_next(lives, private_server, point):
    """After a resync the slot has the same name, and stands where it was made again."""
    life = begun(lives, private_server, workers__max_sync_workers=1)
    assert life.pgbridge("resync", life.name).code == 0
    private_server.execute(matrix.each(matrix.CHANGES))
    life.killed_at(point)
    life.lose_state()
    recovery_of(life.live())
    assert "all tables are copied" in life.recover()[0]
    private_server.execute(matrix.each(matrix.OTHERS))
    life.caught_up()
    assert copies(life) == ["public.a", "public.b"]
    assert life.differences(matrix.TABLES) == []


def test_an_older_document_is_never_the_last(lives, private_server, monkeypatch):
    """The subscription's worker and its tablesync worker write documents at the same time."""
    life = begun(lives, private_server)
    catalog, spark, subscription = life.bridge.catalog, life.spark, life.bridge.subscription
    append, slow, go_on = Manifests.append, threading.Event(), threading.Event()

    def slowly(*arguments):
        if threading.current_thread().name == "slow":
            slow.set()
            assert go_on.wait(60)
        return append(*arguments)

    monkeypatch.setattr(Manifests, "append", slowly)
    refresh.ask(catalog, life.name, [None], copy_data=True)
    thread = threading.Thread(target=record, args=(spark, catalog, subscription), name="slow")
    lock = threading.Lock()
    monkeypatch.setattr(Manifests, "lock_of", lambda *_: lock)
    thread.start()
    assert slow.wait(60)
    refresh.have_wait(catalog, life.name, [("public", "a")], "why", 1.0)
    other = threading.Thread(target=record, args=(spark, catalog, subscription))
    other.start()
    other.join(0.3)
    go_on.set()
    thread.join(30)
    other.join(30)
    assert not manifest.is_due(catalog, life.name)
    life.lose_state()
    assert "public.a: waits for its resync: why" in life.recover(dry_run=True)


def test_one_that_was_not_marked_as_written_is_replaced(lives, private_server):
    """What it says was taken back before the next one."""
    life = begun(lives, private_server)
    refresh.ask(life.bridge.catalog, life.name, [("public", "a")], copy_data=True)
    life.killed_at("manifest_written", stays=True)
    with life.bridge.catalog.transaction() as db:
        db.execute("DELETE FROM refresh")
    life.caught_up()
    life.lose_state()
    life.recover()
    assert refresh.asked(life.bridge.catalog, life.name) == []


def test_a_recovery_that_was_cut_short(lives, private_server, monkeypatch):
    """The empty file of a prepared transaction is not taken for its changes."""
    life = begun(lives, private_server, two_phase=True)
    private_server.execute(f"BEGIN; {matrix.CHANGES.format('a')} PREPARE TRANSACTION 'p'")
    life.caught_up()
    life.lose_state()

    keep = SpoolFile.keep

    def kept_and_full(*arguments):
        keep(*arguments)
        raise StateError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(SpoolFile, "keep", kept_and_full)
        with pytest.raises(StateError, match="the disk is full"):
            life.recover()
    assert 'public.a: copied again, once prepared transactions have ended: "p"' in life.recover()
    private_server.execute("COMMIT PREPARED 'p'")
    life.caught_up()
    assert copies(life) == ["public.a"]
    assert life.differences(matrix.TABLES) == []


def test_one_that_was_dropped_stays_dropped(lives, private_server):
    life = begun(lives, private_server)
    assert life.pgbridge("drop", life.name).code == 0
    with pytest.raises(StateError, match="has the state of"):
        life.recover()
    assert not life.bridge.catalog.subscription(life.name).enabled


def test_one_that_is_disabled_stays_disabled(lives, private_server):
    life = begun(lives, private_server)
    assert life.live(until=lambda: disabled(life)) is None
    life.lose_state()
    life.recover()
    assert not life.bridge.catalog.subscription(life.name).enabled


def disabled(life) -> bool:
    """Disable it while it runs; it ends by itself."""
    life.bridge.catalog.set_enabled(life.name, enabled=False)
    return False


def test_documents_that_somebody_has_removed_are_written_again(lives, private_server):
    life = begun(lives, private_server)
    life.spark.lake.manifests.clear()
    life.caught_up()
    life.lose_state()
    life.recover()
    life.caught_up()
    assert copies(life) == []


def test_the_state_that_was_lost_comes_back(lives, private_server):
    """It is another daemon's by now: what it would write is older, and it must not go on."""
    life = begun(lives, private_server)
    life.save_state()
    life.lose_state()
    life.recover()
    life.caught_up()
    life.put_back_state()
    refresh.ask(life.bridge.catalog, life.name, [("public", "a")], copy_data=True)
    error = life.live()
    assert isinstance(error, TakenOver)
    assert 'subscription "forked" was taken over' in str(error)


@pytest.mark.parametrize("mode", ["history", "changelog"])
def test_a_table_that_keeps_what_was_waits(lives, private_server, mode):
    """A copy would begin its history anew: that is for the operator to decide."""
    life = begun(lives, private_server, two_phase=True, mode=mode)
    private_server.execute(f"BEGIN; {matrix.CHANGES.format('a')} PREPARE TRANSACTION 'p'")
    life.caught_up()
    life.lose_state()
    assert any(line.startswith("public.a: changes of prepared transactions are lost") for line in life.recover())
    (waiting,) = refresh.waiting(life.bridge.catalog, life.name)
    assert "once they have ended, copy the table afresh: pgbridge refresh forked --resync public.a" in str(
        waiting.waits
    )
    private_server.execute("COMMIT PREPARED 'p'")
    assert life.pgbridge("refresh", "forked", "--resync", "public.a").code == 0
    life.caught_up()
    assert copies(life) == ["public.a"]


def test_several(lives, private_server):
    """One without a slot may have been dropped: it is copied again only if it is named."""
    life = begun(lives, private_server)
    private_server.drop_slot("forked")
    life.lose_state()
    other = life.bridge.subscription.model_copy(update={"name": "other", "slot_name": "other"})
    lines, error = life.recover_all(other)
    assert 'forked: not recovered: replication slot "forked" is gone or lost' in lines[0]
    assert "to have all its tables copied again, with another slot, run: pgbridge recover forked" in lines[0]
    assert lines[1].startswith("other: not recovered: ")
    assert str(error) == "2 of 2 subscriptions are not recovered"
    life.recover()
    life.caught_up()
    assert copies(life) == ["public.a", "public.b"]
