"""Changes of a target are collected until the batch ends, in memory or in files."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from pgbridge.bridge.batch.batch import inserts_only, needs_fold
from pgbridge.bridge.batch.collector import ChangeCollector
from pgbridge.bridge.batch.routes import Subscribed
from pgbridge.bridge.effects.events import DELETE, INSERT, KEY_TUPLE, OLD_TUPLE, UPDATE
from pgbridge.bridge.evolution.alterations import AddColumn, RenameColumn, WidenColumn
from pgbridge.bridge.runtime.errors import NeedsResync
from pgbridge.bridge.targets.target import TargetColumn, target_field, target_schema
from pgbridge.protocol.lsn import INVALID
from pgbridge.protocol.values.types import resolve
from tests.bridge.apply.made_changes import changes_table, random_case
from tests.bridge.batch.collected import TARGET, changed, collector, columns, spill_in, table


@pytest.mark.parametrize("spilled", [False, True])
def test_definitions_that_differ(spilled, tmp_path):
    """Columns are joined by name. A new column is NULL in INSERTs and unchanged in UPDATEs."""
    made = collector(
        columns("a", "b"), table(0, new_0=1, new_1=2), table(1, UPDATE, new_0=1, new_1=3, unchanged_1=True)
    )
    if spilled:
        made.spill(spill_in(tmp_path))
    made.columns = columns("a", "new", "b")
    made.add(table(2, new_0=5, new_1=6, new_2=7))
    (changes,) = made.changes()
    rows = changes.changes
    assert rows.drop_columns(["op", "old"]).to_pylist() == [
        {"seq": 0, "new_0": 1, "new_1": None, "unchanged_1": False, "new_2": 2, "unchanged_2": False},
        {"seq": 1, "new_0": 1, "new_1": None, "unchanged_1": True, "new_2": 3, "unchanged_2": True},
        {"seq": 2, "new_0": 5, "new_1": 6, "unchanged_1": False, "new_2": 7, "unchanged_2": False},
    ]
    assert (changes.inserts_only, changes.needs_fold, changes.empty) == (False, False, False)


def test_moved_rows_are_known_in_files_too(tmp_path):
    rng = random.Random(5)
    for seed in range(200):
        changes = changes_table([random_case(0, random.Random(seed), moves_keep_toast=True)], rng)
        made = collector(columns("case", "key", "plain", "toast"), *(changes.slice(n, 1) for n in range(len(changes))))
        assert [together.needs_fold for together in made.changes()] == [needs_fold(changes)]
        made.spill(spill_in(tmp_path))
        (spilled,) = made.changes()
        assert (spilled.needs_fold, spilled.inserts_only) == (needs_fold(changes), inserts_only(changes))


@pytest.mark.parametrize("spilled", [False, True])
def test_altered_columns(spilled, tmp_path):
    """Earlier changes follow the target's alterations: names, types, constants."""
    made = collector(columns("id", "a"), table(0, new_0=1, new_1=2), table(1, UPDATE, new_0=1, new_1=3))
    if spilled:
        made.spill(spill_in(tmp_path))
    made.alter(
        [
            RenameColumn("a", "b"),
            WidenColumn("b", pa.int64()),
            AddColumn("c", pa.int32(), pa.scalar(7, pa.int32())),
            AddColumn("d", pa.int32()),
        ]
    )
    made.columns = (*columns("id"), TargetColumn("b", resolve(20, -1, {})), *columns("c", "d"))
    made.alter([WidenColumn("c", pa.int64())])
    made.columns = (made.columns[0], made.columns[1], replace(made.columns[1], name="c"), made.columns[3])
    after = table(2, new_0=5, new_1=6, new_2=8, new_3=9)
    made.add(
        after.cast(pa.schema([f.with_type(pa.int64()) if f.name in {"new_1", "new_2"} else f for f in after.schema]))
    )
    (changes,) = made.changes()
    assert [type(step).__name__ for step in changes.alterations] == [
        *("RenameColumn", "WidenColumn", "AddColumn", "AddColumn", "WidenColumn")
    ]
    rows = changes.changes
    assert [rows.schema.field(f"new_{i}").type for i in range(4)] == [pa.int32(), pa.int64(), pa.int64(), pa.int32()]
    assert rows.select([f"new_{i}" for i in range(4)]).to_pylist() == [
        {"new_0": 1, "new_1": 2, "new_2": 7, "new_3": None},
        {"new_0": 1, "new_1": 3, "new_2": 7, "new_3": None},
        {"new_0": 5, "new_1": 6, "new_2": 8, "new_3": 9},
    ]
    assert rows["unchanged_2"].to_pylist() == rows["unchanged_3"].to_pylist() == [False, True, False]


@pytest.mark.parametrize("spilled", [False, True])
def test_a_key_changes_while_a_column_is_away(spilled, tmp_path):
    """The row keeps its value in the column, so it has to be moved; in files, too."""
    made = collector(columns("id", "gone"), table(0, new_0=1, new_1=2))
    made.columns = columns("id")
    row = {"seq": 1, "op": UPDATE, "old": KEY_TUPLE, "new_0": 2, "old_0": 1}
    schema = pa.schema(
        {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16(), "new_0": pa.int32(), "old_0": pa.int32()}
    )
    made.add(pa.Table.from_pylist([row], schema))
    if spilled:
        made.spill(spill_in(tmp_path))
    (changes,) = made.changes()
    assert changes.needs_fold
    assert [column.name for column in changes.columns] == ["id", "gone"]


def test_with_the_whole_old_row_a_key_changes_where_it_is_another():
    """Under REPLICA IDENTITY FULL every UPDATE has its whole old row; few UPDATEs change the key."""
    for old, moved in ((1, False), (2, True)):
        made = ChangeCollector(Subscribed(TARGET, INVALID, ("id",)))
        made.columns, made.key = columns("id"), (0,)
        made.add(table(0, UPDATE, new_0=1, old_0=old).set_column(2, "old", pa.array([OLD_TUPLE], pa.int16())))
        (changes,) = made.changes()
        assert changes.net_effect().shape.moved == moved


def test_a_column_with_a_default_of_the_targets_own_comes_and_goes_between_commits():
    """In one commit the rows without it would have NULL."""
    fields = (target_field("id", pa.int32()), target_field("own", pa.int32())._replace(filled="default"))
    subscribed = Subscribed(replace(TARGET, schema=fields), INVALID, ())
    made = ChangeCollector(subscribed)
    for seq, names in enumerate((("id",), ("id", "own"), ("id", "own"), ("id",))):
        made.columns, made.key = columns(*names), (0,)
        made.add(table(seq, **{f"new_{i}": seq for i in range(len(names))}))
    assert [columns_ for columns_, _, _ in parts(made)] == [["id"], ["id", "own"], ["id"]]


def parts(made: ChangeCollector) -> list[tuple[list[str], list[str], list[int]]]:
    """The columns of each part, those that identify a row, and the positions of its changes."""
    return [
        (
            [column.name for column in part.columns],
            [part.columns[k].name for k in part.key],
            part.changes["seq"].to_pylist(),
        )
        for part in made.changes()
    ]


def test_a_part_ends_where_rows_are_found_by_other_columns():
    """INSERTs find no rows: they go with any key's changes after them, but not with another key's before them."""
    update = {"new_0": 1, "new_1": 2, "old_0": 1, "old_1": 1}
    made = collector(columns("a", "b"))
    for seq, (key, op) in enumerate(
        [((0,), INSERT), ((), UPDATE), ((), INSERT), ((1,), UPDATE), ((1,), UPDATE), ((0,), INSERT)]
    ):
        made.key = key
        made.add(changed(seq, op, **update))
    assert parts(made) == [
        (["a", "b"], [], [0, 1, 2]),
        (["a", "b"], ["b"], [3, 4]),
        (["a", "b"], ["a"], [5]),
    ]
    made.truncate()
    assert [(part.truncated, part.empty) for part in made.changes()] == [(True, True)]


def test_without_a_key_a_part_ends_where_there_are_other_columns():
    """All columns identify a row. The constant of a later column is for new rows only."""
    made = collector(columns("a"))
    made.key = ()
    made.add(changed(0, UPDATE, new_0=1, old_0=2))
    seven = pa.scalar(7, pa.int32())
    made.alter([RenameColumn("a", "x"), AddColumn("b", pa.int32(), seven)])
    made.columns = columns("x", "b")
    made.add(changed(1, INSERT, new_0=1, new_1=2))
    made.add(changed(2, DELETE, new_0=None, old_0=1, old_1=2))
    made.columns = columns("x")
    made.add(changed(3, DELETE, new_0=None, old_0=1))
    assert parts(made) == [(["x"], [], [0]), (["x", "b"], [], [1, 2]), (["x"], [], [3])]
    found = made.changes()
    assert [part.fills for part in found] == [{"b": seven}, {}, {}]
    assert [len(part.alterations) for part in found] == [0, 0, 2]


def test_an_earlier_part_stands_in_the_target_as_it_will_be():
    """It has the columns that were added later, with their constants, and the types that were widened later."""
    schema = target_schema([("id", pa.int64()), ("n", pa.int32()), ("later", pa.int32())])
    made = ChangeCollector(Subscribed(replace(TARGET, schema=schema), INVALID, ()))
    made.columns, made.key = columns("id", "n"), (0,)
    made.add(changed(0, INSERT, new_0=1, new_1=1))
    made.add(changed(1, UPDATE, new_0=1, new_1=2, old_0=1))
    made.alter([WidenColumn("id", pa.int64()), AddColumn("later", pa.int32(), pa.scalar(7, pa.int32()))])
    made.columns, made.key = (TargetColumn("id", resolve(20, -1, {})), *columns("n", "later")), (1,)
    made.add(changed(2, DELETE, new_0=None, new_1=None, old_1=2))
    first, second = made.changes()
    assert [column.type.arrow for column in first.columns] == [pa.int64(), pa.int32(), pa.int32()]
    assert first.changes["new_0"].type == first.changes["old_0"].type == pa.int64()
    assert first.changes.select(["new_2", "unchanged_2"]).to_pylist() == [
        {"new_2": 7, "unchanged_2": False},
        {"new_2": 7, "unchanged_2": True},
    ]
    assert (first.key, second.key) == ((0,), (1,))


def test_nothing():
    assert collector(columns("a")).changes() == []


def test_truncate_drops_the_changes_before_it():
    made = collector(columns("a"), table(0, new_0=1))
    made.truncate()
    (changes,) = made.changes()
    assert (changes.truncated, changes.empty, changes.inserts_only) == (True, True, True)


def test_spilling_leaves_nothing_in_memory_and_no_name(tmp_path):
    spill = spill_in(tmp_path)
    made = collector(columns("a"), *(table(n, new_0=n) for n in range(5)))
    assert made.memory_bytes > 0
    made.spill(spill)
    assert made.memory_bytes == 0
    made.add(table(5, new_0=5))
    made.spill(spill)
    made.add(table(6, new_0=6))
    assert list(tmp_path.iterdir()) == []
    (changes,) = made.changes()
    assert changes.spill is spill
    assert changes.changes["new_0"].to_pylist() == list(range(7))


def test_partitions_with_different_identities_must_not_come_by_turns():
    made = collector(columns("a", "b"))
    made.add(changed(5, DELETE, new_0=None, old_0=1))
    made.key = (1,)
    with pytest.raises(NeedsResync, match='partitions of table "public.t" have different replica identities'):
        made.add(changed(3, DELETE, new_1=None, old_1=1))


def test_changes_that_the_last_part_takes_must_not_begin_before_an_earlier_part_ends():
    """A row moved from z to x (DELETE 60, INSERT 61) would be deleted after its INSERT, by y's commit."""
    made = collector(columns("a", "b"))
    made.key = (0, 1)
    made.add(changed(50, DELETE, new_0=None, new_1=None, old_0=1, old_1=1))
    made.add(changed(61, INSERT, new_0=7, new_1=1))  # x; the first part ends here
    made.key = (0,)
    made.add(changed(101, DELETE, new_0=None, new_1=None, old_0=2))  # y
    with pytest.raises(NeedsResync, match="different replica identities, and their changes come by turns"):
        made.add(changed(60, DELETE, new_0=None, new_1=None, old_0=7))  # z
    made.add(changed(102, DELETE, new_0=None, new_1=None, old_0=8))
    assert [len(part.changes) for part in made.changes()] == [2, 2]
