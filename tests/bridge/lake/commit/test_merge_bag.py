"""Bags, committed by Spark, agree with a row-at-a-time model, whatever the target has or lacks."""

from __future__ import annotations

import math
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pgbridge.bridge.batch.batch import TableChanges
from pgbridge.bridge.effects.conflicts import DELETE_MISSING, KEPT_KEYS, UPDATE_MISSING
from pgbridge.bridge.effects.events import DELETE, INSERT, NO_OLD, OLD_TUPLE, UPDATE
from pgbridge.bridge.lake import writes
from pgbridge.bridge.lake.commit import bag
from pgbridge.bridge.lake.commit.apply_table import apply_table
from pgbridge.bridge.lake.commit.merge_bag import settle
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.retry import have_changed, retry_commit
from pgbridge.bridge.lake.schema import spark_schema, target_schema_of
from pgbridge.bridge.lake.source import as_frame
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.spark.session import fork
from pgbridge.bridge.targets.target import Target, TargetColumn
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.types import resolve

COLUMNS = tuple(
    TargetColumn(name, resolve(oid, typmod))
    for name, oid, typmod in [
        ("case", 23, -1), ("k_0", 23, -1), ("the.float", 701, -1), ("note", 25, -1), ("raw", 17, -1),
        ("amount", 1700, (9 << 16 | 2) + 4), ("floats", 1022, -1),
    ]
)  # fmt: skip
Row = tuple[Any, ...]
NUMBERS = [0.0, -0.0, math.nan, 1.5, None]


def random_row(case: int, rng: random.Random) -> Row:
    """One of few rows, so that many are equal, or differ in one value only."""
    row: list[Any] = [case, 1, 0.0, "a", b"\x00", Decimal("1.00"), [0.0, None]]
    other: list[list[Any]] = [
        [None, 2], NUMBERS, [None, "", "b"], [None, b""], [None, Decimal("-1.00")],
        [None, [], [-0.0, None], [math.nan], [None]],
    ]  # fmt: skip
    if rng.random() < 0.7:
        column = rng.randrange(len(other))
        row[column + 1] = rng.choice(other[column])
    return tuple(row)


class Model:
    """PostgreSQL's apply worker on a bag, a change at a time."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = Counter(map(repr, rows))
        self.conflicts: Counter[str] = Counter()

    def apply(self, op: int, old: Row | None, new: Row | None) -> None:
        """Make one change."""
        if op != INSERT:
            if not self.rows[repr(old)]:
                self.conflicts[UPDATE_MISSING if op == UPDATE else DELETE_MISSING] += 1
                return
            self.rows[repr(old)] -= 1
        if op != DELETE:
            self.rows[repr(new)] += 1


def random_changes(
    cases: int, rng: random.Random, *, held: list[Row], missing: bool
) -> tuple[list[tuple[int, Any, Any]], list[Row]]:
    """Changes of (op, old row, new row) of a publisher with the rows `held`, and its rows after them.

    With `missing` some are of any row.
    """
    there: dict[int, list[Row]] = {case: [row for row in held if row[0] == case] for case in range(cases)}
    changes: list[tuple[int, Any, Any]] = []
    for _ in range(cases * 8):
        case = rng.randrange(cases)
        rows = there[case]
        op = rng.choice([INSERT, INSERT, UPDATE, UPDATE, DELETE])
        new = None if op == DELETE else random_row(case, rng)
        old = None
        if op != INSERT:
            if missing and rng.random() < 0.3:
                old = random_row(case, rng)
            elif rows:
                old = rows.pop(rng.randrange(len(rows)))
            else:
                continue
        if new is not None:
            rows.append(new)
        changes.append((op, old, new))
    return changes, [row for rows in there.values() for row in rows]


def table_of(changes: list[tuple[int, Any, Any]], rng: random.Random) -> pa.Table:
    """In the columns of `TableChanges.changes`; where a value stays, it is now and then only in the old tuple."""
    columns: dict[str, list[Any]] = {"seq": [], "op": [], "old": [], "unchanged_3": []}
    columns |= {f"{kind}_{i}": [] for kind in ("new", "old") for i in range(len(COLUMNS))}
    for seq, (op, old, new) in enumerate(changes):
        unchanged = op == UPDATE and old[3] == new[3] and rng.random() < 0.5
        columns["seq"].append(seq)
        columns["op"].append(op)
        columns["old"].append(NO_OLD if old is None else OLD_TUPLE)
        columns["unchanged_3"].append(unchanged)
        for i in range(len(COLUMNS)):
            columns[f"old_{i}"].append(None if old is None else old[i])
            columns[f"new_{i}"].append(None if new is None or (i == 3 and unchanged) else new[i])
    types = {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16(), "unchanged_3": pa.bool_()}
    types |= {f"{kind}_{i}": column.type.arrow for kind in ("new", "old") for i, column in enumerate(COLUMNS)}
    return pa.table(columns, schema=pa.schema(types))


@pytest.fixture
def target(spark, tmp_path):
    """An empty table with a column of its own."""
    fields = [(column.name, column.type.arrow) for column in COLUMNS]
    schema = spark_schema([fields[0], ("own `col", pa.string()), *fields[1:]])
    path = str(tmp_path / "t")
    create_table(spark, path, schema)
    return Target("public", "t", path, target_schema_of(schema))


def fill(spark, target, rows, own=None):
    table = pa.table(
        {
            **{c.name: pa.array([row[i] for row in rows], c.type.arrow) for i, c in enumerate(COLUMNS)},
            "own `col": pa.array([own] * len(rows), pa.string()),
        }
    )
    append_rows(as_frame(spark, table), target.path)


def content(spark, target):
    rows = spark.read.format("delta").load(target.path).toArrow().to_pylist()
    return Counter(repr(tuple(row[column.name] for column in COLUMNS)) for row in rows)


@pytest.mark.soak  # `tests.oracle.test_replica_identity` has a random history of a bag as well
@pytest.mark.parametrize(("seed", "missing"), [(1, False), (2, True)])
def test_random_histories(spark, target, seed, missing):
    """Many bags in one table, by two batches; in the second run the target lacks rows and has others."""
    rng = random.Random(seed)
    held = [random_row(case, rng) for case in range(40) for _ in range(rng.randrange(4))]
    here = [row for row in held if not missing or rng.random() < 0.7]
    here += [random_row(rng.randrange(40), rng) for _ in range(40 * missing)]
    fill(spark, target, here)
    model = Model(here)
    found: list[Any] = []
    session = fork(spark)
    for number in range(2):
        changes, held = random_changes(40, rng, held=held, missing=missing)
        table: Any = table_of(changes, rng)
        for change in changes:
            model.apply(*change)
        batch = TableChanges(target, COLUMNS, (), table)
        for _ in range(1 + number):  # the second time Delta has it already
            with stamped(session, CommitStamp("app", Lsn(1), Lsn(2 + number))):
                apply_table(session, batch, conflicts=found.append)
        assert content(spark, target) == +model.rows
    counts: Counter[str] = Counter()
    for conflicts in found:
        counts.update(conflicts.counts)
        assert conflicts.relation == "public.t"
        assert all(0 < len(keys) <= KEPT_KEYS for keys in conflicts.kept.values())
    assert counts == model.conflicts
    assert bool(counts) is missing


def test_after_a_truncate_only_what_came_after_it_counts(spark, target):
    rng = random.Random(3)
    for missing in (False, True):
        fill(spark, target, [random_row(case, rng) for case in range(5)])
        changes, _ = random_changes(20, rng, held=[], missing=missing)
        model = Model([])
        found: list[Any] = []
        for change in changes:
            model.apply(*change)
        batch = TableChanges(target, COLUMNS, (), table_of(changes, rng), truncated=True)
        apply_table(spark, batch, conflicts=found.append)
        assert content(spark, target) == +model.rows
        assert [dict(conflicts.counts) for conflicts in found] == ([dict(model.conflicts)] if missing else [])


def test_rows_that_remain_keep_their_own_columns_and_what_is_missing_is_told(spark, target):
    row = (1, 1, -0.0, None, None, None, None)
    fill(spark, target, [row] * 3, own="mine")
    other = (1, 1, 0.0, None, b"\xff", None, None)
    found: list[Any] = []
    changes = [(UPDATE, row, other), (DELETE, other, None), (DELETE, other, None)]
    batch = TableChanges(target, COLUMNS, (), table_of(changes, random.Random(0)))
    apply_table(spark, batch, conflicts=found.append)
    assert content(spark, target) == {repr(row): 2}
    left = spark.read.format("delta").load(target.path).select("`own ``col`").collect()
    assert [value for (value,) in left] == ["mine", "mine"]
    ((example,),) = found[0].kept.values()
    assert example.message == 'conflict detected on relation "public.t": conflict=delete_missing'
    assert example.detail == (
        "Could not find the row to be deleted: replica identity full "
        "(case, k_0, the.float, note, raw, amount, floats)=(1, 1, 0.0, null, \\xff, null, null)."
    )


def test_rows_that_become_others_keep_the_columns_that_only_the_target_has(spark, target):
    """Each its own; of equal ones any. Rows that come have the constant there, also after a TRUNCATE."""
    rest = (0.0, None, None, None, None)
    rows = [(1, n, *rest) for n in (1, 1, 1, 2, 3)]
    for held, own in zip(rows, ("a", "b", "c", "d", "e"), strict=True):
        fill(spark, target, [held], own=own)

    def row(n):
        return (1, n, *rest)

    steps = [
        (UPDATE, row(2), row(7)), (UPDATE, row(7), row(8)), (UPDATE, row(1), row(5)), (DELETE, row(1), None),
        (INSERT, None, row(9)), (UPDATE, row(9), row(10)), (UPDATE, row(4), row(11)), (UPDATE, row(3), row(3)),
    ]  # fmt: skip
    found: list[Any] = []
    fills = {"own `col": pa.scalar("new")}
    batch = TableChanges(target, COLUMNS, (), table_of(steps, random.Random(1)), fills=fills)
    session = fork(spark)
    for _ in range(2):  # the second time Delta has it already
        with stamped(session, CommitStamp("app", Lsn(1), Lsn(2))):
            apply_table(session, batch, conflicts=found.append)
    found_rows = spark.read.format("delta").load(target.path).select("k_0", "`own ``col`").collect()
    assert {tuple(one) for one in found_rows} >= {(8, "d"), (3, "e"), (10, "new")}
    assert sorted(one[0] for one in found_rows) == [1, 3, 5, 8, 10]
    equal = {one[1] for one in found_rows if one[0] in {1, 5}}
    assert len(equal) == 2
    assert equal < {"a", "b", "c"}
    assert [dict(conflicts.counts) for conflicts in found] == [{UPDATE_MISSING: 1}]
    after = TableChanges(target, COLUMNS, (), table_of(steps[4:6], random.Random(1)), truncated=True, fills=fills)
    apply_table(spark, after)
    assert spark.read.format("delta").load(target.path).select("k_0", "`own ``col`").collect() == [(10, "new")]


@given(
    before=st.dictionaries(st.integers(0, 4), st.integers(0, 3), min_size=5, max_size=5),
    changes=st.lists(st.tuples(st.sampled_from([INSERT, UPDATE, DELETE]), st.integers(0, 4), st.integers(0, 4))),
)
def test_settle_makes_changes_in_their_turn(before, changes):
    turns: dict[str, list[int]] = {"ord": [], "op": [], "id": []}
    model = Model([(row,) for row, copies in before.items() for _ in range(copies)])
    for seq, (op, old, new) in enumerate(changes):
        for half, row in ((0, old), (1, new)):
            if (op, half) not in {(INSERT, 0), (DELETE, 1)}:
                turns["ord"].append(2 * seq + half)
                turns["op"].append(op)
                turns["id"].append(row)
        model.apply(op, (old,), (new,))
    after, missing = settle(before, pa.table(turns))
    assert {repr((row,)): copies for row, copies in after.items() if copies} == +model.rows
    assert {name: found.total() for name, found in missing.items()} == model.conflicts


@pytest.fixture
def meanwhile(spark, monkeypatch):
    """Has another writer add rows once, just before the next MERGE begins."""

    def run(target, rows, own=None):
        def merge_into(source, path, statement):
            if rows:
                fill(spark, target, rows, own)
                rows.clear()
            return original(source, path, statement)

        original = writes.merge_into
        monkeypatch.setattr(bag, "merge_into", merge_into)

    return run


@pytest.mark.parametrize("missing", [False, True])
def test_a_copy_that_comes_meanwhile_stays(spark, target, meanwhile, missing):
    """Whether the sums suffice, or changes are made one by one: then the copies are looked up, and once more."""
    row, other, absent = ((1, n, 0.0, "a", None, None, None) for n in (1, 2, 3))
    fill(spark, target, [row, row])
    meanwhile(target, [row])
    found: list[Any] = []
    steps = [(DELETE, row, None), (INSERT, None, other), (DELETE, absent, None)][: 2 + missing]
    batch = TableChanges(target, COLUMNS, (), table_of(steps, random.Random(0)))
    retry_commit(lambda: apply_table(spark, batch, conflicts=found.append), target.path)
    assert content(spark, target) == {repr(row): 2, repr(other): 1}
    assert [dict(conflicts.counts) for conflicts in found] == [{DELETE_MISSING: 1}] * missing


def test_a_copy_that_comes_meanwhile_keeps_its_own_columns(spark, target, meanwhile):
    row, other = ((1, n, 0.0, "a", None, None, None) for n in (1, 2))
    fill(spark, target, [row], own="mine")
    meanwhile(target, [row], own="theirs")
    batch = TableChanges(target, COLUMNS, (), table_of([(UPDATE, row, other)], random.Random(0)))
    with pytest.raises((PySparkException, Py4JError)) as error:
        apply_table(spark, batch)
    assert have_changed(error.value)
    assert content(spark, target) == {repr(row): 2}
    apply_table(spark, batch)
    assert content(spark, target) == {repr(row): 1, repr(other): 1}
    left = spark.read.format("delta").load(target.path).select("`own ``col`").collect()
    assert sorted(value for (value,) in left) == ["mine", "theirs"]
