"""A table that is written anew, joined with a batch's effects or from kept rows, is the same as one merged into."""

from __future__ import annotations

import random
import shutil
import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from bridge.batch.batch import TableChanges
from bridge.effects import kept_rows
from bridge.effects.conflicts import Conflicts
from bridge.effects.events import DELETE, INSERT, UPDATE
from bridge.lake import location, transaction
from bridge.lake.commit import merge_effects, rewrite
from bridge.lake.commit.apply_table import apply_table
from bridge.lake.ddl import create_table
from bridge.lake.log.stamp import CommitStamp, stamped
from bridge.lake.schema import target_schema_of
from bridge.lake.table import forget_size, table_size, table_version
from bridge.spark.outcome import SPARK_ERRORS, is_concurrent
from bridge.spark.session import fork
from bridge.targets.target import Target, TargetColumn
from protocol.lsn import Lsn
from protocol.values.types import resolve
from tests.bridge.apply.made_targets import changes_of, content

BIGINT, TEXT = 20, 25
NAMES = ("match_0", "begins", "n")
"""Of the columns: those of effects have such names, too."""
KEPT = [("a", "old", 1), ("b", "old", 2), ("c", None, 3)]


BOTH = pytest.mark.parametrize("joins", ["kept", "joined"], indirect=True)
"""With a tiny table's rows kept, which is how it is without this, and with its rows read and joined by Spark."""


@pytest.fixture
def joins(request, monkeypatch):
    """What became of each commit so far; None for those that are merged."""
    if getattr(request, "param", "kept") == "joined":
        monkeypatch.setattr(rewrite, "_overwrite_kept", lambda *_: False)
    done = list[rewrite.Joined | None]()

    def noted(*args):
        done.append(rewrite.rewrite_joined(*args))
        return done[-1]

    monkeypatch.setattr(merge_effects, "rewrite_joined", noted)
    return done


def filled(spark, folder, rows=KEPT, *, name="t", files=2):
    """Make a table, as pgbridge does, of a key, a note and a number."""
    frame = spark.createDataFrame(rows, f"`{NAMES[0]}` string, `{NAMES[1]}` string, `{NAMES[2]}` long")
    path = str(folder / name)
    create_table(spark, path, frame.schema)
    frame.coalesce(files).writeTo(f"delta.`{path}`").append()
    forget_size(path)
    return Target("public", name, path, target_schema_of(frame.schema))


def changes(target, *rows, key=(0,)):
    """Changes of (op, old key, key, note, n)."""
    columns = tuple(TargetColumn(name, resolve(oid, -1)) for name, oid in zip(NAMES, (TEXT, TEXT, BIGINT), strict=True))
    table = changes_of(rows, pa.string(), pa.string(), pa.int64())
    return TableChanges(target, columns, key, table)


def update(key, note, n=0):
    return UPDATE, None, key, note, n


def insert(key, note, n=0):
    return INSERT, None, key, note, n


def delete(key):
    return DELETE, key, None, None, None


def move(old, key, note="moved"):
    return UPDATE, old, key, note, 0


@BOTH
def test_a_commit_changes_deletes_and_adds_rows(spark, tmp_path, joins):
    made = filled(spark, tmp_path)
    apply_table(
        spark,
        changes(made, update("a", "new", -1), delete("b"), insert("d", "n"), insert("brief", "b"), delete("brief")),
    )
    assert content(spark, made) == [("a", "new", -1), ("c", None, 3), ("d", "n", 0)]
    apply_table(spark, changes(made, update("c", "new")))
    apply_table(spark, changes(made, delete("c"), delete("a"), delete("d")))
    assert content(spark, made) == []
    assert [join.as_expected for join in joins] == [True] * 3
    row = spark.sql(f"DESCRIBE HISTORY delta.`{made.path}` LIMIT 1").collect()[0]
    assert (row.operation, row.operationParameters["mode"]) == ("WRITE", "Overwrite")


def test_files_do_not_become_more(spark, tmp_path, joins):
    made = filled(spark, tmp_path)
    for number in range(4):
        apply_table(spark, changes(made, update("a", "x", number), insert(f"new {number}", "y")))
    forget_size(made.path)
    assert table_size(spark, made.path).files <= 2
    assert all(joins)


@BOTH
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
def test_random_changes_have_the_same_result_as_by_merge(spark, tmp_path, monkeypatch, joins, seed):
    """Also those that meet no row, or one that should not be there; and so are the conflicts."""
    keys = [f"k{i}" for i in range(12)]
    chosen = random.Random(seed)
    rows = [(one, "first", i) for i, one in enumerate(keys[::2])]
    ours, merged = filled(spark, tmp_path, rows), filled(spark, tmp_path, rows, name="merged")
    found = {ours.path: list[Conflicts](), merged.path: list[Conflicts]()}
    errors = 0

    def applied(target, made):
        try:
            apply_table(spark, changes(target, *made), conflicts=found[target.path].append)
        except Exception as error:  # noqa: BLE001 - compared with the other one's
            return "insert_exists" in str(error)
        return False

    for _ in range(4):
        there = {row[0] for row in content(spark, ours)}
        made = []
        for number in range(chosen.randrange(2, 9)):
            one, other = chosen.sample(keys, 2)
            if one in there and chosen.random() < 0.3:
                made.append(delete(one))
                there.discard(one)
            elif one in there and other not in there and chosen.random() < 0.1:
                made.append(move(one, other))
                there = there - {one} | {other}
            elif one in there or chosen.random() < 0.15:
                made.append(update(one, chosen.choice(["u", "", None]), number))
            else:
                made.append(insert(one, f"i{number}", number))
                there.add(one)
        if chosen.random() < 0.2:
            made.append(insert(chosen.choice([*there, "k0"]), "in the way"))
        failed = applied(ours, made)
        with monkeypatch.context() as merging:
            merging.setattr(merge_effects, "rewrite_joined", lambda *_: None)
            assert applied(merged, made) == failed
        errors += failed
        assert content(spark, ours) == content(spark, merged)
    tallies = [[(tally.counts, sorted(tally.examples)) for tally in each] for each in found.values()]
    assert tallies[0] == tallies[1]
    assert any(joins)


@BOTH
def test_an_unchanged_value_stays(spark, tmp_path, joins):
    made = filled(spark, tmp_path)
    changed = changes(made, update("a", None, 10), update("b", "new", 20), update("c", None, 30), insert("e", None, 5))
    assert isinstance(changed.changes, pa.Table)
    marked = changed.changes.append_column("unchanged_1", pa.array([True, False, None, None]))
    apply_table(spark, replace(changed, changes=marked))
    assert content(spark, made) == [("a", "old", 10), ("b", "new", 20), ("c", None, 30), ("e", None, 5)]
    assert all(joins)


@BOTH
def test_a_key_of_several_columns(spark, tmp_path, joins):
    made = filled(spark, tmp_path, [("a", "old", 1), ("b", "old", 1), ("a", "old", 2)])
    changed = changes(made, update("a", "new", 1), key=(0, 2))
    apply_table(spark, changed)
    assert content(spark, made) == [("a", "new", 1), ("a", "old", 2), ("b", "old", 1)]
    assert all(joins)


@BOTH
def test_missing_rows_are_conflicts_as_by_merge(spark, tmp_path, joins):
    made = filled(spark, tmp_path)
    found = list[Conflicts]()
    apply_table(
        spark,
        changes(made, update("missing", "x"), update("missing", "y"), delete("neither"), update("a", "x")),
        conflicts=found.append,
    )
    assert content(spark, made) == [("a", "x", 0), *KEPT[1:]]
    assert [conflicts.counts for conflicts in found] == [{"update_missing": 2, "delete_missing": 1}]
    assert [join.as_expected for join in joins] == [False]


@BOTH
def test_a_row_in_the_way_is_a_conflict_even_if_it_ends(spark, tmp_path, joins):
    """And though another one is missing: they would make up for each other in a count."""
    made = filled(spark, tmp_path)
    for rows in ([update("missing", "x"), insert("a", "x")], [update("b", "new"), insert("a", "x"), delete("a")]):
        with pytest.raises(Exception, match="insert_exists"):
            apply_table(spark, changes(made, *rows))
    assert content(spark, made) == KEPT
    assert joins == [None, None]


def test_what_depends_on_missing_rows_is_merged(spark, tmp_path, joins):
    """A row that moves or is born again, and one that overwrites what is there."""
    made = filled(spark, tmp_path)
    apply_table(spark, changes(made, move("a", "z")))
    apply_table(spark, changes(made, delete("b"), insert("b", "again")))
    apply_table(spark, changes(made, insert("c", "over"), update("z", "x")), conflict="apply_remote")
    assert content(spark, made) == [("b", "again", 0), ("c", "over", 0), ("z", "x", 0)]
    assert joins == [None] * 3


def test_a_key_that_is_there_twice(spark, tmp_path, joins):
    made = filled(spark, tmp_path, [("a", "old", 1), ("a", "too", 2), ("b", "old", 3)])
    found = list[Conflicts]()
    apply_table(spark, changes(made, update("a", "new")), conflicts=found.append)
    assert content(spark, made) == [("a", "new", 0), ("a", "new", 0), ("b", "old", 3)]
    assert not found
    assert [join.as_expected for join in joins] == [False]


def test_a_row_that_is_there_twice_does_not_make_up_for_a_missing_one(spark, tmp_path, joins):
    made = filled(spark, tmp_path, [("a", "old", 1), ("a", "too", 2), ("b", "old", 3)])
    found = list[Conflicts]()
    apply_table(spark, changes(made, update("a", "new"), delete("missing")), conflicts=found.append)
    assert content(spark, made) == [("a", "new", 0), ("a", "new", 0), ("b", "old", 3)]
    assert [conflicts.counts for conflicts in found] == [{"delete_missing": 1}]
    assert [join.as_expected for join in joins] == [False]


def test_a_table_with_a_column_of_its_own_is_merged_into(spark, tmp_path, joins):
    made = filled(spark, tmp_path)
    spark.sql(f"ALTER TABLE delta.`{made.path}` ADD COLUMN theirs string").collect()
    spark.sql(f"UPDATE delta.`{made.path}` SET theirs = 'kept'").collect()
    apply_table(spark, changes(made, update("a", "new")))
    assert content(spark, made)[0] == ("a", "new", 0, "kept")
    assert joins == [None]


def test_a_large_table_and_many_changes_are_merged(spark, tmp_path, monkeypatch, joins):
    made = filled(spark, tmp_path, [(str(i), "x", i) for i in range(9)], files=3)
    for name, value in (("_MOST_FILES", 1), ("_MOST_BYTES", 100), ("_MOST_EFFECTS", 1)):
        with monkeypatch.context() as small:
            small.setattr(rewrite, name, value)
            apply_table(spark, changes(made, update("1", name), update("2", name)))
    assert joins == [None] * 3


@pytest.mark.parametrize("known", [True, False])
def test_a_change_data_feed_switched_on_meanwhile_is_noticed(spark, tmp_path, joins, known):
    """Whether or not the version before is one of ours."""
    made = filled(spark, tmp_path)
    path = made.path
    table_size(spark, path)
    if known:
        apply_table(spark, changes(made, update("a", "new")))
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')").collect()
    version = table_version(spark, path) + 1
    apply_table(spark, changes(made, update("b", "new")))
    assert joins[-1] is None
    feed = spark.sql(f"SELECT _change_type FROM table_changes_by_path('{path}', {version})").collect()
    assert sorted(row[0] for row in feed) == ["update_postimage", "update_preimage"]


@BOTH
def test_the_batch_is_committed_once(spark, tmp_path, joins):
    """Delta leaves it out the second time, and the query that would count rows is never run."""
    made = filled(spark, tmp_path)
    session = fork(spark)
    for _ in range(2):
        with stamped(session, CommitStamp("app", Lsn(1), Lsn(2))):
            apply_table(session, changes(made, update("a", "new"), update("b", "new", 1), delete("c")))
    assert content(spark, made) == [("a", "new", 0), ("b", "new", 1)]
    assert table_version(spark, made.path) == 2
    assert [join.as_expected for join in joins] == [True, True]


@pytest.fixture
def between(spark, monkeypatch):
    """Has another writer run a statement once: just before the next transaction begins, or just before it writes."""

    def run(target, statement, *, begun, session=None):
        waiting = [statement.format(f"delta.`{target.path}`")]

        def theirs():
            if waiting:
                writer = threading.Thread(
                    target=lambda text: (session or spark).sql(text).collect(), args=[waiting.pop()]
                )
                writer.start()
                writer.join()

        def overwrite(self, rows):
            theirs()
            return original(self, rows)

        def begin(*args):
            theirs()
            return transaction.transaction(*args)

        if begun:
            original = transaction.Transaction.overwrite
            monkeypatch.setattr(transaction.Transaction, "overwrite", overwrite)
        else:
            monkeypatch.setattr(rewrite, "transaction", begin)

    return run


def test_a_commit_by_a_killed_daemon_meanwhile_is_left_out(spark, tmp_path, joins, between):
    """Its Spark makes the batch's commit just before ours."""
    made = filled(spark, tmp_path)
    session, other = fork(spark), fork(spark)
    stamp = CommitStamp("app", Lsn(1), Lsn(2))
    between(made, f"UPDATE {{}} SET `{NAMES[1]}` = 'new', n = 0 WHERE `{NAMES[0]}` = 'a'", begun=False, session=other)
    found = list[Conflicts]()
    with stamped(session, stamp), stamped(other, stamp):
        apply_table(session, changes(made, update("a", "new"), update("missing", "x")), conflicts=found.append)
    assert table_version(spark, made.path) == 2
    assert content(spark, made) == [("a", "new", 0), *KEPT[1:]]
    assert joins == [rewrite.Joined(as_expected=True, read_version=2)]
    assert not found


@BOTH
@pytest.mark.parametrize("statement", ["DELETE FROM {} WHERE n = 1", "INSERT INTO {} VALUES ('d', 'theirs', 3)"])
def test_rows_that_another_writer_changes_before_the_commit_begins_are_seen(spark, tmp_path, joins, between, statement):
    made = filled(spark, tmp_path)
    changed = changes(made, update("a", "new"), insert("d", "ours"))
    found = list[Conflicts]()
    between(made, statement, begun=False)
    if statement.startswith("DELETE"):
        apply_table(spark, changed, conflicts=found.append)
        assert content(spark, made) == [*KEPT[1:], ("d", "ours", 0)]
        assert [conflicts.counts for conflicts in found] == [{"update_missing": 1}]
        assert [join.as_expected for join in joins] == [False]
    else:
        with pytest.raises(Exception, match="insert_exists"):
            apply_table(spark, changed)
        assert content(spark, made) == [*KEPT, ("d", "theirs", 3)]
        assert joins == [None]


ALTERATIONS = (
    "ALTER TABLE {} ADD COLUMN theirs long",
    "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
    "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    f"ALTER TABLE {{}} CLUSTER BY ({NAMES[0]})",
)


@pytest.mark.parametrize("statement", ALTERATIONS)
def test_a_table_that_is_altered_before_the_commit_begins_is_merged_into(spark, tmp_path, joins, between, statement):
    made = filled(spark, tmp_path)
    between(made, statement, begun=False)
    apply_table(spark, changes(made, update("a", "new")))
    assert joins == [None]
    assert [row[:3] for row in content(spark, made)] == [("a", "new", 0), *KEPT[1:]]


@BOTH
@pytest.mark.parametrize(
    "statement", [*ALTERATIONS[:2], "DELETE FROM {} WHERE n = 1", "INSERT INTO {} VALUES ('d', 'theirs', 3)"]
)
def test_what_another_writer_commits_once_the_transaction_has_begun_makes_it_fail(
    spark, tmp_path, joins, between, statement
):
    """Nothing is committed, and the next attempt finds the table as it is then."""
    made = filled(spark, tmp_path, files=1)
    changed = changes(made, update("b", "new"))
    between(made, statement, begun=True)
    with pytest.raises(SPARK_ERRORS) as refused:
        apply_table(spark, changed)
    assert is_concurrent(refused.value)
    assert table_version(spark, made.path) == 2
    apply_table(spark, changed)
    assert [join is None for join in joins] == [statement in ALTERATIONS]
    theirs = {"DELETE": KEPT[2:], "INSERT": [*KEPT[::2], ("d", "theirs", 3)]}.get(statement[:6], KEPT[::2])
    assert [row[:3] for row in content(spark, made)] == sorted([*theirs, ("b", "new", 0)], key=str)


@pytest.mark.parametrize("statement", ALTERATIONS[2:])
def test_features_that_another_writer_switches_on_once_it_has_begun_stay_on(spark, tmp_path, joins, between, statement):
    """Delta lets files that were written without them come after them; the next commit is made in another way."""
    made = filled(spark, tmp_path, files=1)
    between(made, statement, begun=True)
    for note in ("x", "y"):
        forget_size(made.path)
        apply_table(spark, changes(made, update("a", note)))
    assert joins[0] is not None
    assert not any(joins[1:])
    assert content(spark, made) == [("a", "y", 0), *KEPT[1:]]


def test_kept_rows_are_read_once_and_only_while_the_table_has_their_version(spark, tmp_path, monkeypatch, joins):
    """Another writer's commit, a table in its place, and rows that are too large are seen."""
    reads = []

    def read_table(session, path, **kwargs):
        reads.append(path)
        return original(session, path, **kwargs)

    original = location.read_table
    monkeypatch.setattr(rewrite, "read_table", read_table)
    made = filled(spark, tmp_path)
    for number in range(3):
        apply_table(spark, changes(made, update("a", "new", number), insert(f"d{number}", "n")))
    assert len(reads) == 1
    spark.sql(f"UPDATE delta.`{made.path}` SET n = 7 WHERE `{NAMES[0]}` = 'b'").collect()
    apply_table(spark, changes(made, update("a", "again")))
    assert len(reads) == 2
    assert content(spark, made)[:2] == [("a", "again", 0), ("b", "old", 7)]
    other = filled(spark, tmp_path, [("a", "x", 1)], name="other", files=1)
    for _ in range(table_version(spark, made.path) - table_version(spark, other.path)):
        spark.sql(f"UPDATE delta.`{other.path}` SET n = n + 1").collect()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    shutil.rmtree(made.path)
    shutil.copytree(other.path, made.path)
    apply_table(spark, changes(made, update("a", "in its place")))
    assert content(spark, made) == [("a", "in its place", 0)]
    apply_table(spark, changes(made, update("a", "x" * (kept_rows.MOST_BYTES + 1))))
    count = len(reads)
    for note in ("y", "z"):
        apply_table(spark, changes(made, update("a", note)))
    assert len(reads) == count + 2  # by the join, each time
    assert content(spark, made) == [("a", "z", 0)]
    assert all(joins)
