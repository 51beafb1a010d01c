"""Which kind of commit a table's changes become, and what it leaves."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.lake import source
from pgbridge.bridge.lake.commit.apply_table import apply_table
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.schema import spark_schema, target_schema_of
from pgbridge.bridge.targets.target import Target
from tests.bridge.apply.made_targets import COLUMNS, changes, content, empty_target


@pytest.fixture
def target(spark, tmp_path):
    return empty_target(spark, tmp_path)


def operations(spark, target):
    """The kinds of commit, oldest first, without the table's making."""
    history = spark.sql(f"DESCRIBE HISTORY delta.`{target.path}`").collect()
    return [(row.operation, (row.operationParameters or {}).get("mode")) for row in reversed(history)][1:]


def test_inserts_only_are_appended(spark, target):
    apply_table(spark, changes(target, (INSERT, None, 1, "a"), (INSERT, None, 2, "b")))
    assert content(spark, target) == [(1, "a"), (2, "b")]
    assert operations(spark, target) == [("WRITE", "Append")]


def test_rows_without_a_key_are_appended_with_their_duplicates(spark, target):
    apply_table(spark, changes(target, (INSERT, None, 1, "a"), (INSERT, None, 1, "a"), key=()))
    assert content(spark, target) == [(1, "a"), (1, "a")]


def test_changes_are_merged_in_one_commit(spark, target):
    apply_table(spark, changes(target, *((INSERT, None, n, "old") for n in range(5))))
    apply_table(
        spark,
        changes(
            target, (UPDATE, None, 1, "new"), (DELETE, 2, None, None), (UPDATE, 3, 30, "moved"), (INSERT, None, 9, "9")
        ),
    )
    assert content(spark, target) == [(0, "old"), (1, "new"), (4, "old"), (9, "9"), (30, "moved")]
    assert [kind for kind, _ in operations(spark, target)] == ["WRITE", "MERGE"]


@pytest.mark.parametrize("before", [(), ((UPDATE, 1, 5, "moves"), (UPDATE, 5, 1, "back"))], ids=["clear", "with moves"])
def test_a_row_that_is_made_again_has_nothing_of_a_column_that_was_added_meanwhile(spark, target, before):
    """By hand, since the stream began with the table's columns."""
    apply_table(spark, changes(target, (INSERT, None, 1, "a"), (INSERT, None, 2, "b")))
    spark.sql(f"ALTER TABLE delta.`{target.path}` ADD COLUMNS (own string)").collect()
    spark.sql(f"UPDATE delta.`{target.path}` SET own = 'x'").collect()
    apply_table(spark, changes(target, *before, (DELETE, 1, None, None), (INSERT, None, 1, "again")))
    rows = spark.read.format("delta").load(target.path).select("id", "own").collect()
    assert sorted((row["id"], row["own"]) for row in rows) == [(1, None), (2, "x")]


def test_truncate_is_an_overwrite_with_what_came_after(spark, target):
    apply_table(spark, changes(target, (INSERT, None, 1, "a")))
    after = changes(
        target,
        (INSERT, None, 2, "b"),
        (INSERT, None, 3, "c"),
        (UPDATE, None, 3, "d"),
        (DELETE, 2, None, None),
        truncated=True,
    )
    apply_table(spark, after)
    assert content(spark, target) == [(3, "d")]
    apply_table(spark, changes(target, truncated=True))
    assert content(spark, target) == []
    apply_table(spark, changes(target, (INSERT, None, 4, "e"), truncated=True, key=()))
    assert content(spark, target) == [(4, "e")]
    assert operations(spark, target) == [("WRITE", "Append"), *[("WRITE", "Overwrite")] * 3]


def test_no_changes_no_commit(spark, target):
    apply_table(spark, changes(target))
    assert operations(spark, target) == []


@pytest.mark.parametrize("key", [(), (0,)])
def test_many_rows_go_through_a_file_whatever_the_columns_names(spark, tmp_path, monkeypatch, key):
    """Parquet does not allow each name; Delta has them by column mapping."""
    monkeypatch.setattr(source, "PLAN_ROWS", 1)
    names = ("id", "a b,;{}()=")
    path = str(tmp_path / "t")
    schema = spark_schema(zip(names, (pa.int64(), pa.string()), strict=True))
    create_table(spark, path, schema)
    target = Target("public", "t", path, target_schema_of(schema))
    columns = tuple(replace(column, name=name) for column, name in zip(COLUMNS, names, strict=True))
    for truncated in (False, True):
        rows = [(INSERT, None, n, f"{n}") for n in range(3)]
        made = changes(target, *rows, key=key, truncated=truncated)
        apply_table(spark, replace(made, columns=columns))
        assert content(spark, target) == [(0, "0"), (1, "1"), (2, "2")]
