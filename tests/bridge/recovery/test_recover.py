"""What was cut short, as a recovery tells it to the next start. `tests/faults/test_recover.py` has the whole of it."""

from __future__ import annotations

import pytest

from pgbridge.bridge.catalog.catalog_rows import RelRow, SubscriptionRow
from pgbridge.bridge.lake.log.commit_info import Commit
from pgbridge.bridge.recovery.recover import _Stream, _Table
from pgbridge.protocol.lsn import INVALID, Lsn

ROW = SubscriptionRow("shop", True, "inc", 3, "slot", "ready", "1", None, "stopped", INVALID, 0, 0)
ORIGIN, FLUSHED = Lsn(0x100), Lsn(0x300)


def batch(*commits: Commit, rebooted: bool = False, doubtful: bool = False):
    """The batch of a table with these commits beyond the origin."""
    table = _Table(RelRow("public", "a", "r", Lsn(0x10), "/lake/a"), commits, None, None, doubtful, 0)
    return _Stream(ROW, ORIGIN, 1, [table], 4).batch(FLUSHED, rebooted=rebooted)


def commit(end_lsn: int, *, part: bool = False) -> Commit:
    """A commit of the subscription."""
    return Commit(7, "WRITE", "pgbridge/1/shop/inc/3", str(Lsn(end_lsn)), part=part)


def test_what_tables_have_they_keep():
    """Messages beyond the origin come again, wherever the last ones are."""
    kept = batch(commit(0x200), commit(0x180))
    assert (kept.start_lsn, kept.end_lsn, kept.tables, kept.must_be_undone) == (ORIGIN, FLUSHED, (), False)


def test_a_server_that_lacks_what_a_table_has():
    """It is compared with the batch's end, and the batch is taken back."""
    assert batch(commit(0x400)).end_lsn == 0x400


@pytest.mark.parametrize("why", [{"rebooted": True}, {}])
def test_what_is_doubtful_is_undone(why):
    undone = batch(commit(0x200), commit(0x180, part=not why), **why)
    assert (undone.must_be_undone, undone.tables) == (True, None)


def test_what_is_on_a_local_disk_is_undone_where_a_flush_may_have_failed():
    """Also if the former daemon has undone it: of that, too."""
    for commits in ((commit(0x200),), ()):
        undone = batch(*commits, doubtful=True)
        assert (undone.flushing, undone.must_be_undone, undone.tables) == (True, True, ("/lake/a",))
    after_a_reboot = batch(commit(0x200), doubtful=True, rebooted=True)
    assert (after_a_reboot.flushing, after_a_reboot.tables) == (True, None), "when that was, is not known for sure"
