"""A table of moderate size written anew is the same as one that is merged into, whatever others do to it meanwhile."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.classic.dataframe import DataFrame

from bridge.apply.batch.batch import Batch
from bridge.apply.batch.table_changes import TableChanges
from bridge.apply.delta import arrow_source, kept_rows, merge_effects, rewrite_kept
from bridge.apply.delta.append import append_rows
from bridge.apply.delta.apply_table import apply_table
from bridge.apply.delta.create import create_table
from bridge.apply.delta.delta_table import forget_size, table_size, table_version
from bridge.apply.delta.kept_rows import KeptRows
from bridge.apply.delta.overwrite import overwrite_rows
from bridge.apply.delta.schema import spark_schema
from bridge.apply.delta.stamp import CommitStamp, stamped
from bridge.apply.effects.operations import DELETE, INSERT, NO_OLD, UPDATE
from bridge.apply.target.target import Target, TargetColumn, target_schema
from bridge.errors import ApplyError, TargetError
from bridge.session import fork
from protocol.lsn import Lsn
from protocol.values.types import resolve
from tests.bridge.apply.made_batches import applier, batch
from tests.bridge.apply.made_targets import changes, content, empty_target

ROWS = [(1, "a"), (2, "b"), (3, None)]


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(rewrite_kept, "_kept_rows", KeptRows())
    rewrite_kept._refused.clear()
    rewrite_kept._not_kept_until.clear()
    rewrite_kept._met.clear()


@pytest.fixture
def target(spark, tmp_path):
    return filled(spark, tmp_path)


def filled(spark, folder, name="t"):
    made = empty_target(spark, folder, name)
    append_rows(spark.createDataFrame(ROWS, "id long, note string").coalesce(1), made.path)
    forget_size(made.path)
    return made


def last(spark, target):
    row = spark.sql(f"DESCRIBE HISTORY delta.`{target.path}` LIMIT 1").collect()[0]
    return row.operation, row.operationParameters.get("mode")


def rewritten(spark, target):
    return last(spark, target) == ("WRITE", "Overwrite")


@pytest.fixture
def unread(monkeypatch):
    """From now on, tables must not be read."""

    def forbid():
        monkeypatch.setattr(rewrite_kept, "_read", lambda *_: pytest.fail("it was read"))

    return forbid


def test_a_table_is_read_once_and_then_only_written(spark, target, unread):
    apply_table(spark, changes(target, (UPDATE, None, 1, "x"), (DELETE, 2, None, None), (INSERT, None, 4, "new")))
    assert content(spark, target) == [(1, "x"), (3, None), (4, "new")]
    assert rewritten(spark, target)
    unread()
    apply_table(spark, changes(target, (UPDATE, None, 4, "y"), (INSERT, None, 5, "z"), (DELETE, 5, None, None)))
    apply_table(spark, changes(target, (DELETE, 1, None, None), (DELETE, 3, None, None), (DELETE, 4, None, None)))
    assert content(spark, target) == []
    assert table_size(spark, target.path).files == 1


def test_rows_that_are_only_inserted_are_appended(spark, target):
    """Whoever streams from the table goes on; afterwards it is read again."""
    apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
    apply_table(spark, changes(target, (INSERT, None, 4, "y")))
    assert last(spark, target) == ("WRITE", "Append")
    apply_table(spark, changes(target, (UPDATE, None, 4, "z")))
    assert rewritten(spark, target)
    assert content(spark, target) == [(1, "x"), *ROWS[1:], (4, "z")]


def test_random_changes_have_the_same_result_as_by_merge(spark, tmp_path, monkeypatch):
    """Also those that meet no row, or one that should not be there: they are merged either way."""
    chosen = random.Random(7)
    tiny, merged = filled(spark, tmp_path, "tiny"), filled(spark, tmp_path, "merged")
    rewrites = 0
    for _ in range(6):
        rows = {row[0] for row in content(spark, tiny)}
        made: list[tuple[int, int | None, int | None, str | None]] = []
        for _ in range(chosen.randrange(1, 8)):
            key = chosen.randrange(8)
            if key in rows and chosen.random() < 0.4:
                made.append((DELETE, key, None, None))
                rows.discard(key)
            elif key in rows or chosen.random() < 0.05:
                made.append((UPDATE, None, key, chosen.choice(["u", "", None])))
            else:
                made.append((INSERT, None, key, f"i{chosen.randrange(9)}"))
                rows.add(key)
        apply_table(spark, changes(tiny, *made))
        rewrites += rewritten(spark, tiny)
        with monkeypatch.context() as merging:
            merging.setattr(merge_effects, "rewrite_kept", lambda *_: False)
            apply_table(spark, changes(merged, *made))
        assert content(spark, tiny) == content(spark, merged)
    assert rewrites > 2


def test_rows_that_are_not_few_are_read_for_the_second_commit(spark, target, monkeypatch):
    monkeypatch.setattr(rewrite_kept, "_FEW_ROWS", 2)
    for operation in ("MERGE", "WRITE", "WRITE"):
        apply_table(spark, changes(target, (UPDATE, None, 1, operation)))
        assert last(spark, target)[0] == operation
    assert content(spark, target) == [(1, "WRITE"), *ROWS[1:]]


def test_an_unchanged_value_stays(spark, target):
    made = changes(target, (UPDATE, None, 1, None), (UPDATE, None, 2, "x"), (INSERT, None, 4, None))
    assert isinstance(made.changes, pa.Table)
    marked = made.changes.append_column("unchanged_1", pa.array([True, False, False]))
    apply_table(spark, replace(made, changes=marked))
    assert content(spark, target) == [(1, "a"), (2, "x"), (3, None), (4, None)]
    assert rewritten(spark, target)


def test_what_others_committed_before_is_read(spark, target):
    apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
    spark.sql(f"INSERT INTO delta.`{target.path}` VALUES (9, 'theirs')").collect()
    apply_table(spark, changes(target, (UPDATE, None, 2, "y")))
    assert content(spark, target) == [(1, "x"), (2, "y"), (3, None), (9, "theirs")]
    assert rewritten(spark, target)


def test_a_restored_table_is_read_again(spark, target):
    apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
    spark.sql(f"RESTORE TABLE delta.`{target.path}` TO VERSION AS OF 1").collect()
    apply_table(spark, changes(target, (UPDATE, None, 2, "y")))
    assert content(spark, target) == [(1, "a"), (2, "y"), (3, None)]


def test_another_table_at_the_path_is_read_though_its_version_has_the_number(spark, tmp_path, target):
    apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
    other = filled(spark, tmp_path, "other")
    spark.sql(f"INSERT INTO delta.`{other.path}` VALUES (9, 'other')").collect()
    shutil.rmtree(target.path)
    shutil.copytree(other.path, target.path)
    apply_table(spark, changes(target, (UPDATE, None, 2, "y")))
    assert content(spark, target) == [(1, "a"), (2, "y"), (3, None), (9, "other")]


def test_a_batch_that_the_table_has_is_left_out(spark, target):
    """As after a crash: the kept rows are gone, and the changes fit the rows that they made."""
    session = fork(spark)
    for _ in range(2):
        with stamped(session, CommitStamp("app", Lsn(1), Lsn(2))):
            apply_table(session, changes(target, (UPDATE, None, 1, "x")))
        rewrite_kept._kept_rows.take(target.path)
    assert content(spark, target) == [(1, "x"), *ROWS[1:]]
    assert spark.sql(f"DESCRIBE HISTORY delta.`{target.path}`").count() == 3
    with stamped(session, CommitStamp("app", Lsn(2), Lsn(3))):
        apply_table(session, changes(target, (UPDATE, None, 1, "y")))
    assert content(spark, target) == [(1, "y"), *ROWS[1:]]


def test_a_commit_of_another_writer_at_the_same_moment_is_kept(spark, catalog, target, monkeypatch):
    """Between our look at the version and Delta's: the batch's commit is undone, and made again."""
    left = [1]

    def overwrite(rows, path, **options):
        if left.pop() if left else False:
            spark.sql(f"INSERT INTO delta.`{target.path}` VALUES (9, 'theirs')").collect()
        overwrite_rows(rows, path, **options)

    monkeypatch.setattr(rewrite_kept, "overwrite_rows", overwrite)
    bridge, one = applier(spark, catalog), batch(changes(target, (UPDATE, None, 1, "x")))
    with pytest.raises(ApplyError, match=r"another writer committed version 2 \(WRITE\) while the batch was"):
        bridge.apply(one)
    assert content(spark, target) == [*ROWS, (9, "theirs")]
    bridge.apply(one)
    assert content(spark, target) == [(1, "x"), *ROWS[1:], (9, "theirs")]


def test_batches_of_a_subscription_follow_each_other(spark, catalog, target, unread):
    bridge = applier(spark, catalog)
    bridge.apply(batch(changes(target, (UPDATE, None, 1, "x"))))
    unread()
    bridge.apply(Batch(Lsn(0x20), Lsn(0x30), Lsn(0x28), 8, 1, 1, [changes(target, (UPDATE, None, 2, "y"))]))
    assert content(spark, target) == [(1, "x"), (2, "y"), (3, None)]


@pytest.mark.parametrize(
    "statement",
    [
        "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        "UNSET TBLPROPERTIES ('pgbridge.created')",
        "CLUSTER BY (id)",
        "ADD COLUMN more int",
    ],
    ids=["change data feed", "adopted", "clustered", "another column"],
)
def test_other_tables_are_merged_into(spark, target, statement):
    spark.sql(f"ALTER TABLE delta.`{target.path}` {statement}").collect()
    for _ in range(2):
        apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
        assert last(spark, target)[0] == "MERGE"
    assert [row[:2] for row in content(spark, target)] == [(1, "x"), *ROWS[1:]]


@pytest.mark.parametrize(("name", "value"), [("MOST_ROWS", 2), ("MOST_BYTES", 1)])
def test_a_table_that_is_too_large_is_merged_into(spark, target, monkeypatch, name, value):
    monkeypatch.setattr(rewrite_kept, name, value)
    apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
    assert last(spark, target)[0] == "MERGE"
    assert content(spark, target) == [(1, "x"), *ROWS[1:]]


def test_a_table_that_has_grown_is_merged_into(spark, target, monkeypatch):
    apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
    monkeypatch.setattr(rewrite_kept, "MOST_ROWS", 3)
    apply_table(spark, changes(target, (UPDATE, None, 2, "z"), (INSERT, None, 4, "y")))
    assert content(spark, target) == [(1, "x"), (2, "z"), (3, None), (4, "y")]
    assert last(spark, target)[0] == "MERGE"


def test_a_table_with_a_key_twice_is_left_to_merge(spark, target):
    append_rows(spark.createDataFrame([(1, "twice")], "id long, note string"), target.path)
    apply_table(spark, changes(target, (UPDATE, None, 2, "x")))
    assert last(spark, target)[0] == "MERGE"
    assert content(spark, target) == [(1, "a"), (1, "twice"), (2, "x"), (3, None)]


def test_a_table_that_had_a_conflict_is_merged_into_for_a_while(spark, target, monkeypatch):
    """Else each conflict would have the table read, in vain."""
    session = fork(spark)
    with stamped(session, CommitStamp("app", Lsn(1), Lsn(2))):
        apply_table(session, changes(target, (UPDATE, None, 99, "missing")))
    assert last(spark, target)[0] == "MERGE"
    apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
    assert last(spark, target)[0] == "MERGE"
    monkeypatch.setitem(rewrite_kept._not_kept_until, target.path, 0.0)
    apply_table(spark, changes(target, (UPDATE, None, 2, "y")))
    assert rewritten(spark, target)
    assert content(spark, target) == [(1, "x"), (2, "y"), (3, None)]


def test_rows_that_would_need_much_memory_are_not_read(spark, tmp_path, monkeypatch):
    """A small file can hold many equal values."""
    monkeypatch.setattr(rewrite_kept, "MOST_BYTES", 100_000)
    target = empty_target(spark, tmp_path, "t")
    rows = spark.range(100).selectExpr("id", "repeat('x', 10000) AS note").coalesce(1)
    append_rows(rows, target.path)
    forget_size(target.path)
    assert table_size(spark, target.path).size_bytes < 100_000
    monkeypatch.setattr(DataFrame, "toArrow", lambda _: pytest.fail("it was read"))
    for _ in range(2):
        apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
        assert last(spark, target)[0] == "MERGE"
    assert list(rewrite_kept._refused) == [target.path]


def test_a_table_for_which_there_is_no_room_is_merged_into(spark, target, monkeypatch):
    monkeypatch.setattr(KeptRows, "has_room", lambda *_: False)
    apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
    assert last(spark, target)[0] == "MERGE"


def test_many_rows_are_written_from_a_file(spark, target, monkeypatch):
    """As a Parquet file, whose readers do not take every name of a column."""
    monkeypatch.setattr(arrow_source, "PLAN_ROWS", 2)
    for note in ("x", None, "", "y"):
        apply_table(spark, changes(target, (UPDATE, None, 1, note)))
        assert rewritten(spark, target)
        assert content(spark, target) == [(1, note), *ROWS[1:]]


def test_columns_in_another_order_have_their_own_values(spark, tmp_path):
    """A relation's columns can have another order than in the last batch, without a commit to the table."""
    path = str(tmp_path / "t")
    fields = [("id", pa.int64()), ("a", pa.string()), ("b", pa.string())]
    create_table(spark, path, spark_schema(fields))
    append_rows(spark.createDataFrame([(1, "a1", "b1"), (2, "a2", "b2")], "id long, a string, b string"), path)
    target = Target("public", "t", path, target_schema(fields))
    for order in (("id", "a", "b"), ("id", "b", "a"), ("b", "a", "id")):
        columns = tuple(TargetColumn(name, resolve(20 if name == "id" else 25, -1)) for name in order)
        values = {"id": 1, "a": f"a of {order}", "b": f"b of {order}"}
        made = {"seq": [0], "op": pa.array([UPDATE], pa.int16()), "old": pa.array([NO_OLD], pa.int16())}
        made |= {f"new_{i}": pa.array([values[name]]) for i, name in enumerate(order)}
        apply_table(spark, TableChanges(target, columns, (order.index("id"),), pa.table(made)))
        assert last(spark, target) == ("WRITE", "Overwrite")
        found = spark.read.format("delta").load(path).select("id", "a", "b").orderBy("id").collect()
        assert [tuple(row) for row in found] == [tuple(values.values()), (2, "a2", "b2")]


def test_large_effects_are_merged(spark, target, monkeypatch):
    """They would be copied several times to find out that the rows are too large to be kept."""
    apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
    monkeypatch.setattr(rewrite_kept, "MOST_BYTES", 10_000)
    monkeypatch.setattr(rewrite_kept, "_applied", lambda *_: pytest.fail("they were copied"))
    apply_table(spark, changes(target, (UPDATE, None, 1, "x" * 10_000)))
    assert last(spark, target)[0] == "MERGE"


def test_rows_that_have_no_room_any_more_are_merged_into_for_a_while(spark, target, monkeypatch):
    apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
    with monkeypatch.context() as full:
        full.setattr(kept_rows, "_ALL_BYTES", 1)
        apply_table(spark, changes(target, (UPDATE, None, 1, "y")))
        assert rewritten(spark, target)
    apply_table(spark, changes(target, (UPDATE, None, 1, "z")))
    assert last(spark, target)[0] == "MERGE"
    assert content(spark, target) == [(1, "z"), *ROWS[1:]]


def test_new_rows_do_not_have_a_table_written_anew_though_they_may_overwrite(spark, target):
    """With `apply_remote`: whoever streams from a table that only grows goes on."""
    apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
    apply_table(spark, changes(target, (INSERT, None, 4, "y")), conflict="apply_remote")
    assert last(spark, target)[0] == "MERGE"
    assert content(spark, target) == [(1, "x"), *ROWS[1:], (4, "y")]


def test_rows_of_one_table_are_not_written_to_another_of_its_name(spark, tmp_path):
    """A catalog may have its name lead elsewhere; then the batch is undone, and made again from the rows there."""
    here, there = filled(spark, tmp_path, "here"), filled(spark, tmp_path, "there")
    append_rows(spark.createDataFrame([(9, "there")], "id long, note string"), there.path)
    spark.sql("CREATE NAMESPACE moving")
    try:
        spark.sql(f"CREATE TABLE moving.t USING delta LOCATION '{here.path}'")
        target = replace(here, path="catalog:spark_catalog.moving.t")
        apply_table(spark, changes(target, (UPDATE, None, 1, "x")))
        assert rewritten(spark, here)
        spark.sql("DROP TABLE moving.t")
        spark.sql(f"CREATE TABLE moving.t USING delta LOCATION '{there.path}'")
        before = table_version(spark, there.path)
        with pytest.raises(TargetError, match="another table of this name"):
            apply_table(spark, changes(target, (UPDATE, None, 1, "y")))
        spark.sql(f"RESTORE TABLE moving.t TO VERSION AS OF {before}")
        apply_table(spark, changes(target, (UPDATE, None, 1, "y")))
        assert content(spark, there) == [(1, "y"), *ROWS[1:], (9, "there")]
    finally:
        spark.sql("DROP NAMESPACE moving CASCADE")


def test_a_column_of_the_targets_own(spark, target):
    """A key change has it, so that its value moves with the row; another change has not, and must leave it alone."""
    spark.sql(f"ALTER TABLE delta.`{target.path}` ADD COLUMN (own long)").collect()
    spark.sql(f"UPDATE delta.`{target.path}` SET own = id * 10").collect()
    moved = changes(target, (UPDATE, 1, 6, "moved"))
    assert isinstance(moved.changes, pa.Table)
    own = TargetColumn("own", resolve(20, -1))
    table = moved.changes.append_column("new_2", pa.nulls(1, pa.int64())).append_column("unchanged_2", pa.array([True]))
    apply_table(spark, replace(moved, columns=(*moved.columns, own), changes=table))
    assert content(spark, target) == [(2, "b", 20), (3, None, 30), (6, "moved", 10)]
    assert rewritten(spark, target)
    apply_table(spark, changes(target, (UPDATE, None, 6, "later")))
    assert content(spark, target) == [(2, "b", 20), (3, None, 30), (6, "later", 10)]
