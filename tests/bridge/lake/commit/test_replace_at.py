"""What only commits by places have: deletion vectors of files that are known, and what another writer does to them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pgbridge.bridge.lake.commit import replace_at as by_places
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.lake.table_facts import read_facts
from pgbridge.bridge.lake.transaction import transaction
from pgbridge.bridge.spark.session import fork, java_class, scala_object
from pgbridge.protocol.lsn import Lsn
from tests.bridge.lake.commit.made_commits import BIGINT, NAMES, ROWS, Commits, changes, delete, insert, move, update


@pytest.fixture
def by(spark, tmp_path, monkeypatch):
    """Commits by places."""
    return Commits(spark, tmp_path, "by place", monkeypatch)


@pytest.fixture
def reads(monkeypatch):
    """The files whose keys are read."""
    read, files = by_places._read, []

    def noted(begun, file, column):
        files.append(file)
        return read(begun, file, column)

    monkeypatch.setattr(by_places, "_read", noted)
    return files


def jobs(spark):
    return spark.sparkContext._jsc.sc().dagScheduler().nextJobId()


def stamp(number):
    return CommitStamp("app", Lsn(0), Lsn(number))


def test_a_commit_is_one_job_and_reads_nothing_of_the_table(by, spark, reads):
    made, session = by.table(files=2), fork(spark)
    with stamped(session, stamp(1)):
        by.apply(changes(made, update("a", "new"), insert("d", "d")), session)
    assert len(reads) == 2 + 1  # the table's, and the new one
    before = jobs(spark)
    with stamped(session, stamp(2)):
        by.apply(changes(made, update("b", "new"), update("a", "newer"), delete("c")), session)
    assert jobs(spark) == before + 1
    assert len(reads) == 4
    with stamped(session, stamp(2)):  # once more
        by.apply(changes(made, update("b", "twice")), session)
    by.went("made", "made", "left out")
    assert jobs(spark) == before + 1
    assert by.content(made) == [("a", "newer", 0), ("b", "new", 0), ("d", "d", 0)]
    row = spark.sql(f"DESCRIBE HISTORY delta.`{made.path}` LIMIT 1").collect()[0]
    shown = {name: row.operationMetrics[f"numTargetRows{name}"] for name in ("Inserted", "Updated", "Deleted")}
    assert (row.operation, shown, row.isBlindAppend) == (
        "MERGE",
        {"Inserted": "0", "Updated": "2", "Deleted": "1"},
        False,
    )


def test_delta_finds_all_as_it_left_it(by, spark):
    """The log's checksums, the files' statistics, and what readers skip by them."""
    made = by.table([(key, f"n{key}", key) for key in range(100)], key=BIGINT, files=3)
    chosen, held = random.Random(1), dict.fromkeys(range(100), None)
    for number in range(12):
        rows = []
        for key in chosen.sample(range(140), 30):
            if key not in held:
                rows.append(insert(key, f"i{number}", number))
                held[key] = number
            elif chosen.random() < 0.3:
                rows.append(delete(key))
                del held[key]
            else:
                rows.append(update(key, f"u{number}", number))
                held[key] = number
        by.apply(changes(made, *rows))
        assert {row[0] for row in by.content(made)} == set(held)
    by.went(*["made"] * 12)
    assert {row[0]: row[2] for row in by.content(made)} == {k: k if n is None else n for k, n in held.items()}
    spark.conf.set("spark.databricks.delta.state.corruptionIsFatal", "true")
    logs = java_class(spark, "org.apache.spark.sql.delta.DeltaLog")
    logs.clearCache()
    nothing = scala_object(spark, "scala.collection.immutable.Map").empty()
    assert logs.forTable(spark._jsparkSession, made.path).unsafeVolatileSnapshot().validateChecksum(nothing)
    table = spark.read.format("delta").load(made.path)
    for number in range(12):
        assert table.filter(f"{NAMES[2]} = {number}").count() == list(held.values()).count(number) + (
            number in held and held[number] is None
        )
    spark.sql(f"OPTIMIZE delta.`{made.path}`").collect()
    by.apply(changes(made, *(delete(key) for key in held)))
    by.went("made")
    assert by.content(made) == []
    assert read_facts(spark, made.path).files == 0


def test_a_file_whose_rows_are_all_deleted_is_removed(by, spark):
    made = by.table()
    for note in ("x", "y", "z"):
        by.apply(changes(made, update("a", note), update("b", note), update("c", note)))
    assert read_facts(spark, made.path).files == 1
    assert not list(Path(made.path).glob("*deletion_vector*"))
    by.went(*["made"] * 3)


@pytest.mark.parametrize(
    "theirs",
    [
        f"UPDATE {{}} SET n = 7 WHERE `{NAMES[0]}` = 'b'",
        f"DELETE FROM {{}} WHERE `{NAMES[0]}` = 'd'",
        "OPTIMIZE {}",
        "RESTORE TABLE {} TO VERSION AS OF 2",
    ],
)
def test_after_another_writer_s_commit_the_keys_are_read_again(by, spark, reads, theirs):
    made = by.table(files=2)
    by.apply(changes(made, update("a", "new"), insert("d", "d")))
    spark.sql(theirs.format(f"delta.`{made.path}`")).collect()
    before, count = {row[0]: row for row in by.content(made)}, len(reads)
    by.apply(changes(made, update("a", "again"), delete("c")))
    assert len(reads) > count + 1
    del before["c"]
    assert by.content(made) == sorted([*(row for key, row in before.items() if key != "a"), ("a", "again", 0)])
    by.went("made", "made")


def test_a_commit_between_ours_and_the_one_that_it_replaces_is_seen(by, spark, reads, monkeypatch):
    """An append that Delta lets pass, or makes fail: never are places kept that are not the version's."""
    made = by.table()
    by.apply(changes(made, update("a", "new")))
    path = made.path

    def late(session, path):
        monkeypatch.setattr(by_places, "transaction", transaction)
        spark.sql(f"INSERT INTO delta.`{path}` VALUES ('e', 'theirs', 5)").collect()
        return transaction(session, path)

    monkeypatch.setattr(by_places, "transaction", late)
    by.apply(changes(made, update("b", "new"), delete("c")))
    assert by.content(made) == [("a", "new", 0), ("b", "new", 0), ("e", "theirs", 5)]
    by.apply(changes(made, delete("e")))
    assert by.content(made) == [("a", "new", 0), ("b", "new", 0)]
    assert table_version(spark, path) == 6


def test_what_is_missing_is_counted_and_the_places_stay_known(by, reads):
    made = by.table()
    for number, rows in enumerate(([update("a", "new", 7)], [], [delete("also missing")])):
        counted = by.apply(changes(made, update("missing", "x"), *rows))
        assert counted == [{"update_missing": 1} | ({"delete_missing": 1} if number == 2 else {})]
    by.went("made", "made", "made")
    assert by.content(made) == [("a", "new", 7), *ROWS[1:]]
    assert len(reads) == 2


def test_what_is_in_the_way_or_moves_is_merged(by):
    made = by.table()
    by.apply(changes(made, insert("b", "over")), conflict="apply_remote")
    by.apply(changes(made, move("c", "z")))
    assert by.content(made) == [("a", "old", 1), ("b", "over", 0), ("z", "moved", 0)]
    assert [carried.way for carried in by.carried if carried.outcome.state == "made"] == ["merged"] * 2


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE {} ADD COLUMN theirs long",
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')",
    ],
)
def test_a_table_that_is_altered_is_merged_into(by, spark, statement):
    made = by.table()
    by.apply(changes(made, update("a", "new")))
    spark.sql(statement.format(f"delta.`{made.path}`")).collect()
    by.apply(changes(made, update("b", "new")))
    by.went("made", "refused")
    assert [row[:3] for row in by.content(made)] == [("a", "new", 0), ("b", "new", 0), ROWS[2]]


def test_columns_by_other_names_in_the_files(by, spark):
    made = by.table()
    for statement in (
        "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        f"RENAME COLUMN `{NAMES[1]}` TO other",
        f"RENAME COLUMN `{NAMES[0]}` TO `{NAMES[1]}`",
        f"RENAME COLUMN other TO `{NAMES[0]}`",
    ):
        spark.sql(f"ALTER TABLE delta.`{made.path}` {statement}").collect()
    # what was the note is the key now
    spark.sql(f"UPDATE delta.`{made.path}` SET `{NAMES[0]}` = `{NAMES[1]}`, `{NAMES[1]}` = 'note'").collect()
    for note in ("x", "y"):
        by.apply(changes(made, update("a", note)))
    by.went("made", "made")
    assert sorted(by.content(made), key=str) == [("note", "b", 2), ("note", "c", 3), ("y", "a", 0)]


def test_places_that_are_too_many_are_not_kept(by, reads, monkeypatch):
    monkeypatch.setattr(by_places, "MOST_BYTES", 4 * 9)
    made = by.table()
    by.apply(changes(made, update("a", "new"), insert("d", "d"), insert("e", "e")))
    by.apply(changes(made, update("a", "newer")))
    count = len(reads)
    by.apply(changes(made, update("a", "newest")))
    by.went("made", "refused", "refused")
    assert len(reads) == count
    assert by.content(made)[0] == ("a", "newest", 0)


@pytest.mark.parametrize("damaged", ["a file that is gone", "no statistics", "a key that is there twice"])
def test_what_cannot_be_read_here_is_left_to_spark(by, spark, damaged):
    made = by.table(files=3)
    if damaged == "a key that is there twice":
        spark.sql(f"INSERT INTO delta.`{made.path}` VALUES ('b', 'twice', 3)").collect()
    if damaged == "a file that is gone":
        entry = max(Path(made.path, "_delta_log").glob("*.json")).read_text()
        added = [json.loads(line)["add"] for line in entry.splitlines() if line.startswith('{"add"')]
        (last,) = (file["path"] for file in added if '"c"' in file["stats"])
        Path(made.path, last).unlink()
    if damaged == "no statistics":
        spark.conf.set("spark.databricks.delta.stats.collect", "false")
        spark.sql(f"INSERT INTO delta.`{made.path}` VALUES ('d', 'd', 4)").collect()
        spark.conf.unset("spark.databricks.delta.stats.collect")
    if damaged == "a file that is gone":
        with pytest.raises(Exception, match="(?i)does not exist|not found"):
            by.apply(changes(made, update("a", "new"), update("c", "new")))
    else:
        by.apply(changes(made, update("a", "new")))
        assert by.content(made)[0] == ("a", "new", 0)
    assert by.carried[0].outcome.state == "refused"


def test_another_column_may_become_the_key(by):
    """By an ALTER TABLE on the server, without a commit to the table: the places are those of other keys then."""
    made = by.table([(1, "old", 2), (2, "old", 1)], key=BIGINT)
    by.apply(changes(made, update(1, "x", 2)))
    by.apply(changes(made, update(2, "y", 1), key=(2,)))
    assert by.content(made) == [(1, "x", 2), (2, "y", 1)]
    by.apply(changes(made, update(1, "z", 2)))
    assert by.content(made) == [(1, "z", 2), (2, "y", 1)]
    by.went(*["made"] * 3)
