"""Versions of rows: what one commit makes of changes. `tests/oracle/test_changelog_and_history.py` compares streams."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pgbridge.bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, OLD_TUPLE, TRUNCATE, UPDATE
from pgbridge.bridge.lake import source, writes
from pgbridge.bridge.lake.commit import history_mode
from pgbridge.bridge.lake.commit.history_mode import apply_versions
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.forms import delta_schema
from pgbridge.bridge.lake.retry import have_changed
from pgbridge.bridge.targets.target import added_names
from tests.bridge.lake.commit.test_change_frame import FIELDS, changes


def found(spark, path, mode="history"):
    from_lsn, to_lsn, _, _ = added_names(mode)
    rows = spark.read.format("delta").load(path).orderBy(from_lsn, "id").collect()
    return [(row["id"], row["note"], row[from_lsn], row[to_lsn]) for row in rows]


def test_versions(spark, tmp_path):
    path = str(tmp_path / "t")
    create_table(spark, path, delta_schema("history", FIELDS, "public.t"))

    def apply(*rows):
        apply_versions(spark, changes(path, *rows, mode="history"))

    apply(
        (INSERT, NO_OLD, {"new_0": 1, "new_1": "a", "commit_lsn": 10}),
        (INSERT, NO_OLD, {"new_0": 2, "new_1": "b", "commit_lsn": 10}),
        (UPDATE, NO_OLD, {"new_0": 9, "new_1": "of a row that is not there", "commit_lsn": 10}),
        (UPDATE, KEY_TUPLE, {"old_0": 8, "new_0": 9, "new_1": "not there", "commit_lsn": 10}),
        (INSERT, NO_OLD, {"new_0": 3, "new_1": "never seen", "commit_lsn": 11}),
        (DELETE, KEY_TUPLE, {"old_0": 3, "commit_lsn": 11}),
    )
    assert found(spark, path) == [(1, "a", 10, None), (2, "b", 10, None)]
    apply(
        (UPDATE, KEY_TUPLE, {"old_0": 1, "new_0": 4, "unchanged_1": True, "commit_lsn": 20}),
        (UPDATE, KEY_TUPLE, {"old_0": 4, "new_0": 5, "unchanged_1": True, "commit_lsn": 20}),
        (UPDATE, NO_OLD, {"new_0": 5, "unchanged_1": True, "commit_lsn": 21}),
    )
    moved = [(1, "a", 10, 20), (2, "b", 10, None), (5, "a", 20, 21), (5, "a", 21, None)]
    assert found(spark, path) == moved
    apply((INSERT, NO_OLD, {"new_0": 1, "new_1": "c", "commit_lsn": 30}), (TRUNCATE, NO_OLD, {"commit_lsn": 31}))
    assert found(spark, path) == [
        (1, "a", 10, 20),
        (2, "b", 10, 31),
        (5, "a", 20, 21),
        (5, "a", 21, 31),
        (1, "c", 30, 31),
    ]
    apply()
    assert len(list((tmp_path / "t/_delta_log").glob("*.json"))) == 4


@pytest.mark.parametrize("mode", ["history", "soft_deletes"])
@pytest.mark.parametrize("sent", [True, False], ids=["sent", "unchanged"])
def test_a_key_change_of_a_row_that_is_not_there_is_left_out(spark, tmp_path, mode, sent):
    """So is what follows from it; a row that is there comes to a key that it would have begun, or leaves it."""
    path = str(tmp_path / "t")
    create_table(spark, path, delta_schema(mode, FIELDS, "public.t"))

    def note(value):
        return {"new_1": value} if sent else {"unchanged_1": True}

    rows = [(INSERT, NO_OLD, {"new_0": 1, "new_1": "a"}), (INSERT, NO_OLD, {"new_0": 4, "new_1": "b"})]
    apply_versions(spark, changes(path, *rows, mode=mode))
    apply_versions(
        spark,
        changes(
            path,
            (UPDATE, KEY_TUPLE, {"old_0": 8, "new_0": 9, "new_1": "not there", "commit_lsn": 120}),
            (UPDATE, KEY_TUPLE, {"old_0": 9, "new_0": 10, **note("not there"), "commit_lsn": 120}),
            (UPDATE, KEY_TUPLE, {"old_0": 10, "new_0": 11, **note("not there"), "commit_lsn": 121}),
            (UPDATE, NO_OLD, {"new_0": 11, "new_1": "not there", "commit_lsn": 122}),
            (UPDATE, KEY_TUPLE, {"old_0": 7, "new_0": 4, "new_1": "not there", "commit_lsn": 123}),
            (UPDATE, KEY_TUPLE, {"old_0": 4, "new_0": 5, **note("b"), "commit_lsn": 124}),
            (UPDATE, KEY_TUPLE, {"old_0": 1, "new_0": 9, **note("a"), "commit_lsn": 125}),
            (UPDATE, NO_OLD, {"new_0": 9, "new_1": "c", "commit_lsn": 126}),
            # an INSERT that lacks a value: the search for it ends
            (INSERT, NO_OLD, {"new_0": 2, "unchanged_1": True, "commit_lsn": 127}),
            (UPDATE, KEY_TUPLE, {"old_0": 2, "new_0": 3, **note("d"), "commit_lsn": 127}),
            mode=mode,
        ),
    )
    made = [
        (1, "a", 100, 125),
        (4, "b", 101, 124),
        (5, "b", 124, None),
        (9, "a", 125, 126),
        (9, "c", 126, None),
        (3, "d" if sent else None, 127, None),
    ]
    if mode == "soft_deletes":
        made.remove((9, "a", 125, 126))
    assert found(spark, path, mode) == made


def test_only_a_key_change_is_looked_up(spark, tmp_path, monkeypatch):
    path = str(tmp_path / "t")
    create_table(spark, path, delta_schema("history", FIELDS, "public.t"))
    copies = []

    def checkpointed(frame):
        copies.append(frame)
        return frame

    monkeypatch.setattr(source, "checkpointed", checkpointed)
    update = {"new_0": 1, "new_1": "b"}
    for old, before in [(NO_OLD, {}), (OLD_TUPLE, {"old_0": 1, "old_1": "a"})]:
        apply_versions(spark, changes(path, (UPDATE, old, {**update, **before}), mode="history"))
    assert not copies
    apply_versions(spark, changes(path, (UPDATE, OLD_TUPLE, {**update, "old_0": 2, "old_1": "a"}), mode="history"))
    assert copies
    assert found(spark, path) == []


@pytest.mark.parametrize(
    ("statement", "values", "made"),
    [
        ("DELETE FROM {} WHERE id = 1", {"unchanged_1": True}, []),
        ("DELETE FROM {} WHERE id = 1", {"new_1": "a"}, []),
        (
            "UPDATE {} SET note = 'theirs' WHERE id = 1",
            {"unchanged_1": True},
            [(1, "theirs", 10, 20), (4, "theirs", 20, None)],
        ),
    ],
)
def test_a_value_that_moves_is_looked_up_again_if_another_writer_changes_it(
    spark, tmp_path, monkeypatch, statement, values, made
):
    path = str(tmp_path / "t")
    create_table(spark, path, delta_schema("history", FIELDS, "public.t"))
    apply_versions(spark, changes(path, (INSERT, NO_OLD, {"new_0": 1, "new_1": "a", "commit_lsn": 10}), mode="history"))
    waiting = [statement.format(f"delta.`{path}`")]

    def merge_into(*args):
        if waiting:
            spark.sql(waiting.pop()).collect()
        return writes.merge_into(*args)

    monkeypatch.setattr(history_mode, "merge_into", merge_into)
    moved = {"old_0": 1, "new_0": 4, "commit_lsn": 20, **values}
    batch = changes(path, (UPDATE, KEY_TUPLE, moved), mode="history")
    with pytest.raises((PySparkException, Py4JError)) as error:
        apply_versions(spark, batch)
    assert have_changed(error.value)
    apply_versions(spark, batch)
    assert found(spark, path) == made
