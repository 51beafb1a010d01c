"""What only replacements have: rows that are kept, a transaction that is begun here, and what they leave to MERGE."""

from __future__ import annotations

import shutil
import threading
from typing import Any

import pytest

from pgbridge.bridge.effects import kept_rows
from pgbridge.bridge.lake import location, transaction
from pgbridge.bridge.lake.commit import replace as replacing
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.lake.table_facts import read_facts
from pgbridge.bridge.lake.transaction import Transaction
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, is_concurrent
from pgbridge.bridge.spark.session import fork
from pgbridge.protocol.lsn import Lsn
from tests.bridge.lake.commit.made_commits import (
    NAMES,
    ROWS,
    Commits,
    changes,
    delete,
    insert,
    move,
    nothing_known,
    update,
)


@pytest.fixture
def by(request, spark, tmp_path, monkeypatch):
    """Commits with kept rows, or the way that is asked for."""
    way = getattr(request, "param", "kept")
    return Commits(spark, tmp_path, way, monkeypatch)


BOTH = pytest.mark.parametrize("by", ["kept", "joined"], indirect=True)


@BOTH
def test_files_do_not_become_more(by):
    made = by.table(files=2)
    for number in range(4):
        by.apply(changes(made, update("a", "x", number), insert(f"new {number}", "y")))
    assert read_facts(by.spark, made.path).files <= 2
    by.went(*["made"] * 4)
    row = by.spark.sql(f"DESCRIBE HISTORY delta.`{made.path}` LIMIT 1").collect()[0]
    assert (row.operation, row.operationParameters["mode"]) == ("WRITE", "Overwrite")


@BOTH
def test_a_key_of_several_columns(by):
    made = by.table([("a", "old", 1), ("b", "old", 1), ("a", "old", 2)])
    by.apply(changes(made, update("a", "new", 1), key=(0, 2)))
    assert by.content(made) == [("a", "new", 1), ("a", "old", 2), ("b", "old", 1)]
    by.went("made")


def test_what_depends_on_missing_rows_is_merged(by):
    """A row that moves or is born again, and one that overwrites what is there."""
    made = by.table()
    by.apply(changes(made, move("a", "z")))
    by.apply(changes(made, delete("b"), insert("b", "again")))
    by.apply(changes(made, insert("c", "over"), update("z", "x")), conflict="apply_remote")
    assert by.content(made) == [("b", "again", 0), ("c", "over", 0), ("z", "x", 0)]
    assert [carried.way for carried in by.carried] == ["merged"] * 3


@pytest.mark.parametrize("by", ["kept", "by key"], indirect=True)
def test_a_change_data_feed_switched_on_meanwhile_is_noticed(by):
    """Though a version of ours is the one before."""
    made = by.table()
    by.apply(changes(made, update("a", "new")))
    by.spark.sql(f"ALTER TABLE delta.`{made.path}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')").collect()
    version = table_version(by.spark, made.path) + 1
    by.apply(changes(made, update("b", "new")))
    by.went("made", "refused")
    feed = by.spark.sql(f"SELECT _change_type FROM table_changes_by_path('{made.path}', {version})").collect()
    assert sorted(row[0] for row in feed) == ["update_postimage", "update_preimage"]


@pytest.mark.parametrize("by", ["by key"], indirect=True)
def test_rows_that_are_deleted_by_key_leave_no_file(by):
    made = by.table()
    by.apply(changes(made, delete("a"), delete("b"), delete("c")))
    by.went("made")
    row = by.spark.sql(f"DESCRIBE HISTORY delta.`{made.path}` LIMIT 1").collect()[0]
    assert (row.operation, row.operationMetrics["numFiles"]) == ("WRITE", "0")


# --- other writers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def between(spark, monkeypatch):
    """Has another writer run a statement once: just before the next transaction begins, or just before it writes."""

    def run(target, statement, *, begun, session=None):
        waiting = [statement.format(f"delta.`{target.path}`")]
        at: Any = Transaction.overwrite if begun else transaction.transaction

        def after_theirs(*args):
            if waiting:
                writer = threading.Thread(
                    target=lambda text: (session or spark).sql(text).collect(), args=[waiting.pop()]
                )
                writer.start()
                writer.join()
            return at(*args)

        if begun:
            monkeypatch.setattr(Transaction, "overwrite", after_theirs)
        else:
            monkeypatch.setattr(replacing, "transaction", after_theirs)

    return run


def test_a_commit_by_a_killed_daemon_meanwhile_is_left_out(by, between):
    """Its Spark makes the batch's commit just before ours."""
    made = by.table()
    session, other = fork(by.spark), fork(by.spark)
    stamp = CommitStamp("app", Lsn(1), Lsn(2))
    between(made, f"UPDATE {{}} SET `{NAMES[1]}` = 'new', n = 0 WHERE `{NAMES[0]}` = 'a'", begun=False, session=other)
    with stamped(session, stamp), stamped(other, stamp):
        assert by.apply(changes(made, update("a", "new"), update("missing", "x")), session) == []
    assert table_version(by.spark, made.path) == 2
    assert by.content(made) == [("a", "new", 0), *ROWS[1:]]
    by.went("left out")


ALTERATIONS = (
    "ALTER TABLE {} ADD COLUMN theirs long",
    "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
    "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    f"ALTER TABLE {{}} CLUSTER BY ({NAMES[0]})",
)


@pytest.mark.parametrize("statement", ALTERATIONS)
def test_a_table_that_is_altered_before_the_transaction_begins_is_merged_into(by, between, statement):
    made = by.table()
    between(made, statement, begun=False)
    by.apply(changes(made, update("a", "new")))
    by.went("refused")
    assert [row[:3] for row in by.content(made)] == [("a", "new", 0), *ROWS[1:]]


@BOTH
@pytest.mark.parametrize("statement", [*ALTERATIONS[:2], "INSERT INTO {} VALUES ('d', 'theirs', 3)"])
def test_what_another_writer_commits_once_the_transaction_has_begun_makes_it_fail(by, between, statement):
    """Nothing is committed, and the next attempt finds the table as it is then."""
    made = by.table()
    changed = changes(made, update("b", "new"))
    between(made, statement, begun=True)
    with pytest.raises(SPARK_ERRORS) as refused:
        by.apply(changed)
    assert is_concurrent(refused.value)
    assert table_version(by.spark, made.path) == 2
    by.carried.clear()
    by.apply(changed)
    by.went("refused" if statement in ALTERATIONS else "made")
    theirs = [] if statement in ALTERATIONS else [("d", "theirs", 3)]
    assert [row[:3] for row in by.content(made)] == sorted([*ROWS[::2], *theirs, ("b", "new", 0)])


@pytest.mark.parametrize("statement", ALTERATIONS[2:])
def test_features_that_another_writer_switches_on_once_it_has_begun_stay_on(by, between, statement):
    """Delta lets files that were written without them come after them; the next commit is made in another way."""
    made = by.table()
    between(made, statement, begun=True)
    for note in ("x", "y"):
        by.known.forget(made.path)
        by.apply(changes(made, update("a", note)))
    assert by.carried[0].way == "replaced"
    assert "replaced" not in [carried.way for carried in by.carried[1:]]
    assert by.content(made) == [("a", "y", 0), *ROWS[1:]]


@pytest.mark.parametrize("by", ["joined"], indirect=True)
@pytest.mark.parametrize(
    ("name", "renames", "reads"),
    [
        ("t", None, 1),
        ("a [b]{c,d}*? ü", None, 3),  # Spark takes it for a pattern
        ("t", "n", 3),  # the column has another name in files
    ],
)
def test_files_that_the_last_commit_names_are_read_as_such(by, monkeypatch, name, renames, reads):
    """Delta would put the state of the table together first: that is more than half of a commit."""
    asked = []

    def noted(spark, path):
        asked.append(path)
        return location.read_table(spark, path)

    monkeypatch.setattr(replacing, "read_table", noted)
    made = by.table(name=name)
    if renames is not None:
        alter = f"ALTER TABLE delta.`{made.path}`"
        by.spark.sql(f"{alter} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')").collect()
        by.spark.sql(f"{alter} RENAME COLUMN {renames} TO other").collect()
        by.spark.sql(f"{alter} RENAME COLUMN other TO {renames}").collect()
    for number in range(3):
        by.apply(changes(made, update("a", "x", number), insert(f"new {number}", "y")))
    assert by.content(made) == [("a", "x", 2), *ROWS[1:], *((f"new {number}", "y", 0) for number in range(3))]
    by.went(*["made"] * 3)
    assert len(asked) == reads


def test_kept_rows_are_read_once_and_only_while_the_table_has_their_version(by, monkeypatch):
    """Another writer's commit, a table in its place, and rows that are too large are seen."""
    spark, reads = by.spark, []
    read_table = location.read_table

    def noted(session, path, **kwargs):
        reads.append(path)
        return read_table(session, path, **kwargs)

    read_all = replacing._table

    def joined(session, begun, path):
        reads.append(path)
        return read_all(session, begun, path)

    monkeypatch.setattr(replacing, "read_table", noted)
    monkeypatch.setattr(replacing, "_table", joined)
    made = by.table()
    for number in range(3):
        by.apply(changes(made, update("a", "new", number), insert(f"d{number}", "n")))
    assert len(reads) == 1
    by.known = nothing_known()  # as after a restart: the last commit names the files
    by.apply(changes(made, update("d2", "m", 2)))
    assert len(reads) == 1
    spark.sql(f"UPDATE delta.`{made.path}` SET n = 7 WHERE `{NAMES[0]}` = 'b'").collect()
    by.apply(changes(made, update("a", "again")))
    assert len(reads) == 2
    assert by.content(made)[:2] == [("a", "again", 0), ("b", "old", 7)]
    other = by.table([("a", "x", 1)], name="other")
    for _ in range(table_version(spark, made.path) - table_version(spark, other.path)):
        spark.sql(f"UPDATE delta.`{other.path}` SET n = n + 1").collect()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    shutil.rmtree(made.path)
    shutil.copytree(other.path, made.path)
    by.apply(changes(made, update("a", "in its place")))
    assert by.content(made) == [("a", "in its place", 0)]
    by.apply(changes(made, update("a", "x" * (kept_rows.MOST_BYTES + 1))))
    count = len(reads)
    for note in ("y", "z"):
        by.apply(changes(made, update("a", note)))
    assert len(reads) == count + 2  # by the join, each time
    assert by.content(made) == [("a", "z", 0)]
    assert {carried.way for carried in by.carried} == {"replaced"}
