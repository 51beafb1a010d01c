"""A batch is found in a table's history by what the table has: what was restored does not count."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from bridge.apply.delta.history import Commit, History
from bridge.errors import TargetError
from protocol.lsn import Lsn

ME = "pgbridge/1/sub/inc/3"


def mine(lsn, app_id=ME, **others):
    """A commit of a batch up to there."""
    return SimpleNamespace(operation="MERGE", origin=app_id, end_lsn=f"0/{lsn:X}", restored=None, **others)


def theirs(operation="WRITE", restored=None):
    """A commit of somebody else's."""
    return SimpleNamespace(operation=operation, origin="", end_lsn="", restored=restored)


def back_to(version, app_id=""):
    """A RESTORE; with an application id, an undo's."""
    end_lsn = "0/20" if app_id else ""
    return SimpleNamespace(operation="RESTORE", origin=app_id, end_lsn=end_lsn, restored=version)


def history(*commits):
    """The history of versions 0, 1, …, with how many of the latest were asked for, each time."""
    rows = [Commit(i, c.operation, c.origin, c.end_lsn, c.restored) for i, c in enumerate(commits)]
    asked = []

    def read(latest):
        asked.append(latest)
        return rows[::-1][:latest]

    return History("/lake/t", read), asked


BEFORE = (theirs("CREATE TABLE"), mine(0x10))
UPKEEP = theirs("OPTIMIZE")


@pytest.mark.parametrize(
    ("after", "first"),
    [
        ((), None),
        ((mine(0x20),), 2),
        ((mine(0x20), mine(0x20)), 2),  # columns changed first
        ((mine(0x20), UPKEEP, mine(0x20), UPKEEP), 2),
        ((mine(0x20), theirs("CLUSTER BY")), 2),
        ((theirs(), mine(0x20)), 3),  # somebody wrote before it: that stays
        ((mine(0x20, "pgbridge/1/sub/inc/2"), back_to(1, "pgbridge/1/sub/inc/2"), mine(0x20)), 4),
        # taken back: by an undo, or by hand, whatever was and is beside it
        ((mine(0x20), back_to(1, ME)), None),
        ((mine(0x20), back_to(1, ME), theirs()), None),
        ((mine(0x20), back_to(1)), None),
        ((mine(0x20), theirs(), UPKEEP, back_to(1), UPKEEP, theirs()), None),
        ((mine(0x20), theirs(), back_to(1), back_to(4)), None),
        ((UPKEEP, mine(0x20), back_to(1)), None),
        ((theirs(), mine(0x20), back_to(1)), None),  # with what somebody wrote before it: that was his to restore
        ((mine(0x20), mine(0x20), back_to(2)), 2),  # a part of it was
        ((mine(0x20), theirs(), back_to(2)), 2),  # what came after it was
        ((mine(0x20), back_to(1), back_to(2)), 2),  # and brought back
    ],
)
def test_first_of(after, first):
    assert history(*BEFORE, *after)[0].first_of(ME, Lsn(0x20)) == first


def test_it_is_looked_for_behind_any_number_of_others(monkeypatch):
    """As far back as a commit of an earlier batch; without one, to the beginning."""
    upkeep = [UPKEEP] * 130
    assert history(*BEFORE, mine(0x20), *upkeep)[0].first_of(ME, Lsn(0x20)) == 2
    assert history(theirs("CREATE TABLE"), mine(0x20), *upkeep)[0].first_of(ME, Lsn(0x20)) == 1
    assert history(*upkeep, *BEFORE, *upkeep)[0].first_of(ME, Lsn(0x20)) is None
    found, asked = history(*upkeep, *BEFORE, mine(0x20), *upkeep[:10])
    assert found.first_of(ME, Lsn(0x20)) == 132
    assert asked == [50]
    monkeypatch.setattr("bridge.apply.delta.history._LOOKED_AT", 1)
    assert history(mine(0x20))[0].first_of(ME, Lsn(0x20)) == 0
    assert history()[0].first_of(ME, Lsn(0x20)) is None


@pytest.mark.parametrize(
    ("after", "first", "other", "operation"),
    [
        ((mine(0x20), theirs()), 2, 3, "WRITE"),
        ((mine(0x20), UPKEEP, theirs("DELETE"), theirs()), 2, 4, "DELETE"),
        ((mine(0x20), theirs(), mine(0x20), theirs()), 2, 3, "WRITE"),
        ((mine(0x20), back_to(1), back_to(2), theirs()), 2, 5, "WRITE"),
        ((mine(0x20), back_to(None)), 2, 3, "RESTORE"),  # by time: which version that is, is not told
    ],
)
def test_what_others_wrote_after_it_is_not_lost(after, first, other, operation):
    """The hint's RESTORE helps, also when it is tried a second time."""
    with pytest.raises(TargetError) as caught:
        history(*BEFORE, *after)[0].first_of(ME, Lsn(0x20))
    assert caught.value.message == (
        f"/lake/t: version {first} cannot be undone, because another writer committed version {other} "
        f"({operation}) after it"
    )
    assert "run: RESTORE TABLE delta.`/lake/t` TO VERSION AS OF 1;" in caught.value.hint
    for again in ((), (back_to(1),)):
        assert history(*BEFORE, *after, back_to(1), *again)[0].first_of(ME, Lsn(0x20)) is None


@pytest.mark.parametrize("between", [(), (UPKEEP,), (theirs(),)])
def test_a_restore_by_hand_to_before_earlier_batches_is_refused(between):
    """They do not come again; once it is set right, all goes on."""
    commits = (*BEFORE, *between, mine(0x20), theirs(), back_to(0))
    with pytest.raises(TargetError, match=r"version 1 is of an earlier batch, which is not applied again") as caught:
        history(*commits)[0].first_of(ME, Lsn(0x20))
    before = 1 + len(between)
    assert caught.value.hint == f"run: RESTORE TABLE delta.`/lake/t` TO VERSION AS OF {before}"
    assert history(*commits, back_to(before))[0].first_of(ME, Lsn(0x20)) is None


OTHER_BATCH = mine(0x30, "pgbridge/1/sub/inc/2")


@pytest.mark.parametrize(
    ("after", "versions"),
    [
        ((), []),
        ((OTHER_BATCH, back_to(1, "pgbridge/1/sub/inc/2")), []),
        ((mine(0x20),), [1]),
        ((theirs(), mine(0x20)), [2]),  # somebody wrote before it: that stays
        ((mine(0x20), mine(0x20)), [2, 1]),
        ((mine(0x20), UPKEEP, mine(0x20), UPKEEP), [4, 3, 2, 1]),
        # undone before, by one RESTORE or by several, or in part: the RESTOREs do not count, what they reverted does
        ((mine(0x20), back_to(1, ME)), [2, 1]),
        ((mine(0x20), mine(0x20), back_to(2, ME), back_to(1, ME)), [3, 2, 1]),
        ((mine(0x20), mine(0x20), back_to(2, ME)), [3, 2, 1]),
        ((mine(0x20), back_to(1, ME), UPKEEP), [2, 1]),
        ((mine(0x20), back_to(1, ME), mine(0x20)), [2, 1]),  # the last one is a fence
        # by hand, as the hint says, with what was in the way of it
        ((mine(0x20), theirs(), back_to(1)), [3, 2, 1]),
        ((mine(0x20), back_to(1, ME), theirs(), back_to(1)), [4, 2, 1]),
        ((OTHER_BATCH, back_to(1, "pgbridge/1/sub/inc/2"), mine(0x20), back_to(3, ME)), [4, 3]),
    ],
)
def test_doubtful_of(after, versions):
    assert history(*BEFORE, *after)[0].doubtful_of(ME, Lsn(0x20)) == versions


@pytest.mark.parametrize(
    ("after", "other", "operation"),
    [
        ((mine(0x20), theirs()), 3, "WRITE"),
        ((mine(0x20), back_to(1, ME), theirs()), 4, "WRITE"),
        ((mine(0x20), UPKEEP, theirs("DELETE"), mine(0x20)), 4, "DELETE"),
        ((mine(0x20), back_to(0)), 3, "RESTORE"),
        ((mine(0x20), back_to(None)), 3, "RESTORE"),
    ],
)
def test_what_others_did_is_not_lost_by_a_doubtful_undo_either(after, other, operation):
    """The hint's RESTORE helps."""
    with pytest.raises(TargetError, match=rf"another writer committed version {other} \({operation}\)") as caught:
        history(*BEFORE, *after)[0].doubtful_of(ME, Lsn(0x20))
    assert "run: RESTORE TABLE delta.`/lake/t` TO VERSION AS OF 1;" in caught.value.hint
    assert history(*BEFORE, *after, back_to(1))[0].doubtful_of(ME, Lsn(0x20))[-1] == 1


def test_commits_are_read_from_rows():
    """Others' metadata is whatever they like."""

    def row(metadata, operation="WRITE", parameters=None):
        return Commit.of(
            SimpleNamespace(
                version=7, operation=operation, operationParameters=parameters, userMetadata=metadata, timestamp=None
            )
        )

    assert row(json.dumps({"pgbridge": {"origin": ME, "end_lsn": "0/20"}})) == Commit(7, "WRITE", ME, "0/20")
    for others in (None, "", "text", "[1]", '{"pgbridge": 1}', "1"):
        assert row(others) == Commit(7, "WRITE")
    assert row(None, "RESTORE", {"version": "3", "timestamp": None}).restored == 3
    assert row(None, "RESTORE", {"version": None, "timestamp": "2026-01-01"}).restored is None
    assert row(None, "WRITE", {"version": "3"}).restored is None


# --- as of an LSN -----------------------------------------------------------------------------------------------------

COPY = mine(0x10, "pgbridge/1/sub/inc/copy")


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
        # a replayed transaction's own LSN says nothing of the others
        ((COPY, mine(0x20), mine(0x15, "pgbridge/1/sub/inc/replay-0-15.0"), mine(0x30)), (0, 2, 2, 3)),
        # copied afresh: before the second copy the first one counts
        ((COPY, mine(0x20), mine(0x25, "pgbridge/1/sub:sync/inc/copy"), mine(0x30)), (0, 1, 2, 3)),
        ((theirs("CREATE TABLE"), mine(0x20)), (0, 1, 1, 1)),  # without a copy
    ],
)
def test_the_version_as_of_an_lsn(commits, versions):
    assert tuple(history(*commits)[0].as_of(lsn) for lsn in (0x10, 0x20, 0x25, 0x30)) == versions


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


def test_commits_are_read_from_the_log():
    mark = {"origin": ME, "start_lsn": "0/10", "end_lsn": "0/20", "last_commit_time": "2026-01-01T00:00:00+00:00"}
    info = {"timestamp": 5, "operation": "MERGE", "operationParameters": {"predicate": "[]"}}
    found = Commit.of_log(7, info | {"userMetadata": json.dumps({"pgbridge": mark})})
    assert found == Commit(7, "MERGE", ME, "0/20", None, "0/10", mark["last_commit_time"], 5)
    assert found.position == 0x20
    assert Commit.of_log(7, {"operation": "RESTORE", "operationParameters": {"version": 3}}).restored == 3
    given = {"defaultRetentionMillis": 604800000}
    vacuum = {"operation": "VACUUM START", "operationParameters": given}
    assert Commit.of_log(7, vacuum).retention_ms == 604800000
    given["specifiedRetentionMillis"] = 0
    assert Commit.of_log(7, vacuum).retention_ms == 0
    assert Commit.of_log(7, {}) == Commit(7, "")
