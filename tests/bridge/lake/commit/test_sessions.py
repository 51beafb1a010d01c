"""Companion sessions carry the stamp, and their settings have an effect."""

from __future__ import annotations

from pgbridge.bridge.lake.commit.sessions import commit_session
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.spark.session import fork
from pgbridge.protocol.lsn import Lsn

TXN_VERSION = "spark.databricks.delta.write.txnVersion"


def test_a_companion_has_the_stamp_of_now(spark):
    session = fork(spark)
    for lsn in (2, 3):
        with stamped(session, CommitStamp("app", Lsn(1), Lsn(lsn))):
            small, large = commit_session(session, "small"), commit_session(session, "large")
            assert small.conf.get(TXN_VERSION) == large.conf.get(TXN_VERSION) == str(lsn)
    assert commit_session(session, "small") is small
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
    small = commit_session(session, "small")
    # the first one reads the table's log, and Delta may have jobs of its own meanwhile
    with_copy, without = (min(jobs_of_a_merge(spark, one, path) for _ in range(4)) for one in (session, small))
    assert without == with_copy - 1


def test_tiny_work_compiles_nothing(spark, tmp_path):
    """One of the settings is internal: without its effect, each expression that was not seen before is compiled."""
    path = str(tmp_path / "t")
    spark.range(10).write.format("delta").save(path)
    metrics = spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics
    session = fork(spark)
    compiling = commit_session(session, "small")  # the tests' Spark compiles nothing
    compiling.conf.set("spark.sql.codegen.wholeStage", "true")
    compiling.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")

    def compiled(work, number):
        before = metrics.METRIC_COMPILATION_TIME().getCount()
        rows = commit_session(session, work).read.format("delta").load(path)
        assert len(rows.where(f"id * {number} > 0").selectExpr(f"id + {number}").collect()) == 9
        return metrics.METRIC_COMPILATION_TIME().getCount() - before

    compiled("tiny", 2)  # reads the table's log
    assert compiled("tiny", 3) == 0
    assert compiled("small", 4) > 0
