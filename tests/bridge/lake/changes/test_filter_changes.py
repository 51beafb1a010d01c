"""Row filters over changes: PostgreSQL's table of what an UPDATE becomes, NULL as no match, values that are lost."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from bridge.batch.change_schema import POSITION_NAMES
from bridge.batch.row_filters import RowFilters
from bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, OLD_TUPLE, UPDATE
from bridge.lake.changes.filter_changes import filter_changes, published_changes
from bridge.lake.source import as_frame
from tests.bridge.lake.commit.test_change_frame import ROWS, changes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column


POSITIONS = {"id": 0, "n": 1, "note": 2}


@dataclass(frozen=True)
class NAbove:
    """`n > limit`."""

    limit: int
    columns: frozenset[str] = frozenset({"n"})

    def to_spark(self, resolve: Callable[[str], Column]) -> Column:
        return resolve("n") > self.limit

    def true(self, n: int | None) -> bool:
        """The same, for the model."""
        return n is not None and n > self.limit


def change(op: int, new: tuple[Any, ...] = (None,) * 3, old: tuple[Any, ...] | None = None, mark: int = KEY_TUPLE):
    """A change; "kept" as the note's new value stands for an unchanged TOAST value."""
    note = None if new[2] == "kept" else new[2]
    row = {"op": op, "old": mark if old else NO_OLD, "new_0": new[0], "new_1": new[1], "new_2": note}
    return row | {"old_0": old and old[0], "old_1": old and old[1], "unchanged_2": new[2] == "kept"}


def result(spark, filters: RowFilters, *changes: dict[str, Any]) -> list[tuple[Any, ...]]:
    """(seq, op, new row, unchanged, lost) of what passes."""
    schema = pa.schema(
        {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16()}
        | {"new_0": pa.int32(), "new_1": pa.int32(), "new_2": pa.string()}
        | {"old_0": pa.int32(), "old_1": pa.int32(), "unchanged_2": pa.bool_()}
    )
    rows = [{"seq": seq, **item} for seq, item in enumerate(changes)]
    frame = filter_changes(as_frame(spark, pa.Table.from_pylist(rows, schema=schema)), filters, POSITIONS)
    return [
        (r["seq"], r["op"], (r["new_0"], r["new_1"], r["new_2"]), r["unchanged_2"], r["lost"])
        for r in frame.orderBy("seq").toArrow().to_pylist()
    ]


EVERY = RowFilters(NAbove(10), NAbove(10), NAbove(10))


def test_the_table_of_updates(spark):
    """Neither: nothing; new only: INSERT; old only: DELETE; both: UPDATE; without an old tuple, the new's verdict."""
    found = result(
        spark,
        EVERY,
        change(UPDATE, (1, 5, "a"), (1, 5)),
        change(UPDATE, (1, 15, "a"), (1, 5)),
        change(UPDATE, (1, 5, "a"), (1, 15)),
        change(UPDATE, (1, 15, "a"), (1, 16)),
        change(UPDATE, (1, 15, "a"), (1, None)),
        change(UPDATE, (1, None, "a"), (1, 15), OLD_TUPLE),
        change(UPDATE, (1, 15, "a")),
        change(UPDATE, (1, 5, "a")),
        change(UPDATE, (1, None, "a")),
    )
    assert [(seq, op) for seq, op, *_ in found] == [
        (1, INSERT),
        (2, DELETE),
        (3, UPDATE),
        (4, INSERT),
        (5, DELETE),
        (6, UPDATE),
    ]


def test_inserts_and_deletes(spark):
    found = result(
        spark,
        EVERY,
        *(change(INSERT, (1, n, "a")) for n in (5, 15, None)),
        *(change(DELETE, old=(1, n)) for n in (5, 15, None)),
    )
    assert [(seq, op) for seq, op, *_ in found] == [(1, INSERT), (4, DELETE)]


@pytest.mark.parametrize("action", ["insert", "update", "delete"])
def test_each_action_has_its_own_filter(spark, action):
    """What an UPDATE becomes is not held against the filters of the others."""
    made = {"insert": RowFilters(NAbove(10)), "update": RowFilters(None, NAbove(10))}
    filters = made.get(action, RowFilters(delete=NAbove(10)))
    assert filters
    assert filters.columns == {"n"}
    found = result(
        spark, filters, change(INSERT, (1, 5, "a")), change(UPDATE, (1, 5, "a"), (1, 5)), change(DELETE, old=(1, 5))
    )
    assert {op for _, op, *_ in found} == {INSERT, UPDATE, DELETE} - {
        {"i": INSERT, "u": UPDATE, "d": DELETE}[action[0]]
    }


def test_no_filters_at_all():
    assert not RowFilters()
    assert RowFilters().columns == frozenset()


def test_a_value_that_the_stream_does_not_carry(spark):
    """Kept in an UPDATE; NULL, and counted, where the UPDATE becomes an INSERT."""
    found = result(spark, EVERY, change(UPDATE, (1, 15, "kept"), (1, 5)), change(UPDATE, (1, 15, "kept"), (1, 15)))
    assert found == [(0, INSERT, (1, 15, None), False, True), (1, UPDATE, (1, 15, None), True, False)]


def test_random_changes(spark):
    """Against the table, written down as Python."""
    rng = random.Random(3)

    def n() -> int | None:
        return rng.choice([None, 5, 10, 11, 20])

    changes = []
    for _ in range(400):
        op = rng.choice([INSERT, UPDATE, DELETE])
        old = (1, n()) if op == DELETE or (op == UPDATE and rng.random() < 0.6) else None
        new = (1, n(), rng.choice(["a", "kept"] if op == UPDATE else ["a"])) if op != DELETE else (None,) * 3
        changes.append(change(op, new, old, rng.choice([KEY_TUPLE, OLD_TUPLE])))
    filters = RowFilters(NAbove(10), NAbove(5), NAbove(10))
    expected = []
    for seq, item in enumerate(changes):
        new_n, old_n = item["new_1"], item["old_1"]
        if item["op"] == INSERT:
            becomes = INSERT if NAbove(10).true(new_n) else None
        elif item["op"] == DELETE:
            becomes = DELETE if NAbove(10).true(old_n) else None
        else:
            was = NAbove(5).true(new_n if item["old"] == NO_OLD else old_n)
            becomes = {(False, True): INSERT, (True, False): DELETE, (True, True): UPDATE}.get(
                (was, NAbove(5).true(new_n))
            )
        if becomes:
            expected.append((seq, becomes))
    assert [(seq, op) for seq, op, *_ in result(spark, filters, *changes)] == expected


def test_what_cannot_be_held_goes_along(spark):
    """An INSERT that was an UPDATE has from its old row what the stream does not carry, also of such a value."""
    schema = pa.schema(
        {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16()}
        | {"new_0": pa.int32(), "new_1": pa.int32(), "new_2": pa.list_(pa.date32())}
        | {"old_0": pa.int32(), "old_1": pa.int32(), "old_2": pa.list_(pa.date32()), "unchanged_2": pa.bool_()}
        | {"oldunheld_2": pa.string()}
    )
    row = {"op": UPDATE, "old": OLD_TUPLE, "new_0": 1, "old_0": 1, "new_1": 15, "unchanged_2": True}
    rows = [
        {"seq": 0, **row, "old_1": 5, "oldunheld_2": "infinity"},
        {"seq": 1, **row, "old_1": 5},
        {"seq": 2, **row, "old_1": 15, "oldunheld_2": "infinity"},
    ]
    found = filter_changes(as_frame(spark, pa.Table.from_pylist(rows, schema=schema)), EVERY, POSITIONS)
    assert found.orderBy("seq").select("op", "unheld_2", "unchanged_2", "lost").collect() == [
        (INSERT, "infinity", False, False),
        (INSERT, None, False, True),
        (UPDATE, None, True, False),
    ]


def test_columns_that_only_filters_look_at_go(spark):
    made = replace(changes("/t", *ROWS), published=frozenset({"id"}))
    frame, columns, key = published_changes(spark, made)
    assert [column.name for column in columns] == ["id"]
    assert key == (0,)
    assert frame.columns == ["seq", "op", "old", *POSITION_NAMES, "new_0", "old_0"]
    assert frame.count() == len(ROWS)


def test_all_of_them(spark):
    frame, columns, _ = published_changes(spark, changes("/t", *ROWS))
    assert len(columns) == 2
    assert "unchanged_1" in frame.columns
