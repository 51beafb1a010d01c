"""Delta refuses a stamped commit the second time; a batch's parts have versions of their own."""

import json
from dataclasses import replace

from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.log.commit_info import Commit
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.table_position import history_of
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.spark.session import fork
from pgbridge.bridge.targets.location import quoted
from pgbridge.protocol.lsn import Lsn

STAMP = CommitStamp("pgbridge/1/sub/inc/0", Lsn(0x10), Lsn(0x20))


def rows_at(spark, path):
    return sorted(tuple(row) for row in spark.read.format("delta").load(path).collect())


def test_a_stamped_commit_is_left_out_the_second_time(spark, tmp_path):
    session, path = fork(spark), str(tmp_path / "t")
    frame = session.createDataFrame([(1, "a")], "id long, note string")
    create_table(session, path, frame.schema)
    for _ in range(2):
        with stamped(session, STAMP):
            append_rows(frame, path)
    assert rows_at(spark, path) == [(1, "a")]
    history = session.sql(f"DESCRIBE HISTORY delta.{quoted(path)}").collect()
    assert json.loads(history[0].userMetadata)["pgbridge"] == {
        "origin": "pgbridge/1/sub/inc/0",
        "start_lsn": "0/10",
        "end_lsn": "0/20",
    }
    append_rows(frame, path)  # the stamp ends with its block
    assert len(rows_at(spark, path)) == 2


def test_versions_of_a_batchs_parts_rise_to_its_end():
    """Between the ends of the batch: Delta leaves out what is not above the version that it has."""
    stamp = CommitStamp("app", Lsn(10), Lsn(20))
    assert [replace(stamp, part=part).txn_version for part in (0, 1)] == [11, 12]
    assert (stamp.txn_version, replace(stamp, part=0).txn_app_id_in_delta) == (20, "app")


def test_what_the_log_has_of_a_stamp():
    """The timeline if it is known; whether more commits follow; whether it only keeps a late one out."""

    def mark(**others):
        return json.loads(replace(STAMP, **others).user_metadata)["pgbridge"]

    plain = {"origin": "pgbridge/1/sub/inc/0", "start_lsn": "0/10", "end_lsn": "0/20"}
    assert mark() == plain
    assert mark(timeline=3) == plain | {"timeline": 3}
    assert mark(alters=True) == plain | {"part": -1}
    assert mark(part=0) == plain | {"part": 0}
    assert mark(fences=True) == plain | {"given_up": True}
    info = {"operation": "WRITE", "userMetadata": replace(STAMP, timeline=3, part=0).user_metadata}
    assert Commit.of_log(1, info) == Commit(1, "WRITE", STAMP.txn_app_id, "0/20", None, "0/10", timeline=3, part=True)


def test_a_copys_version_rises_whatever_its_lsn_is():
    """The publisher may have gone back."""
    stamps = [CommitStamp("app/copy", Lsn(lsn), Lsn(lsn), copy_number=number) for number, lsn in ((1, 0x30), (2, 0x10))]
    assert [stamp.txn_version for stamp in stamps] == [1, 2]


def test_a_copy_with_a_lower_lsn_is_not_left_out(spark, tmp_path):
    session, path = fork(spark), str(tmp_path / "t")
    frame = session.createDataFrame([(1, "a")], "id long, note string")
    create_table(session, path, frame.schema)
    for number, lsn in ((1, 0x30), (2, 0x10), (2, 0x10)):  # the last one is the late commit of an attempt that was
        stamp = CommitStamp("pgbridge/1/sub/inc/copy", Lsn(lsn), Lsn(lsn), copy_number=number)
        with stamped(session, stamp):
            append_rows(frame, path)
    assert len(rows_at(spark, path)) == 2
    own = history_of(session, path).own(("pgbridge/1/sub/inc/",))
    assert own is not None
    assert own.position == 0x10
