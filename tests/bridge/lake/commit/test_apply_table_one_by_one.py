"""Keyed tables, committed by Spark, agree with a row-at-a-time model, conflicts included."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pgbridge.bridge.batch.batch import TableChanges
from pgbridge.bridge.batch.growing_batch import GrowingTable
from pgbridge.bridge.effects.conflicts import Conflict, Conflicts
from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.lake import writes
from pgbridge.bridge.lake.commit.apply_table import apply_table
from pgbridge.bridge.lake.commit_errors import conflict_of
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.retry import have_changed
from pgbridge.bridge.lake.schema import spark_schema, target_schema_of
from pgbridge.bridge.lake.source import as_frame
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.spark.session import fork
from pgbridge.bridge.targets.target import Target, TargetColumn
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.types import resolve
from tests.bridge.apply import made_targets
from tests.bridge.apply.made_changes import (
    KEY,
    TYPES,
    Case,
    RowAtATime,
    after_all,
    before_all,
    changes_table,
    random_case,
)
from tests.bridge.batch.collected import spill_in

COLUMNS = tuple(
    TargetColumn(name, resolve(oid, -1)) for name, oid in [("case", 20), ("the key", 20), ("n", 20), ("large", 25)]
)


@pytest.fixture
def made(spark, tmp_path):
    """Makes tables with rows by key."""

    def make(rows):
        path = str(tmp_path / f"t{len(list(tmp_path.iterdir()))}")
        schema = spark_schema([(c.name, arrow) for c, arrow in zip(COLUMNS, TYPES, strict=True)])
        create_table(spark, path, schema)
        columns = list(zip(*((*key, *row) for key, row in rows.items()), strict=True)) or [()] * 4
        arrays = [pa.array(column, arrow) for column, arrow in zip(columns, TYPES, strict=True)]
        append_rows(as_frame(spark, pa.table(arrays, names=[c.name for c in COLUMNS])), path)
        return Target("public", "t", path, target_schema_of(schema))

    return make


def content(spark, target):
    rows = [tuple(row.values()) for row in spark.read.format("delta").load(target.path).toArrow().to_pylist()]
    found = {(case, key): (n, large) for case, key, n, large in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def apply(session, target, table, lsn=2, **options):
    """Apply changes as a batch that ends at an LSN; returns the conflicts it reported."""
    found: list[Conflicts] = []
    truncated = options.pop("truncated", False)
    with stamped(session, CommitStamp("app", Lsn(1), Lsn(lsn))):
        changes = TableChanges(target, COLUMNS, KEY, table, truncated, spill=options.pop("spill", None))
        apply_table(session, changes, conflicts=found.append, **options)
    return {name: count for conflicts in found for name, count in conflicts.counts.items()}


def spoilt(cases, rng):
    """Rows of which some are missing and some are the target's own."""
    before = {key: row for key, row in before_all(cases).items() if rng.random() < 0.7}
    return before | {(case.number, rng.randrange(5)): (7, "own") for case in cases if rng.random() < 0.3}


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (1, "clear"),
        (7, "spilled"),
        pytest.param(2, "key changes", marks=pytest.mark.soak),
        (3, "large values move"),
        pytest.param(4, "gaps", marks=pytest.mark.soak),
        pytest.param(5, "truncated", marks=pytest.mark.soak),
    ],
)
def test_random_histories_against_a_target_that_is_not_equal(spark, made, seed, kind, tmp_path_factory):
    """Overwriting; and a second time, when Delta has it. In `clear` and `spilled` the net effect says it all."""
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=kind == "large values move") for number in range(150)]
    for case in cases:
        if kind in {"clear", "spilled"}:
            case.changes = [change for change in case.changes if change["op"] != ord("U") or change["old"] == 0]
            case.changes = without_gaps(case)
        elif kind == "gaps":
            case.changes = [change for change in case.changes if rng.random() < 0.7]
    before = spoilt(cases, rng)
    table = changes_table(cases, rng)
    model = RowAtATime({} if kind == "truncated" else before, overwrite=True)
    for change in table.to_pylist():
        model.apply(change)
    target, session = made(before), fork(spark)
    options: dict[str, Any] = {"conflict": "apply_remote", "truncated": kind == "truncated"}
    if kind == "spilled":
        options["spill"] = spill_in(tmp_path_factory.mktemp("spill"), table.nbytes // 4)
    assert apply(session, target, table, **options) == model.conflicts
    assert content(spark, target) == model.rows
    assert set(model.conflicts) >= {"update_missing", "delete_missing"}
    assert apply(session, target, table, **options) == {}
    assert content(spark, target) == model.rows


def test_a_row_that_is_born_again_is_no_conflict(spark, tmp_path):
    """Beside an UPDATE of a row that the batch has deleted, which the net effect does not say."""
    target = made_targets.empty_target(spark, tmp_path)
    append_rows(spark.createDataFrame([(1, "a"), (2, "b")], "id long, note string"), target.path)
    counted: list[Conflicts] = []
    rows = (DELETE, 1, None, None), (INSERT, None, 1, "again"), (DELETE, 2, None, None), (UPDATE, None, 2, "x")
    apply_table(spark, made_targets.changes(target, *rows), conflicts=counted.append)
    assert made_targets.content(spark, target) == [(1, "again")]
    assert [conflicts.counts for conflicts in counted] == [{"update_missing": 1}]


def grown(table, runs, *, truncated):
    """Changes that came in several runs, as a joined batch has them."""
    rows = -(-len(table) // runs)
    growing, *others = [
        GrowingTable.of(TableChanges(Target("public", "t", "", ()), COLUMNS, KEY, table[at : at + rows], truncated))
        for at in range(0, len(table), rows)
    ]
    assert growing is not None
    for other in others:
        assert other is not None
        growing.add(other)
    return growing.changes()


@pytest.mark.parametrize(("seed", "kind"), [(21, "clear"), (22, "key changes"), (23, "truncated")])
def test_a_joined_batch_against_a_target_that_is_not_equal(spark, made, seed, kind):
    """Its net effect is all that is left of the changes; a row that the target lacks must not leave its key."""
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=False) for number in range(150)]
    if kind != "key changes":
        for case in cases:
            case.changes = [change for change in case.changes if change["op"] != ord("U") or change["old"] == 0]
            case.changes = without_gaps(case)
    before = before_all(cases) if kind == "key changes" else spoilt(cases, rng)
    table = changes_table(cases, rng)
    model = RowAtATime({} if kind == "truncated" else before, overwrite=True)
    for change in table.to_pylist():
        model.apply(change)
    target, session = made(before), fork(spark)
    changes = replace(grown(table, 7, truncated=kind == "truncated"), target=target)
    for conflicts in (model.conflicts, Counter[str]()):  # the second time, Delta has it
        found: list[Conflicts] = []
        with stamped(session, CommitStamp("app", Lsn(1), Lsn(2))):
            apply_table(session, changes, conflict="apply_remote", conflicts=found.append)
        assert {name: count for one in found for name, count in one.counts.items()} == conflicts
        assert content(spark, target) == model.rows


def test_a_joined_batch_in_which_a_missing_row_leaves_its_key(spark, made):
    """If the other key is taken, the result depends on the changes, which are not there any more: nothing is committed.

    If it is free, the row is just missing.
    """
    table = changes_table([random_case(0, random.Random(0), moves_keep_toast=False)], random.Random(0)).slice(0, 0)
    move = {"seq": 0, "op": ord("U"), "old": ord("K"), "new_0": 0, "new_1": 2, "old_0": 0, "old_1": 1}
    moved = pa.Table.from_pylist([move | {"unchanged_3": False}], schema=table.schema)
    target = made({(0, 2): (1, "other")})
    changes = replace(grown(moved, 1, truncated=False), target=target)
    with pytest.raises((PySparkException, Py4JError), match="one by one"):
        apply_table(fork(spark), changes)
    assert content(spark, target) == {(0, 2): (1, "other")}

    target = made({(0, 3): (1, "other")})
    met: list[Conflicts] = []
    session = fork(spark)
    with stamped(session, CommitStamp("app", Lsn(1), Lsn(2))):
        apply_table(session, replace(changes, target=target), conflicts=met.append)
    assert content(spark, target) == {(0, 3): (1, "other")}
    assert [one.counts for one in met] == [{"update_missing": 1}]


def without_gaps(case: Case) -> list[dict[str, Any]]:
    """The changes of a history that still follow from each other when its key changes are left out."""
    there = set(case.before)
    kept = []
    for change in case.changes:
        key = change["old_1"] if change["op"] == ord("D") else change["new_1"]
        if (change["op"] == ord("I")) is (key not in there):
            kept.append(change)
            (there.discard if change["op"] == ord("D") else there.add)(key)
    return kept


@pytest.mark.parametrize("spilled", [False, True])
def test_a_target_that_is_equal_has_no_conflicts(spark, made, spilled, tmp_path_factory):
    rng = random.Random(6)
    cases = [random_case(number, rng, moves_keep_toast=False) for number in range(150)]
    table = changes_table(cases, rng)
    target, session = made(before_all(cases)), fork(spark)
    spill = spill_in(tmp_path_factory.mktemp("spill"), table.nbytes // 4) if spilled else None
    assert apply(session, target, table, spill=spill) == {}
    assert content(spark, target) == after_all(cases)


def change(op: str, new=None, old=None, large="x"):
    """One change of key 0, `new` or `old`."""
    return {
        "op": ord(op),
        "old": ord("K") if old is not None else 0,
        "new_0": None if new is None else 0,
        "new_1": new,
        "new_2": None,
        "new_3": large,
        "old_0": None if old is None else 0,
        "old_1": old,
        "unchanged_3": large is None,
    }


def one(*changes):
    return changes_table([Case(0, {}, list(changes))], random.Random(0))


STOPPING = {
    "an INSERT among other changes": ([change("U", 2), change("I", 1)], "insert_exists", "1"),
    "an INSERT whose row is deleted again": ([change("I", 1), change("D", old=1)], "insert_exists", "1"),
    "a key change onto a row": ([change("U", 1, old=2)], "update_exists", "1"),
    "a key change that keeps its large value": ([change("U", 1, old=2, large=None)], "update_exists", "1"),
    "a second INSERT, where DELETE is not published": ([change("I", 8), change("I", 8)], "insert_exists", "8"),
    "a key change onto a new row": ([change("I", 8), change("U", 8, old=2)], "update_exists", "8"),
    "new rows only": ([change("I", 7), change("I", 1)], "insert_exists", "1"),
}


def test_a_row_in_the_way_stops_the_commit_and_is_told(spark, made):
    rows = {(0, 1): (1, "one"), (0, 2): (2, "two")}
    target, session = made(rows), fork(spark)
    for changes, name, key in STOPPING.values():
        with pytest.raises((PySparkException, Py4JError)) as caught:
            apply(session, target, one(*changes))
        assert conflict_of(caught.value) == Conflict("public.t", name, ("case", "the key"), ("0", key))
        assert content(spark, target) == rows
    assert apply(session, target, one(change("D", old=1), change("I", 1, large="again"))) == {}
    assert content(spark, target)[0, 1] == (None, "again"), "a DELETE before it makes way"


def test_new_rows_are_appended_once_and_a_repeated_batch_is_not_held_against_its_own_rows(spark, made):
    target, session = made({(0, 1): (1, "one")}), fork(spark)
    inserts = one(change("I", 7), change("I", 8))
    for _ in range(2):
        assert apply(session, target, inserts, lsn=2) == {}
    merging = one(change("I", 9), change("U", 1))
    for _ in range(2):
        assert apply(session, target, merging, lsn=3) == {}
    assert sorted(content(spark, target)) == [(0, 1), (0, 7), (0, 8), (0, 9)]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{target.path}`").collect()
    assert [row.operation for row in history][:2] == ["MERGE", "WRITE"]
    with pytest.raises((PySparkException, Py4JError)) as caught:
        apply(session, target, inserts, lsn=4)
    conflict = conflict_of(caught.value)
    assert conflict is not None
    assert conflict.name == "insert_exists"
    assert apply(session, target, inserts, lsn=5, conflict="apply_remote") == {"insert_exists": 2}


@pytest.fixture
def meanwhile(spark, monkeypatch):
    """Has another writer run a statement once, just before the next MERGE begins."""

    def run(statement):
        waiting = [statement]

        def merge_into(source, path, made):
            if waiting:
                spark.sql(waiting.pop().format(f"delta.`{path}`")).collect()
            return original(source, path, made)

        original = writes.merge_into
        monkeypatch.setattr(writes, "merge_into", merge_into)

    return run


def test_a_row_that_another_writer_deletes_before_it_moves_does_not_take_the_other_key(spark, made, meanwhile):
    """PostgreSQL, too, finds no row to update then, and leaves the one with the other key alone."""
    target = made({(0, 1): (1, "one"), (0, 2): (2, "two")})
    meanwhile("DELETE FROM {} WHERE `the key` = 1")
    assert apply(fork(spark), target, one(change("U", 2, old=1)), conflict="apply_remote") == {"update_missing": 1}
    assert content(spark, target) == {(0, 2): (2, "two")}


def test_what_another_writer_changes_before_changes_are_made_one_by_one_is_looked_up_again(spark, made, meanwhile):
    """The key change that keeps its large value finds no row any more, so it does not make one.

    The UPDATE after a DELETE does not follow from it: its INSERT is not published.
    """
    target, session = made({(0, 1): (1, "one"), (0, 3): (3, "three")}), fork(spark)
    meanwhile("DELETE FROM {} WHERE `the key` = 1")
    table = one(change("U", 2, old=1, large=None), change("U", 3), change("D", old=5), change("U", 5))
    with pytest.raises((PySparkException, Py4JError)) as error:
        apply(session, target, table, conflict="apply_remote")
    assert have_changed(error.value)
    assert content(spark, target) == {(0, 3): (3, "three")}
    assert apply(session, target, table, conflict="apply_remote") == {"update_missing": 2, "delete_missing": 1}
    assert content(spark, target) == {(0, 3): (None, "x")}
