"""What a table's own log says of where it is. All cases of a history are in `test_history`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgbridge.bridge.catalog.catalog_rows import RelRow, SubscriptionRow
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.table_position import TablePosition, behind, check_committed, check_stands, table_position
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.spark.session import fork
from pgbridge.protocol.lsn import INVALID, Lsn
from tests.bridge.apply.made_targets import copied

FAMILY = "pgbridge/1/sub/inc"
ROW = SubscriptionRow(
    "sub",
    enabled=True,
    incarnation="inc",
    epoch=0,
    slot_name=None,
    slot_state=None,
    system_identifier="1",
    skip_lsn=None,
    state="",
    received_lsn=INVALID,
    apply_error_count=0,
    sync_error_count=0,
)


class Table:
    """A table of one column, and commits to it."""

    def __init__(self, spark, path):
        self.session, self.path = fork(spark), path
        self.frame = self.session.createDataFrame([(1,)], "id long")
        copied(spark, path, "one column", lambda made: create_table(spark, made, self.frame.schema))

    def commit(self, lsn, app_id=f"{FAMILY}/0", start=0, **others):
        stamp = CommitStamp(app_id, Lsn(start), Lsn(lsn), **others)
        with stamped(self.session, stamp):
            append_rows(self.frame, self.path)
        return stamp

    def sql(self, statement):
        self.session.sql(statement.format(f"delta.`{self.path}`")).collect()

    def followed(self, lsn):
        """What the catalog has of it."""
        return RelRow("public", "t", "r", Lsn(1), self.path, position=Lsn(lsn))

    def way_back(self, lsn):
        """What an operator is told to do if it had everything up to there."""
        return behind(self.session, self.followed(lsn), "sub", Lsn(1)).hint.partition("have the table")[0]

    def next_life(self, position):
        """The position that a daemon reads which has this one in its catalog, when it was killed after a commit."""
        return table_position(self.session, ROW, "sub", self.followed(position)).lsn

    def position(self, known=INVALID, row=ROW, owner="sub"):
        return table_position(self.session, row, owner, RelRow("public", "t", "r", known, self.path))


@pytest.fixture
def table(spark, tmp_path):
    return Table(spark, str(tmp_path / "t"))


def test_the_last_commit_of_the_subscription(table):
    assert table.position() == TablePosition(INVALID, None, -1, is_whole=True, epoch=0)
    table.commit(0x10, f"{FAMILY}/copy", timeline=1, copy_number=5)
    assert table.position() == TablePosition(Lsn(0x10), 1, 1, is_whole=True, epoch=0, copied=True)
    table.commit(0x20, f"{FAMILY}/2", timeline=2)
    assert table.position() == TablePosition(Lsn(0x20), 2, 2, is_whole=True, epoch=2)
    table.commit(0x30, f"{FAMILY}/2", fences=True)
    table.sql("OPTIMIZE {}")
    table.sql("DELETE FROM {} WHERE id = 7")
    after = table.position()
    assert (after.lsn, after.timeline, after.version, after.epoch) == (0x20, 2, 2, 3)


def test_what_was_restored_by_hand_is_not_there(table):
    for lsn in (0x10, 0x20, 0x30):
        table.commit(lsn)
    table.sql("RESTORE TABLE {} TO VERSION AS OF 1")
    assert (table.position().lsn, table.position().version) == (0x10, 1)
    assert table.way_back(0x10) == f"run: RESTORE TABLE delta.`{table.path}` TO VERSION AS OF 1; or "
    assert "VERSION AS OF 3" in table.way_back(0x30), "it can be restored again"
    assert table.way_back(0x40) == ""
    table.sql("RESTORE TABLE {} TO VERSION AS OF 3")
    assert table.position().lsn == 0x30
    table.sql("RESTORE TABLE {} TO VERSION AS OF 0")
    assert table.position(Lsn(0x30)) == TablePosition(INVALID, None, -1, is_whole=True, epoch=0)


def test_a_table_that_its_worker_has_copied(table):
    """The subscription takes it over with its commits; without any known position, an earlier life's say nothing."""
    table.commit(0x10, "pgbridge/1/sub:sync/inc2/copy")
    table.commit(0x20, "pgbridge/1/sub:sync/inc2/0")
    assert table.position(Lsn(0x10)).lsn == 0x20
    assert table.position(INVALID).lsn == 0
    worker = SubscriptionRow("sub:sync", True, "inc2", 0, None, None, "1", None, "", INVALID, 0, 0)
    assert table.position(INVALID, worker).lsn == 0x20
    table.commit(0x30, "pgbridge/1/subscription/inc/0")
    table.commit(0x30, "pgbridge/2/sub/inc/0")
    assert table.position(Lsn(0x10)).lsn == 0x20, "others begin alike"


def test_a_part_of_a_batch(table):
    table.commit(0x10)
    table.commit(0x20, start=0x10, part=0)
    with pytest.raises(TargetError, match="version 2 has a part of a batch that ends at 0/20"):
        table.position(Lsn(0x10))
    assert table.position(Lsn(0x20)).lsn == 0x20, "the catalog knows that it was the last one"
    table.commit(0x20)
    assert table.position().lsn == 0x20
    assert "VERSION AS OF 3" in table.way_back(0x20), "the part is none to restore"


def test_a_log_that_does_not_go_back_to_the_beginning(table):
    """Then it does not say that there was no commit."""
    from pathlib import Path

    table.sql("OPTIMIZE {}")
    for _ in range(11):
        append_rows(table.frame, table.path)
    for version in range(2):
        (Path(table.path) / "_delta_log" / f"{version:020}.json").unlink()
    assert not table.position().is_whole
    assert table.position().lsn == 0


def test_a_commit_that_was_just_made(table):
    stamp = table.commit(0x20)
    check_committed(table.session, table.path, stamp)
    table.sql("DELETE FROM {} WHERE id = 7")
    check_committed(table.session, table.path, stamp)
    again = table.commit(0x10)  # Delta leaves it out
    with pytest.raises(TargetError, match=r"Delta has left out the commit up to 0/10, .* \"pgbridge/1/sub/inc/0\""):
        check_committed(table.session, table.path, again)
    other = table.commit(0x10, f"{FAMILY}/1")
    check_committed(table.session, table.path, other)
    copy = table.commit(0x5, f"{FAMILY}/copy", copy_number=7)
    check_committed(table.session, table.path, copy)


@pytest.mark.parametrize("to", ["VERSION AS OF 1", "TIMESTAMP AS OF '{}'"])
def test_a_commit_on_a_table_that_was_restored_since(table, to):
    """It would hide that the table has lost what was durable."""
    table.commit(0x10)
    (at,) = table.session.sql(f"DESCRIBE HISTORY delta.`{table.path}` LIMIT 1").select("timestamp").first()
    check_committed(table.session, table.path, table.commit(0x20), table.followed(0x10), "sub")
    table.sql("OPTIMIZE {}")
    check_committed(table.session, table.path, table.commit(0x30), table.followed(0x20), "sub")
    assert {table.next_life(known) for known in (0, 0x10, 0x20, 0x30)} == {0x30}
    table.session.sql(f"RESTORE TABLE delta.`{table.path}` TO {to.format(at)}").collect()
    stamp = table.commit(0x40)
    with pytest.raises(TargetError, match="changes up to 0/30 were durable" if "VERSION" in to else "to a time"):
        table.next_life(0x30)
    expected = "changes up to 0/30 were durable in it, but its log ends at 0/10" if "VERSION" in to else "to a time"
    with pytest.raises(TargetError, match=expected):
        check_committed(table.session, table.path, stamp, table.followed(0x30), "sub")
    check_committed(table.session, table.path, table.commit(0x50), table.followed(0x40), "sub")


def test_what_the_batch_has_committed_before_does_not_hide_a_restore(table):
    """Its ALTER has the batch's end; it is kept from such a table, too."""
    table.commit(0x10)
    table.commit(0x20)
    check_stands(table.session, table.followed(0x20), "sub")
    table.sql("RESTORE TABLE {} TO VERSION AS OF 1")
    with pytest.raises(TargetError, match="but its log ends at 0/10"):
        check_stands(table.session, table.followed(0x20), "sub")
    table.commit(0x30, alters=True)
    with pytest.raises(TargetError, match="but its log ends at 0/10"):
        check_committed(table.session, table.path, table.commit(0x30), table.followed(0x20), "sub")


def test_a_restore_to_what_an_earlier_timeline_had(table):
    """Its LSN is higher than that of the copy on the present one."""
    table.commit(0x50, timeline=1)
    table.commit(0x20, f"{FAMILY}/copy", copy_number=5, timeline=2)
    followed = replace(table.followed(0x20), timeline=2)
    check_committed(table.session, table.path, table.commit(0x30, f"{FAMILY}/1", timeline=2), followed, "sub")
    table.sql("RESTORE TABLE {} TO VERSION AS OF 1")
    followed = replace(followed, position=Lsn(0x30))
    with pytest.raises(TargetError, match="but its log ends at 0/50"):
        check_committed(table.session, table.path, table.commit(0x40, f"{FAMILY}/1", timeline=2), followed, "sub")


@pytest.mark.parametrize("earlier", [{"part": 0}, {"alters": True}])
def test_an_earlier_commit_of_the_batch_is_not_its_last_one(table, earlier):
    """Another machine has fenced what comes after it."""
    table.commit(0x10)
    check_committed(table.session, table.path, table.commit(0x20, start=0x10, **earlier))
    table.commit(0x30, fences=True)
    with pytest.raises(TargetError, match="Delta has left out the commit up to 0/20"):
        check_committed(table.session, table.path, table.commit(0x20, start=0x10))


def test_a_commit_that_was_kept_out_by_a_fence(table):
    table.commit(0x20, fences=True)
    late = table.commit(0x20)
    with pytest.raises(TargetError, match="Delta has left out the commit up to 0/20"):
        check_committed(table.session, table.path, late)


def test_a_table_that_was_made_anew_while_its_changes_come(table):
    """Its log begins with a table without a commit of the subscription, or with the batch: what came before is lost."""
    with pytest.raises(TargetError, match="has no commit of the subscription. It was restored, put back .* made anew"):
        check_stands(table.session, table.followed(0x10), "sub")
    stamp = table.commit(0x20, start=0x10)
    check_committed(table.session, table.path, stamp, table.followed(0), "sub")
    with pytest.raises(TargetError, match="has no commit of the subscription"):
        check_committed(table.session, table.path, stamp, table.followed(0x10), "sub")
    with pytest.raises(TargetError, match="has no commit of the subscription"):
        table.next_life(0x10)
