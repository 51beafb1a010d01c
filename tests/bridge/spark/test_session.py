"""The Spark session has what results depend on, whatever a user's configuration says."""

from pathlib import Path

import pytest

from bridge.lake.commit.writes import append_rows
from bridge.lake.ddl import checkpoint_interval, create_table
from bridge.spark import session

MIB = 1 << 20


def test_required_settings_hold(spark):
    for key, value in session.REQUIRED.items():
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


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("local[4]", {}, 2048 + 384 + 400),
        ("local", {"spark.driver.memory": "512m"}, 512 + 384 + 100),
        ("local[2, 3]", {"spark.driver.memory": "8G"}, 8192 + 819 + 200),
        ("spark://host:7077", {"spark.driver.memory": 1024}, 1024 + 384),
        ("sc://host", {"spark.driver.memory": "64g"}, 0),
    ],
)
def test_what_spark_takes_of_the_memory(master, conf, expected):
    """The heap is the driver's; Python workers are here only where the tasks are."""
    assert session.memory_bytes(master, conf) // MIB == expected


def test_the_rows_for_which_the_heap_is_large_enough():
    assert session.largest_row_bytes("local[2]", {}) == 128 * MIB
    assert session.largest_row_bytes("local", {"spark.driver.memory": "4g"}) == 256 * MIB
    assert session.largest_row_bytes("spark://host:7077", {}) is None, "rows are at its executors, too"


def test_a_jvm_that_lives_has_not_died(spark, monkeypatch):
    monkeypatch.setattr(session, "_ENDING_S", 0.2)
    assert session.died() is None
    assert session.lost(ConnectionRefusedError("of somebody else")) is None


def test_checksums_are_written_without_processes(spark, tmp_path):
    """The setting is internal. Of processes that have ended, the kernel counts the page faults for their parent."""

    def faults_of_children():
        jvm = session._process()
        assert jvm is not None
        stat = Path(f"/proc/{jvm.pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[8])

    def faults_of_commits(name, manager):
        forked = session.fork(spark)
        forked.conf.set(session.CHECKSUM_WRITER, manager)
        path = str(tmp_path / name)
        for number in range(4):
            if number == 1:  # the first one creates the table
                before = faults_of_children()
            forked.range(1).coalesce(1).write.format("delta").mode("append").save(path)
        assert len(list((tmp_path / name / "_delta_log").glob("0*.crc"))) == 4
        return faults_of_children() - before

    ours = session.DEFAULTS[session.CHECKSUM_WRITER]
    theirs = ours.replace("FileSystemBased", "FileContextBased")
    found = faults_of_commits("ours", ours), faults_of_commits("theirs", theirs)
    assert found[0] < found[1] * 0.8, found  # the others set permissions


@pytest.mark.parametrize(("users", "commits", "checkpoints"), [(None, 11, []), ("2", 3, ["2.checkpoint"])])
def test_checkpoints_are_rare_in_tables_of_ours(spark, tmp_path, users, commits, checkpoints):
    forked = session.fork(spark)
    if users is not None:
        forked.conf.set(session.CHECKPOINT_INTERVAL, users)
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
