"""What a table has is found in its history by what the latest version contains: what was restored does not count."""

from __future__ import annotations

import pytest

from pgbridge.bridge.lake.log.commit_info import Commit
from pgbridge.bridge.lake.log.history import History
from pgbridge.bridge.runtime.errors import TargetError
from tests.bridge.lake.made_history import (
    BEFORE,
    COPY_ID,
    EARLIER,
    FAMILY,
    ME,
    UPKEEP,
    back_to,
    by_command,
    fence,
    history,
    mine,
    theirs,
)

# --- the position of a table ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "version"),
    [
        ((), 1),
        ((UPKEEP, theirs()), 1),
        ((mine(0x20),), 2),
        ((mine(0x20), mine(0x30, f"{FAMILY}4"), UPKEEP), 3),
        ((mine(0x20, part=True), mine(0x20)), 3),  # the last one has all of it
        ((mine(0x20, part=True), back_to(1, ME)), 1),
        ((fence(0x30),), 1),
        ((mine(0x20), back_to(1, ME), fence(0x20)), 1),
        ((mine(0x20), back_to(1)), 1),  # by hand: the table is where it was
        ((mine(0x20), mine(0x30), back_to(2), UPKEEP), 2),
        ((mine(0x20), back_to(1), back_to(2)), 2),
        ((mine(0x20), theirs(), back_to(3)), 2),
        # a replayed transaction, and other subscriptions, say nothing of it
        ((by_command(0x20),), 1),
        ((mine(0x20, "pgbridge/1/other/inc/0"), mine(0x20, "pgbridge/1/subs/inc/0")), 1),
        ((mine(0x5, COPY_ID),), 2),  # copied afresh, of a server that went back
    ],
)
def test_the_commit_that_has_the_position(after, version):
    own = history(*BEFORE, *after)[0].own((FAMILY,))
    assert own is not None
    assert own.version == version


def test_a_table_without_a_commit_of_the_subscription():
    """Restored to before the first one, say."""
    for made in ((), (theirs("CREATE TABLE"), theirs()), (*BEFORE, back_to(0)), (theirs("CREATE TABLE"), fence())):
        assert history(*made)[0].own((FAMILY,)) is None
    assert history(*BEFORE)[0].own(("pgbridge/1/sub/later/",)) is None
    assert history(*BEFORE)[0].own(("pgbridge/1/sub/later/", "pgbridge/1/sub/")) is not None


def test_a_part_of_a_batch_is_no_position():
    """The rest of it does not come again by itself: the state directory knew more when it was written."""
    with pytest.raises(TargetError, match=r"version 2 has a part of a batch that ends at 0/20") as caught:
        history(*BEFORE, mine(0x20, part=True), UPKEEP)[0].own((FAMILY,), 0x10)
    assert "RESTORE TABLE delta.`/lake/t` TO VERSION AS OF 1" in caught.value.hint
    own = history(*BEFORE, mine(0x20, part=True), UPKEEP, back_to(1))[0].own((FAMILY,))
    assert own is not None
    assert own.version == 1


def test_a_restore_to_a_time_is_refused():
    """Which version that is, is not told; once it is set right by number, all goes on."""
    commits = (*BEFORE, mine(0x20), back_to(None), UPKEEP)
    with pytest.raises(TargetError, match=r"version 3 is a RESTORE to a time") as caught:
        history(*commits)[0].own((FAMILY,))
    assert "RESTORE TABLE delta.`/lake/t` TO VERSION AS OF 2, which is the one before" in caught.value.hint
    own = history(*commits, back_to(2))[0].own((FAMILY,))
    assert own is not None
    assert own.version == 2


def test_the_latest_commit_of_an_application_id():
    def version(*after, app_id=ME):
        latest = history(*BEFORE, *after)[0].latest_of(app_id)
        return latest and latest.version

    assert version() == 1
    assert version(app_id=EARLIER) is None
    assert version(mine(0x20), UPKEEP) == 2
    assert version(mine(0x20), UPKEEP, mine(0x30, EARLIER)) is None  # an id that is not the last one's
    assert version(fence()) == 1
    assert version(mine(0x20), back_to(1, ME)) == 1
    assert version(mine(0x20, part=True)) == 2
    assert version(mine(0x20, COPY_ID), app_id=COPY_ID) == 2


@pytest.mark.parametrize(
    ("after", "epoch"),
    [
        ((), 3),
        ((mine(0x20, f"{FAMILY}7"),), 7),
        ((mine(0x20), back_to(1, ME)), 4),  # undone, and so refused from then on
        ((mine(0x20), fence(0x30)), 4),
        ((mine(0x20), back_to(1)), 3),
        ((mine(0x20), mine(0x20, "pgbridge/1/other/inc/9"), mine(0x30, COPY_ID)), 3),
        ((mine(0x20), back_to(0)), 3),  # what was reverted by hand, Delta refuses all the same
    ],
)
def test_the_least_epoch_that_delta_does_not_refuse(after, epoch):
    made, _ = history(*BEFORE, *after)
    made.own((FAMILY,))
    assert made.least_epoch(FAMILY) == epoch
    assert made.least_epoch("pgbridge/1/sub/later/") == 0


# --- as of an LSN -----------------------------------------------------------------------------------------------------

COPY = mine(0x10, COPY_ID)


@pytest.mark.parametrize(
    ("commits", "versions"),
    [
        # the versions as of 0/10, 0/20, 0/25, 0/30
        ((COPY, mine(0x20), mine(0x30)), (0, 1, 1, 2)),
        ((COPY, mine(0x20), UPKEEP, mine(0x30), UPKEEP), (0, 2, 2, 4)),  # the same rows, in files that are kept longer
        ((COPY, mine(0x20), mine(0x20), mine(0x30)), (0, 2, 2, 3)),  # columns changed first, or several parts
        ((COPY, mine(0x20), theirs(), mine(0x30)), (0, 2, 2, 3)),  # somebody else's rows were to be seen then
        ((COPY, mine(0x30)), (0, 0, 0, 1)),  # no change of this table
        # a batch that was undone, and applied again in parts
        ((COPY, mine(0x30), back_to(0, ME), mine(0x20, ME[:-1] + "4"), mine(0x30, ME[:-1] + "4")), (2, 3, 3, 4)),
        ((COPY, mine(0x30), back_to(0, ME)), (2, 2, 2, 2)),
        # a replayed transaction is there from the batch on that follows the replay; so are those of earlier versions,
        # whose commits have the transaction's own LSN only
        ((COPY, mine(0x20), by_command(0x15, after=0x20), mine(0x30)), (0, 1, 2, 3)),
        ((COPY, mine(0x20), by_command(0x15, after=0x20), UPKEEP, mine(0x30)), (0, 1, 3, 4)),
        ((COPY, mine(0x20), by_command(0x18, after=0x28), theirs(), mine(0x30)), (0, 1, 1, 4)),
        ((COPY, mine(0x20), by_command(0x22), mine(0x30)), (0, 1, 2, 3)),
        ((COPY, mine(0x20), by_command(0x15, "repair"), mine(0x30)), (0, 2, 2, 3)),
        # copied afresh: before the second copy the first one counts
        ((COPY, mine(0x20), mine(0x25, "pgbridge/1/sub:sync/inc/copy"), mine(0x30)), (0, 1, 2, 3)),
        ((theirs("CREATE TABLE"), mine(0x20)), (0, 1, 1, 1)),  # without a copy
    ],
)
def test_the_version_as_of_an_lsn(commits, versions):
    assert tuple(history(*commits)[0].as_of(lsn) for lsn in (0x10, 0x20, 0x25, 0x30)) == versions


def test_a_transaction_that_was_replayed_is_there_as_a_whole():
    """Both tables have it, or none: also where only one of them has a batch between the transaction and its replay."""
    changed = history(COPY, mine(0x20), mine(0x30), by_command(0x25, after=0x30), mine(0x40))[0]
    idle = history(COPY, mine(0x20), by_command(0x25, after=0x30))[0]
    assert [(changed.as_of(lsn), idle.as_of(lsn)) for lsn in (0x20, 0x30, 0x40)] == [(1, 1), (2, 1), (4, 2)]
    assert (idle.as_of(0x30), idle.as_of(0x30, replayed=True)) == (1, 2), "what is replayed is verified, too"
    replay = [Commit(900, "MERGE", f"{FAMILY}replay-0-25.1", "0/25", start_lsn="0/30")]
    cut = History("/lake/t", lambda latest: replay[:latest])  # all before it is older than the log's retention
    assert (cut.as_of(0x20), cut.has_after(0x20), cut.has_after(0x40)) == (None, True, False)


def test_what_a_table_contained_before_a_restore_by_hand():
    """An undo that reverted another writer is told where it stands; not any more once somebody has put that right."""
    put_right = history(*BEFORE, mine(0x20), theirs(), back_to(1, ME), back_to(3))[0]
    assert [commit.version for commit in put_right.commits()] == [3, 2, 1, 0]
    assert [[commit.version for commit in before] for before in put_right.before_restores(2)] == [[1, 0]]
    assert [*put_right.before_restores(5)] == []


def test_a_history_that_does_not_go_back_so_far():
    commits = [Commit(i, "MERGE", ME, f"0/{i:X}") for i in range(500, 600)]
    found = History("/lake/t", lambda latest: commits[::-1][:latest])
    assert found.as_of(550) == 550
    assert found.as_of(499) is None
    assert (found.oldest, found.latest, found.has_after(598), found.has_after(599)) == (500, 599, True, False)
    assert History("/lake/t", lambda _: ()).as_of(1) is None


def test_vacuum_removes_what_ended_before_its_retention():
    hour_ms = 3_600_000
    commits = [
        Commit(0, "WRITE", made_ms=0),
        Commit(1, "MERGE", made_ms=hour_ms),
        Commit(2, "MERGE", made_ms=9 * hour_ms),
        Commit(3, "VACUUM START", made_ms=10 * hour_ms, retention_ms=5 * hour_ms),
        Commit(4, "VACUUM END", made_ms=10 * hour_ms),
        Commit(5, "MERGE", made_ms=10 * hour_ms),
    ]
    found = History("/lake/t", lambda latest: commits[::-1][:latest])
    found.commits()
    gone = [found.vacuumed(version) for version in range(6)]
    assert [commit and commit.version for commit in gone] == [3, None, None, None, None, None]
