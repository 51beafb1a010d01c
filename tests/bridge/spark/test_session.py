"""The Spark session has what results depend on, whatever a user's configuration says."""

from pathlib import Path

import pytest

from pgbridge.bridge.lake.ddl import checkpoint_interval, create_table
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.spark import session, settings
from pgbridge.bridge.spark.cluster import Cluster
from pgbridge.bridge.spark.connect import Connect
from pgbridge.bridge.spark.driver import Local


@pytest.mark.parametrize(
    ("master", "kind"),
    [
        ("local", Local),
        ("local[*]", Local),
        ("local-cluster[2,1,1024]", Local),
        ("spark://host:7077", Cluster),
        ("yarn", Cluster),
        ("k8s://host:6443", Cluster),
        ("sc://host:15002/;token=x", Connect),
    ],
)
def test_the_kind_is_chosen_by_the_master(master, kind):
    assert type(session.driver_for(master)) is kind


def test_a_session_has_one_driver_with_its_forks_and_companions(spark):
    driver = session.driver_of(spark)
    fork = session.fork(spark)
    companion = session.companion(fork, "x", {"spark.sql.shuffle.partitions": "9"})
    assert session.driver_of(fork) is session.driver_of(companion) is driver
    theirs = session.driver_of(spark.newSession())  # of somebody who has only Spark
    assert (type(theirs), theirs.master) == (Local, driver.master)


def test_what_values_depend_on_is_the_same_in_a_companion(spark):
    """Also on a Spark that somebody else has started, with other settings: of these only the fork has ours."""
    forked = session.fork(spark)
    others = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.storeAssignmentPolicy": "LEGACY",
        "spark.sql.variable.substitute": "true",
        "spark.sql.caseSensitive": "false",
    }
    for key, value in others.items():
        forked.conf.set(key, value)
    companion = session.companion(forked, "y", {})
    assert {key: companion.conf.get(key) for key in others} == others


def test_required_settings_hold(spark):
    for key, value in settings.REQUIRED.items():
        assert value in spark.conf.get(key)


def test_forks_have_settings_and_views_of_their_own(spark):
    one, other = session.fork(spark), session.fork(spark)
    one.conf.set("spark.databricks.delta.write.txnVersion", "5")
    one.range(1).createOrReplaceTempView("only_in_one")
    assert other.conf.get("spark.databricks.delta.write.txnVersion", None) is None
    assert not other.catalog.tableExists("only_in_one")
    assert one.conf.get("spark.sql.session.timeZone") == "UTC"
    one.catalog.dropTempView("only_in_one")


def test_column_names_differ_in_case(spark):
    assert spark.sql("SELECT 1 AS a").select("a").columns == ["a"]
    assert spark.conf.get("spark.sql.caseSensitive") == "true"


def test_checksums_are_written_without_processes(spark, tmp_path):
    """The setting is internal. Of processes that have ended, the kernel counts the page faults for their parent."""

    def faults_of_children():
        jvm = session.driver_of(spark).process
        assert jvm is not None
        stat = Path(f"/proc/{jvm.pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[8])

    def faults_of_commits(name, manager):
        forked = session.fork(spark)
        forked.conf.set(settings.CHECKSUM_WRITER, manager)
        path = str(tmp_path / name)
        for number in range(4):
            if number == 1:  # the first one creates the table
                before = faults_of_children()
            forked.range(1).coalesce(1).write.format("delta").mode("append").save(path)
        assert len(list((tmp_path / name / "_delta_log").glob("0*.crc"))) == 4
        return faults_of_children() - before

    ours = settings.DEFAULTS[settings.CHECKSUM_WRITER]
    theirs = ours.replace("FileSystemBased", "FileContextBased")
    found = faults_of_commits("ours", ours), faults_of_commits("theirs", theirs)
    assert found[0] < found[1] * 0.8, found  # the others set permissions


@pytest.mark.parametrize(("users", "commits", "checkpoints"), [(None, 11, []), ("2", 3, ["2.checkpoint"])])
def test_checkpoints_are_rare_in_tables_of_ours(spark, tmp_path, users, commits, checkpoints):
    forked = session.fork(spark)
    if users is not None:
        forked.conf.set(settings.CHECKPOINT_INTERVAL, users)
    path = str(tmp_path / "t")
    create_table(forked, path, forked.range(1).schema)
    for _ in range(commits - 1):
        append_rows(forked.range(1).coalesce(1), path)
    properties = forked.sql(f"SHOW TBLPROPERTIES delta.`{path}`").collect()
    assert {row.key: row.value for row in properties}["delta.checkpointInterval"] == (
        users or str(checkpoint_interval(path))
    )
    found = (tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet")
    assert [file.name.lstrip("0").removesuffix(".parquet") for file in found] == checkpoints
