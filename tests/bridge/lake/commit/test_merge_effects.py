"""Net effects are committed by the least that they need; conflicts are counted or raised.

`test_one_by_one` compares random histories with a row-at-a-time model, by this way and one by one.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from bridge.lake import source
from bridge.lake.commit import merge_effects
from bridge.lake.commit.conflicts import KeyedTarget
from bridge.lake.commit.merge_effects import apply_effects
from bridge.lake.commit.writes import append_rows
from bridge.lake.commit_errors import conflict_of
from bridge.lake.source import as_frame
from bridge.spark.session import fork
from tests.bridge.apply.made_targets import content, empty_target
from tests.bridge.lake.commit.test_merge import COLUMNS, effect_of


@pytest.fixture
def keyed(spark, tmp_path):
    """Makes a target with these ids."""

    def make(*ids, overwrite=False):
        target = empty_target(spark, tmp_path, f"t{len(list(tmp_path.iterdir()))}")
        if ids:
            append_rows(as_frame(spark, pa.table({"id": list(ids), "note": ["old"] * len(ids)})), target.path)
        return KeyedTarget("public.t", target.path, COLUMNS, (0,), overwrite)

    return make


def tally_of(session, keyed, changes, *, truncated=False):
    """Commit changes; returns the conflicts that were counted."""
    tally = apply_effects(session, effect_of(changes), keyed, truncated=truncated)
    assert tally is not None
    return tally


def ids(spark, keyed):
    """The rows, those of a batch without their value."""
    return [row if row[1] == "old" else row[0] for row in content(spark, keyed)]


def operation(spark, keyed):
    return spark.sql(f"DESCRIBE HISTORY delta.`{keyed.path}` LIMIT 1").collect()[0].operation


def conflict_in(session, keyed, changes):
    with pytest.raises((PySparkException, Py4JError)) as caught:
        apply_effects(session, effect_of(changes), keyed, truncated=False)
    conflict = conflict_of(caught.value)
    assert conflict is not None
    return conflict.name, conflict.values


def test_rows_that_begin_are_appended_as_one_file(spark, keyed):
    session, target = fork(spark), keyed(1, 2)
    assert tally_of(session, target, "I3 I4 I5 D5 I6 M67").counts == {}
    assert ids(spark, target) == [(1, "old"), (2, "old"), 3, 4, 7]
    assert operation(spark, target) == "WRITE"
    row = spark.sql(f"DESCRIBE HISTORY delta.`{target.path}` LIMIT 1").collect()[0]
    assert row.operationMetrics["numFiles"] == "1"
    assert not row.isBlindAppend  # its look for rows in the way is part of the transaction


def test_a_row_in_the_way_of_an_append_is_told(spark, keyed):
    """Also in the way of a row that is not there any more; and of a key change."""
    session, target = fork(spark), keyed(1, 2)
    assert conflict_in(session, target, "I3 I2") == ("insert_exists", ("2",))
    assert conflict_in(session, target, "I3 I1 D1") == ("insert_exists", ("1",))
    assert conflict_in(session, target, "I3 M32") == ("update_exists", ("2",))
    assert ids(spark, target) == [(1, "old"), (2, "old")]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_key_change_of_a_missing_row_to_a_key_that_is_taken_is_not_committed(spark, keyed, overwrite):
    """PostgreSQL leaves it out: there is no row that could come to the key."""
    session, target = fork(spark), keyed(1, 2, overwrite=overwrite)
    assert apply_effects(session, effect_of("U1 M32"), target, truncated=False) is None
    assert ids(spark, target) == [(1, "old"), (2, "old")]


def test_key_changes(spark, keyed):
    session, target = fork(spark), keyed(1, 2)
    assert apply_effects(session, effect_of("I1 I1"), target, truncated=False) is None
    assert ids(spark, target) == [(1, "old"), (2, "old")]
    assert tally_of(session, target, "U1 M24").counts == {}
    assert ids(spark, target) == [1, 4]
    assert tally_of(session, target, "M35 I3").counts == {
        "insert_exists": 0,
        "update_exists": 0,
        "update_missing": 1,
        "delete_missing": 0,
    }
    assert ids(spark, target) == [1, 3, 4]
    assert conflict_in(session, target, "M14") == ("update_exists", ("4",))
    assert tally_of(session, target, "M42 M14 M21 I2").counts == {}
    assert ids(spark, target) == [1, 2, 3, 4]


def test_after_a_truncate_only_what_begins_is_there(spark, keyed):
    session, target = fork(spark), keyed(1, 2)
    tally = tally_of(session, target, "U1 U1 D1 D2 I3 I4 D4", truncated=True)
    assert tally.counts == {"update_missing": 2, "delete_missing": 2}
    assert tally.keys == {"update_missing": [(1,)], "delete_missing": [(1,), (2,)]}
    assert ids(spark, target) == [3]
    assert tally_of(session, target, "M34 I3", truncated=True).counts == {"update_missing": 1}
    assert ids(spark, target) == [3]


@pytest.mark.parametrize("overwrite", [False, True])
def test_many_effects_and_many_files(spark, keyed, monkeypatch, overwrite):
    """The effects come from a file, and the keys' ranges are in the condition."""
    monkeypatch.setattr(source, "PLAN_ROWS", 0)
    monkeypatch.setattr(merge_effects, "PLAN_ROWS", 0)
    monkeypatch.setattr(merge_effects, "_FILES", -1)
    session, target = fork(spark), keyed(1, 2, 3, 6, overwrite=overwrite)
    tally = tally_of(session, target, "U1 D2 M34 U5 I7 U7 D8")
    assert tally.counts == {"insert_exists": 0, "update_exists": 0, "update_missing": 1, "delete_missing": 1}
    assert ids(spark, target) == [1, 4, (6, "old"), 7]
    assert tally_of(session, target, "I9").counts == {}
    if overwrite:
        assert tally_of(session, target, "I6 I1 D1").counts["insert_exists"] == 2
        assert ids(spark, target) == [4, 6, 7, 9]
