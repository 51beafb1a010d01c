"""A large table whose rows are rewritten by key is the same as one that is merged into."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from bridge.batch.batch import TableChanges
from bridge.effects.conflicts import Conflicts
from bridge.effects.events import DELETE, INSERT, UPDATE
from bridge.lake import location, table as delta_table
from bridge.lake.commit import key_condition, merge_effects, rewrite
from bridge.lake.commit.apply_table import apply_table
from bridge.lake.ddl import create_table
from bridge.lake.log.stamp import CommitStamp, stamped
from bridge.lake.schema import target_schema_of
from bridge.lake.table import forget_size, table_version
from bridge.spark.session import fork
from bridge.targets.target import Target, TargetColumn
from protocol.lsn import Lsn
from protocol.values.types import resolve
from tests.bridge.apply.made_targets import changes_of, content

HOSTILE = ["", "'", "\\", "a\\'b", "$x", "${x}", "line\nbreak", "ä€😀", "%", "` OR true", "Z" * 50, " a", "a "]
BIGINT, TEXT = 20, 25


@pytest.fixture(autouse=True)
def short_lists(monkeypatch):
    """Lists of two, so that few keys need a tree of them."""
    monkeypatch.setattr(key_condition, "LIST_VALUES", 2)


@pytest.fixture
def rewrites(monkeypatch):
    """Whether each commit so far was by key; others are merged."""
    done = list[bool]()

    def noted(*args):
        done.append(rewrite.rewrite_keys(*args))
        return done[-1]

    monkeypatch.setattr(merge_effects, "rewrite_keys", noted)
    return done


def filled(spark, folder, rows, *, key=TEXT, name="t", properties=""):
    """Make a table with deletion vectors, as pgbridge does, of a key, a note and a number."""
    columns = tuple(TargetColumn(n, resolve(oid, -1)) for n, oid in (("the key", key), ("note", TEXT), ("n", BIGINT)))
    kinds = {TEXT: "string", BIGINT: "long"}
    schema = f"`the key` {kinds[key]}, note string, n long"
    frame = spark.createDataFrame(rows, schema)
    path = str(folder / name)
    create_table(spark, path, frame.schema)
    spark.sql(
        f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true'{properties})"
    ).collect()
    frame.writeTo(f"delta.`{path}`").append()
    forget_size(path)
    return Target("public", name, path, target_schema_of(frame.schema)), columns


def changes(made, *rows):
    """Changes of (op, old key, key, note, n)."""
    target, columns = made
    key = columns[0].type.arrow
    table = changes_of(rows, key, pa.string(), pa.int64())
    return TableChanges(target, columns, (0,), table)


def update(key, note, n=0):
    return UPDATE, None, key, note, n


def insert(key, note, n=0):
    return INSERT, None, key, note, n


def delete(key):
    return DELETE, key, None, None, None


def test_a_commit_deletes_changes_and_adds_by_key(spark, tmp_path, rewrites):
    made = filled(spark, tmp_path, [(text, text, i) for i, text in enumerate(HOSTILE)])
    apply_table(
        spark,
        changes(
            made,
            *(update(text, "new", -1) for text in HOSTILE[:9]),
            *(delete(text) for text in HOSTILE[9:11]),
            insert("another", "n"),
            insert("brief", "b"),
            delete("brief"),
        ),
    )
    kept = [(text, text, i) for i, text in enumerate(HOSTILE)][11:]
    assert content(spark, made[0]) == sorted([*((text, "new", -1) for text in HOSTILE[:9]), *kept, ("another", "n", 0)])
    assert rewrites == [True]
    row = spark.sql(f"DESCRIBE HISTORY delta.`{made[0].path}` LIMIT 1").collect()[0]
    assert (row.operation, row.operationMetrics["numDeletedRows"]) == ("WRITE", "11")


def test_rows_that_are_only_deleted_are_deleted(spark, tmp_path, rewrites):
    made = filled(spark, tmp_path, [(text, text, 0) for text in HOSTILE])
    apply_table(spark, changes(made, *map(delete, HOSTILE[:6])))
    assert content(spark, made[0]) == sorted((text, text, 0) for text in HOSTILE[6:])
    assert rewrites == [True]
    row = spark.sql(f"DESCRIBE HISTORY delta.`{made[0].path}` LIMIT 1").collect()[0]
    assert (row.operation, row.operationMetrics["numFiles"]) == ("WRITE", "0")


@pytest.mark.parametrize("key", [TEXT, pytest.param(BIGINT, marks=pytest.mark.soak)])
def test_random_changes_have_the_same_result_as_by_merge(spark, tmp_path, monkeypatch, rewrites, key):
    """Also those that meet no row, or one that should not be there: they are merged either way."""
    keys: list[int | str] = [f"k{i}" if key == TEXT else i - 5 for i in range(12)]
    chosen = random.Random(key)
    rows = [(one, "first", i) for i, one in enumerate(keys[::2])]
    ours, merged = filled(spark, tmp_path, rows, key=key), filled(spark, tmp_path, rows, key=key, name="merged")
    for _ in range(4):
        there = {row[0] for row in content(spark, ours[0])}
        made = []
        for number in range(chosen.randrange(2, 9)):
            one = chosen.choice(keys)
            if one in there and chosen.random() < 0.4:
                made.append(delete(one))
                there.discard(one)
            elif one in there or chosen.random() < 0.05:
                made.append(update(one, chosen.choice(["u", "", None]), number))
            else:
                made.append(insert(one, f"i{number}", number))
                there.add(one)
        apply_table(spark, changes(ours, *made))
        with monkeypatch.context() as merging:
            merging.setattr(merge_effects, "rewrite_keys", lambda *_: False)
            apply_table(spark, changes(merged, *made))
        assert content(spark, ours[0]) == content(spark, merged[0])
    assert sum(rewrites) > 1


def test_an_unchanged_value_stays(spark, tmp_path, rewrites):
    made = filled(spark, tmp_path, [("a", "old", 1), ("b", "old", 2), ("c", None, 3), ("d", "old", 4)])
    changed = changes(
        made, update("a", None, 10), update("b", "new", 20), update("c", None, 30), insert("e", None, 5), delete("d")
    )
    assert isinstance(changed.changes, pa.Table)
    marked = changed.changes.append_column("unchanged_1", pa.array([True, False, True, False, False]))
    apply_table(spark, replace(changed, changes=marked))
    assert content(spark, made[0]) == [("a", "old", 10), ("b", "new", 20), ("c", None, 30), ("e", None, 5)]
    assert rewrites == [True]


def test_effects_on_other_rows_than_are_there_are_merged(spark, tmp_path, rewrites):
    """A missing row and one in the way would make up for each other in a count."""
    made = filled(spark, tmp_path, [("a", "old", 1), ("b", "old", 2)])
    with pytest.raises(Exception, match="insert_exists"):
        apply_table(spark, changes(made, update("missing", "x"), insert("a", "x")))
    assert content(spark, made[0]) == [("a", "old", 1), ("b", "old", 2)]
    found = list[Conflicts]()
    apply_table(spark, changes(made, update("missing", "x"), update("a", "x")), conflicts=found.append)
    assert content(spark, made[0]) == [("a", "x", 0), ("b", "old", 2)]
    assert [conflicts.counts for conflicts in found]
    assert rewrites == [False, False]


def test_a_table_with_a_column_of_its_own_is_merged_into(spark, tmp_path, rewrites):
    made = filled(spark, tmp_path, [("a", "old", 1)])
    spark.sql(f"ALTER TABLE delta.`{made[0].path}` ADD COLUMN theirs string").collect()
    spark.sql(f"UPDATE delta.`{made[0].path}` SET theirs = 'kept'").collect()
    apply_table(spark, changes(made, update("a", "new")))
    assert content(spark, made[0]) == [("a", "new", 0, "kept")]
    assert rewrites == [False]


def test_a_table_that_tells_a_merge_from_a_rewrite_is_merged_into(spark, tmp_path, monkeypatch, rewrites):
    """As one with a change data feed, which has another's properties, or no deletion vectors; and so are many keys."""
    made = filled(spark, tmp_path, [("a", "old", 1), ("b", "old", 2)])
    with monkeypatch.context() as few:
        few.setattr(rewrite, "MOST_KEYS", 1)
        apply_table(spark, changes(made, update("a", "new"), update("b", "new")))
    for number, (name, value) in enumerate(
        [
            ("pgbridge.created", "no"),
            ("delta.enableChangeDataFeed", "true"),
            ("delta.enableDeletionVectors", "false"),
            ("delta.enableRowTracking", "true"),
        ]
    ):
        spark.sql(f"ALTER TABLE delta.`{made[0].path}` SET TBLPROPERTIES ('pgbridge.created' = 'true')").collect()
        spark.sql(f"ALTER TABLE delta.`{made[0].path}` SET TBLPROPERTIES ('{name}' = '{value}')").collect()
        forget_size(made[0].path)
        apply_table(spark, changes(made, update("a", name, number)))
        assert content(spark, made[0]) == [("a", name, number), ("b", "new", 0)]
    assert rewrites == [False] * 5


def test_a_change_data_feed_switched_on_meanwhile_is_noticed(spark, tmp_path, rewrites):
    made = filled(spark, tmp_path, [("a", "old", 1), ("b", "old", 2)])
    path = made[0].path
    apply_table(spark, changes(made, update("a", "new")))
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')").collect()
    version = table_version(spark, path) + 1
    apply_table(spark, changes(made, update("b", "new")))
    assert rewrites == [True, False]
    feed = spark.sql(f"SELECT _change_type FROM table_changes_by_path('{path}', {version})").collect()
    assert sorted(row[0] for row in feed) == ["update_postimage", "update_preimage"]


def test_the_batch_is_committed_once(spark, tmp_path, rewrites):
    made = filled(spark, tmp_path, [("a", "old", 1), ("b", "old", 2)])
    session = fork(spark)
    stamp = CommitStamp("app", Lsn(1), Lsn(2))
    for _ in range(2):
        with stamped(session, stamp):
            apply_table(session, changes(made, update("a", "new"), update("b", "new", 1)))
    assert rewrites == [True, True]
    assert table_version(spark, made[0].path) == 3
    with stamped(session, CommitStamp("app", Lsn(2), Lsn(3))):
        apply_table(session, changes(made, insert("c", "new")))
        forget_size(made[0].path)
    with stamped(session, CommitStamp("app", Lsn(2), Lsn(3))):  # its rows are there, so it goes to MERGE
        apply_table(session, changes(made, insert("c", "new"), update("a", "new")))
    assert content(spark, made[0]) == [("a", "new", 0), ("b", "new", 1), ("c", "new", 0)]


@pytest.mark.parametrize("statement", ["DELETE FROM {} WHERE n = 1", "INSERT INTO {} VALUES ('c', 'theirs', 3)"])
def test_rows_that_another_writer_changes_before_the_commit_begins_are_seen(
    spark, tmp_path, monkeypatch, rewrites, statement
):
    made = filled(spark, tmp_path, [("a", "old", 1), ("b", "old", 2)])

    def theirs(*args):
        spark.sql(statement.format(f"delta.`{made[0].path}`")).collect()
        original(*args)

    original = location.overwrite_where
    monkeypatch.setattr(rewrite, "overwrite_where", theirs)
    changed = changes(made, update("a", "new"), insert("c", "ours"))
    if statement.startswith("DELETE"):
        apply_table(spark, changed)  # as by a MERGE: PostgreSQL does not bring a missing row back either
        assert content(spark, made[0]) == [("b", "old", 2), ("c", "ours", 0)]
    else:
        with pytest.raises(Exception, match="insert_exists"):
            apply_table(spark, changed)
        assert content(spark, made[0]) == [("a", "old", 1), ("b", "old", 2), ("c", "theirs", 3)]
    assert rewrites == [False]


def test_rows_that_another_writer_changes_during_the_commit_make_it_fail(spark, tmp_path, monkeypatch):
    """The other writer commits when Delta's transaction has begun: in the worker that computes the rows to write."""
    made = filled(spark, tmp_path, [("a", "old", 1), ("b", "old", 2)])
    log = tmp_path / "t" / "_delta_log"
    added = [json.loads(line) for line in (log / f"{2:020}.json").read_text(encoding="utf-8").splitlines()]
    path = next(action["add"]["path"] for action in added if "add" in action)
    remove = {"remove": {"path": path, "deletionTimestamp": 1_700_000_000_000, "dataChange": True}}

    def theirs(batches):
        (log / f"{3:020}.json").write_text(json.dumps(remove) + "\n", encoding="utf-8")
        yield from batches

    def beside(rows, *args):
        original(rows.mapInArrow(theirs, rows.schema), *args)

    original = location.overwrite_where
    monkeypatch.setattr(rewrite, "overwrite_where", beside)
    with pytest.raises(Exception, match="DELTA_CONCURRENT"):
        apply_table(spark, changes(made, update("a", "new")))
    assert table_version(spark, made[0].path) == 3


def test_a_key_that_is_there_twice_is_left_to_merge(spark, tmp_path, rewrites):
    made = filled(spark, tmp_path, [("a", "old", 1), ("a", "too", 2), ("b", "old", 3)])
    apply_table(spark, changes(made, update("b", "new")))
    apply_table(spark, changes(made, update("a", "new")))
    assert content(spark, made[0]) == [("a", "new", 0), ("a", "new", 0), ("b", "new", 0)]
    assert rewrites == [True, False]


def test_a_row_that_begins_and_ends_must_not_be_there(spark, tmp_path, rewrites):
    made = filled(spark, tmp_path, [("a", "old", 1), ("b", "old", 2)])
    with pytest.raises(Exception, match="insert_exists"):
        apply_table(spark, changes(made, update("b", "new"), insert("a", "x"), delete("a")))
    assert content(spark, made[0]) == [("a", "old", 1), ("b", "old", 2)]
    assert rewrites == [False]


def test_what_others_committed_before_is_no_matter(spark, tmp_path, rewrites):
    made = filled(spark, tmp_path, [("a", "old", 1), ("b", "old", 2)])
    spark.sql(f"INSERT INTO delta.`{made[0].path}` VALUES ('c', 'theirs', 3)").collect()
    apply_table(spark, changes(made, update("c", "ours")))
    assert content(spark, made[0]) == [("a", "old", 1), ("b", "old", 2), ("c", "ours", 0)]
    assert rewrites == [True]


def test_the_size_says_whether_a_table_can_be_rewritten_by_key(spark, tmp_path):
    made = filled(spark, tmp_path, [("a", "old", 1)])
    assert delta_table.table_size(spark, made[0].path).vectors
    assert not delta_table.table_size(spark, made[0].path).plain
