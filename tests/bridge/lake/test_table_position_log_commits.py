"""The log of a local table says the same as DESCRIBE HISTORY."""

from __future__ import annotations

from dataclasses import replace

from pgbridge.bridge.lake import table_position
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamp_options
from pgbridge.protocol.lsn import Lsn


def test_the_log_says_what_describe_history_says(spark, tmp_path, monkeypatch):
    path = str(tmp_path / "t")
    stamp = CommitStamp("pgbridge/1/sub/inc/0", Lsn(0x10), Lsn(0x20), commit_time_us=5)
    spark.range(3).write.format("delta").options(**stamp_options(stamp)).save(path)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1").collect()
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 0").collect()
    local = table_position.log_commits(spark, path, 50)
    assert [commit.version for commit in local] == [2, 1, 0]
    assert local[0].restored == 0
    assert local[2].position == 0x20
    assert local[2].last_commit_time == "2000-01-01T00:00:00.000005+00:00"
    assert [commit.version for commit in table_position.log_commits(spark, path, 2)] == [2, 1]
    assert table_position.history_of(spark, path).as_of(0x20) == 2
    assert table_position.log_commits(spark, str(tmp_path / "none"), 5) == []
    monkeypatch.setattr(table_position, "log_of", lambda _: None)
    described = table_position.log_commits(spark, path, 50)
    assert [replace(one, made_ms=0) for one in described] == [replace(one, made_ms=0) for one in local]
    # DESCRIBE HISTORY says when the file was written, the log when the commit began
    assert all(abs(one.made_ms - other.made_ms) < 60_000 for one, other in zip(described, local, strict=True))
    assert list(table_position.log_commits(spark, str(tmp_path / "none"), 5)) == []
