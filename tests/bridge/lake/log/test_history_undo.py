"""Which versions an undo restores, and what it must not lose; an undo that came across another writer."""

from __future__ import annotations

import pytest

from pgbridge.bridge.lake.log.commit_info import Commit
from pgbridge.bridge.runtime.errors import TargetError
from tests.bridge.lake.made_history import (
    BEFORE,
    BEYOND,
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


@pytest.mark.parametrize(
    ("after", "first"),
    [
        ((), None),
        ((mine(0x20),), 2),
        ((mine(0x20), mine(0x20)), 2),  # columns changed first
        ((mine(0x20), UPKEEP, mine(0x20), UPKEEP), 2),
        ((mine(0x20), theirs("CLUSTER BY")), 2),
        ((theirs(), mine(0x20)), 3),  # somebody wrote before it: that stays
        ((mine(0x20, EARLIER), back_to(1, EARLIER), mine(0x20)), 4),
        # all batches beyond the LSN, whichever attempt made them: kept ones, and the one under way
        ((mine(0x20, EARLIER), mine(0x30)), 2),
        ((mine(0x20, EARLIER), UPKEEP, mine(0x30), mine(0x40)), 2),
        ((fence(), mine(0x20)), 3),
        ((mine(0x20), fence(0x30)), 2),
        ((fence(), UPKEEP), None),
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
def test_first_beyond(after, first):
    assert history(*BEFORE, *after)[0].first_beyond(BEYOND) == first


def test_a_copy_is_not_beyond():
    """An undo leaves it: the transactions that it has are left out of the batches that come."""
    made = (theirs("CREATE TABLE"), mine(0x30, COPY_ID))
    assert history(*made)[0].first_beyond(BEYOND) is None
    assert history(*made, mine(0x40))[0].first_beyond(BEYOND) == 2
    assert history(mine(0x30), mine(0x30, COPY_ID))[0].first_beyond(BEYOND) is None


def test_only_what_ends_after_the_lsn_is_beyond():
    made = (*BEFORE, mine(0x20, EARLIER), mine(0x30))
    assert [history(*made)[0].first_beyond(lsn) for lsn in (0x10, 0x1F, 0x20, 0x2F, 0x30)] == [2, 2, 3, 3, None]


def test_it_is_looked_for_behind_any_number_of_others():
    """As far back as a commit of an earlier batch; without one, to the beginning."""
    upkeep = [UPKEEP] * 130
    assert history(*BEFORE, mine(0x20), *upkeep)[0].first_beyond(BEYOND) == 2
    assert history(theirs("CREATE TABLE"), mine(0x20), *upkeep)[0].first_beyond(BEYOND) == 1
    assert history(*upkeep, *BEFORE, *upkeep)[0].first_beyond(BEYOND) is None
    made, asked = history(*upkeep, *BEFORE, mine(0x20), *upkeep[:10])
    assert made.first_beyond(BEYOND) == 132
    assert asked == [50]
    alone, asked = history(mine(0x20))
    alone.at_first = 1
    assert alone.first_beyond(BEYOND) == 0
    assert asked == [1, 2]
    assert history()[0].first_beyond(BEYOND) is None


@pytest.mark.parametrize(
    ("after", "first", "other", "operation"),
    [
        ((mine(0x20), theirs()), 2, 3, "WRITE"),
        ((mine(0x20), UPKEEP, theirs("DELETE"), theirs()), 2, 4, "DELETE"),
        ((mine(0x20), theirs(), mine(0x20), theirs()), 2, 3, "WRITE"),
        ((mine(0x20, EARLIER), theirs(), mine(0x30)), 2, 3, "WRITE"),
        ((mine(0x20), theirs(), fence()), 2, 3, "WRITE"),
        ((mine(0x20), back_to(1), back_to(2), theirs()), 2, 5, "WRITE"),
        ((mine(0x20), back_to(None)), 2, 3, "RESTORE"),  # by time: which version that is, is not told
    ],
)
def test_what_others_wrote_after_it_is_not_lost(after, first, other, operation):
    """The hint's RESTORE helps, also when it is tried a second time."""
    with pytest.raises(TargetError) as caught:
        history(*BEFORE, *after)[0].first_beyond(BEYOND)
    assert caught.value.message == (
        f"/lake/t: version {first} cannot be undone, because another writer committed version {other} "
        f"({operation}) after it"
    )
    assert "run: RESTORE TABLE delta.`/lake/t` TO VERSION AS OF 1;" in caught.value.hint
    for again in ((), (back_to(1),)):
        assert history(*BEFORE, *after, back_to(1), *again)[0].first_beyond(BEYOND) is None


@pytest.mark.parametrize("command", ["replay", "repair"])
def test_what_a_command_wrote_after_it_is_not_lost_either(command):
    """It says nothing of the batches before it, and does not come again by itself."""
    written = by_command(0x15, command)
    with pytest.raises(TargetError, match=r"version 2 cannot be undone"):
        history(*BEFORE, mine(0x20), written)[0].first_beyond(BEYOND)
    assert history(*BEFORE, written, mine(0x20))[0].first_beyond(BEYOND) == 3


# --- an undo that came across another writer --------------------------------------------------------------------------

ACROSS = (*BEFORE, mine(0x20), theirs("DELETE"), back_to(1, ME))
"""Somebody deleted rows when the undo had looked, and was about to restore."""


def test_an_undo_that_reverted_rows_of_others_is_told():
    made, _ = history(*ACROSS)
    undo = made.last_undo()
    assert undo is not None
    assert undo.version == 4
    lost = made.reverted_by(undo)
    assert lost is not None
    assert (lost.version, lost.operation) == (3, "DELETE")
    for look in (lambda: made.own((FAMILY,)), lambda: made.first_beyond(BEYOND), lambda: made.latest_of(ME)):
        with pytest.raises(TargetError, match=r"version 4, which undid a batch, also reverted version 3 \(DELETE\)"):
            look()
    mended, _ = history(*ACROSS, back_to(3))
    own = mended.own((FAMILY,))
    assert own is not None
    assert own.version == 2


@pytest.mark.parametrize(
    "between",
    [
        (mine(0x20),),
        (mine(0x20), UPKEEP, fence()),
        (mine(0x20), back_to(1, ME), mine(0x20, EARLIER)),
        (mine(0x20), theirs(), back_to(1)),  # their rows were reverted before, by hand
        (mine(0x20), theirs(), UPKEEP, back_to(1), mine(0x30)),
        (Commit(0, ""), fence()),  # a flush of the batch's entry failed, and the power went
    ],
)
def test_an_undo_that_reverted_nothing_of_others(between):
    made, _ = history(*BEFORE, *between, back_to(1, ME))
    undo = made.last_undo()
    assert undo is not None
    assert undo.version == 2 + len(between)
    assert made.reverted_by(undo) is None
    own = made.own((FAMILY,))
    assert own is not None
    assert own.version == 1


def test_a_history_without_an_undo():
    assert history(*BEFORE, mine(0x20), back_to(1))[0].last_undo() is None
    assert history(*BEFORE, fence())[0].last_undo() is None
    assert history()[0].last_undo() is None


def test_what_a_checkpoint_was_made_of_says_what_the_table_stands_on():
    """Then the entry of a RESTORE may be lost, with which rows are taken back that the log still has."""
    checkpoint = Commit(0, "WRITE", "pgbridge/checkpoint", given_up=True, restored=1)
    lost = Commit(0, "")
    for between in (back_to(1, ME), lost):
        made = history(*BEFORE, mine(0x20), between, checkpoint)[0]
        assert made.first_beyond(BEYOND) is None
        assert made.standing == 1
        assert made.last_undo() is None or between is not lost
        own = made.own((FAMILY,))
        assert own is not None
        assert own.version == 1
        assert made.has_after(BEYOND), "so that it is known to be doubtful"
        assert made.as_of(0x10) == 4
    later = history(*BEFORE, mine(0x20), lost, checkpoint, mine(0x20))[0]
    assert later.first_beyond(BEYOND) == 5
