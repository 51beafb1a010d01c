"""Companion sessions carry the stamp, and their settings have an effect."""

from __future__ import annotations

from bridge.apply.delta.commit_sessions import commit_session
from bridge.apply.delta.stamp import CommitStamp, stamped
from bridge.session import fork
from protocol.lsn import Lsn

TXN_VERSION = "spark.databricks.delta.write.txnVersion"


def test_a_companion_has_the_stamp_of_now(spark):
    session = fork(spark)
    for lsn in (2, 3):
        with stamped(session, CommitStamp("app", Lsn(1), Lsn(lsn))):
            small, large = commit_session(session, small=True), commit_session(session, small=False)
            assert small.conf.get(TXN_VERSION) == large.conf.get(TXN_VERSION) == str(lsn)
    assert commit_session(session, small=True) is small
    assert small is not large
    assert small.conf.get(TXN_VERSION, None) is None
    assert small.conf.get("spark.sql.adaptive.enabled") == "false"


def jobs_of_a_merge(spark, session, path):
    """How many jobs Spark runs for a MERGE."""
    session.range(5, 15).createOrReplaceTempView("ids")
    scala = spark.sparkContext._jsc.sc()
    before = scala.dagScheduler().nextJobId()
    session.sql(
        f"MERGE INTO delta.`{path}` AS t USING ids AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.id = s.id"
    ).collect()
    return scala.dagScheduler().nextJobId() - before


def test_the_source_is_not_copied(spark, tmp_path):
    """Delta's setting is internal: without its effect there is a job more, which copies the source."""
    path = str(tmp_path / "t")
    spark.range(10).write.format("delta").save(path)
    session = fork(spark)
    for one in (session, commit_session(session, small=True)):
        jobs_of_a_merge(spark, one, path)  # the first one reads the table's log
    with_copy = jobs_of_a_merge(spark, session, path)
    assert jobs_of_a_merge(spark, commit_session(session, small=True), path) == with_copy - 1
