"""A MERGE tells what it did, and nothing where the table has the batch."""

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.delta.delta_table import table_version
from bridge.apply.delta.merge import MergeCounts, before_merge
from bridge.apply.delta.merge_by_key import merge_effects
from bridge.apply.delta.stamp import CommitStamp, stamped
from bridge.session import fork
from protocol.lsn import Lsn

STAMP = CommitStamp("pgbridge/1/sub/inc/0", Lsn(0x10), Lsn(0x20))


def rows_at(spark, path):
    return sorted(tuple(row) for row in spark.read.format("delta").load(path).collect())


def test_a_merge_is_left_out_the_second_time(spark, tmp_path):
    session, path = fork(spark), str(tmp_path / "t")
    frame = session.createDataFrame([(1, 10)], "id long, n long")
    frame.write.format("delta").save(path)
    effects = session.createDataFrame(
        [
            (1, "delete", False, 1, None, "delete"),
            (2, "put", True, 2, 20, "insert"),
            (3, "put", False, 3, 30, "update"),
        ],
        "match_0 long, action string, born boolean, new_0 long, new_1 long, first string",
    )
    merged = []
    for _ in range(2):
        with stamped(session, STAMP):
            merged.append(merge_effects(effects, path, ["id", "n"], [0], []))
    assert merged == [MergeCounts(updated=0, deleted=1, inserted=1), None]
    assert rows_at(spark, path) == [(2, 20)], "1 deleted; 2 inserted; 3 is an update of a missing row"
    frame.write.format("delta").mode("append").save(path)  # 1 is there again: a replay would delete it
    raising = "CAST(raise_error('it was evaluated') AS bigint)"
    with stamped(session, STAMP):
        assert merge_effects(effects.withColumn("first", F.lit("insert")), path, ["id", "n"], [0], [], raising) is None
    assert rows_at(spark, path) == [(1, 10), (2, 20)]
    assert sorted(map(tuple, before_merge(spark, path).collect())) == [(1, 10)]
    assert table_version(spark, path) == 2
