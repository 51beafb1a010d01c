"""Versions of rows: what one commit makes of changes. `tests/oracle/test_changelog_and_history.py` compares streams."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pgbridge.bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, TRUNCATE, UPDATE
from pgbridge.bridge.lake import writes
from pgbridge.bridge.lake.commit import history_mode
from pgbridge.bridge.lake.commit.history_mode import apply_versions
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.forms import delta_schema
from pgbridge.bridge.lake.retry import have_changed
from tests.bridge.lake.commit.test_change_frame import FIELDS, changes


def found(spark, path):
    rows = spark.read.format("delta").load(path).orderBy("valid_from_lsn", "id").collect()
    return [(row["id"], row["note"], row["valid_from_lsn"], row["valid_to_lsn"]) for row in rows]


def test_versions(spark, tmp_path):
    path = str(tmp_path / "t")
    create_table(spark, path, delta_schema("history", FIELDS, "public.t"))

    def apply(*rows):
        apply_versions(spark, changes(path, *rows, mode="history"))

    apply(
        (INSERT, NO_OLD, {"new_0": 1, "new_1": "a", "commit_lsn": 10}),
        (INSERT, NO_OLD, {"new_0": 2, "new_1": "b", "commit_lsn": 10}),
        (UPDATE, NO_OLD, {"new_0": 9, "new_1": "of a row that is not there", "commit_lsn": 10}),
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


@pytest.mark.parametrize(
    ("statement", "made"),
    [
        ("DELETE FROM {} WHERE id = 1", []),
        ("UPDATE {} SET note = 'theirs' WHERE id = 1", [(1, "theirs", 10, 20), (4, "theirs", 20, None)]),
    ],
)
def test_a_value_that_moves_is_looked_up_again_if_another_writer_changes_it(
    spark, tmp_path, monkeypatch, statement, made
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
    moved = {"old_0": 1, "new_0": 4, "unchanged_1": True, "commit_lsn": 20}
    batch = changes(path, (UPDATE, KEY_TUPLE, moved), mode="history")
    with pytest.raises((PySparkException, Py4JError)) as error:
        apply_versions(spark, batch)
    assert have_changed(error.value)
    if made:
        apply_versions(spark, batch)
        assert found(spark, path) == made
