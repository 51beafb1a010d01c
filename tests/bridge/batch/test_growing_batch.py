"""Batches that join one: what becomes of each of their parts."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pgbridge.bridge.batch import growing_batch
from pgbridge.bridge.batch.batch import Batch, TableChanges
from pgbridge.bridge.batch.growing_batch import GrowingBatch, GrowingTable
from pgbridge.bridge.evolution.alterations import AddColumn
from pgbridge.bridge.runtime.errors import ApplyContext, ApplyError
from pgbridge.bridge.targets.target import Target, TargetColumn, target_schema
from pgbridge.protocol.bulk.message_array import ChunkedMessages
from pgbridge.protocol.codec.messages import LogicalMessage
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Transaction
from pgbridge.protocol.values.types import resolve
from tests.bridge.apply import made_changes
from tests.bridge.apply.made_changes import (
    KEY,
    TYPES,
    after_all,
    before_all,
    changes_table,
    merged,
    random_case,
)
from tests.bridge.batch.collected import spill_in

NAMES = ("case", "key", "n", "large")
TARGET = Target("public", "t", "/t", target_schema(list(zip(NAMES, TYPES, strict=True))))
COLUMNS = tuple(TargetColumn(name, resolve(oid, -1)) for name, oid in zip(NAMES, (20, 20, 20, 25), strict=True))


def made(table: pa.Table, **fields: Any) -> TableChanges:
    return TableChanges(TARGET, COLUMNS, fields.pop("key", KEY), table, **fields)


def random_changes(seed):
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=False) for number in range(80)]
    return changes_table(cases, rng)


def grown(*parts: TableChanges) -> TableChanges:
    growing, *others = [GrowingTable.of(part) for part in parts]
    assert growing is not None
    for other in others:
        assert other is not None
        assert growing.takes(other)
        growing.add(other)
    return growing.changes()


def rows_of(changes: TableChanges) -> list[dict[str, Any]]:
    assert isinstance(changes.changes, pa.Table)
    found: list[dict[str, Any]] = changes.changes.to_pylist()
    return found


@pytest.mark.parametrize("few_rows", [0, 50, 200_000])
@pytest.mark.parametrize("seed", range(3))
def test_effects_in_runs_lead_to_the_same_rows(monkeypatch, seed, few_rows):
    monkeypatch.setattr(growing_batch, "_FEW_ROWS", few_rows)
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=True) for number in range(80)]
    table = changes_table(cases, rng)
    runs = [table[at : at + 37] for at in range(0, len(table), 37)]
    found = grown(*map(made, runs))
    assert found.effect is not None
    assert merged(before_all(cases), made_changes.rows_of(found.effect.table)) == after_all(cases)
    assert rows_of(found) == []
    assert not found.empty


def test_memory_follows_the_rows_that_are_touched(monkeypatch):
    """A thousand updates of ten rows are ten effects."""
    monkeypatch.setattr(growing_batch, "_FEW_ROWS", 100)
    row = random_changes(0)[:1].to_pylist()[0] | {"op": ord("U"), "old": 0, "old_0": None, "old_1": None}
    schema = random_changes(0).schema
    run = pa.Table.from_pylist([row | {"seq": n, "new_0": n, "new_1": 1} for n in range(10)], schema=schema)
    growing = GrowingTable.of(made(run))
    assert growing is not None
    for _ in range(100):
        other = GrowingTable.of(made(run))
        assert other is not None
        growing.add(other)
        assert growing.rows <= 130
    growing.compact()
    assert growing.rows == 10
    assert growing.memory_bytes <= 2 * run.nbytes


def test_changes_without_an_effect_are_kept_one_after_another():
    """Without a key: positions go on rising, and marks are filled."""
    table = random_changes(1)
    first, second = table[:10], table[10:25].drop_columns(["unchanged_3"])
    second = second.set_column(0, "seq", pa.array(range(15)))
    found = grown(made(first, key=()), made(second, key=()))
    assert found.effect is None
    rows = rows_of(found)
    seq = [row["seq"] for row in rows]
    assert seq == sorted(set(seq))
    assert [row["new_1"] for row in rows] == table["new_1"][:25].to_pylist()
    assert [row["unchanged_3"] for row in rows[10:]] == [False] * 15


def test_lost_values_are_added_up():
    table = random_changes(1)
    assert grown(made(table[:5], lost=2), made(table[5:9], lost=3)).lost == 5


def test_what_has_to_be_by_itself(tmp_path):
    table = random_changes(2)
    twice = pa.concat_tables([changes_table([], random.Random(0)), table.slice(0, 1), table.slice(0, 1)])
    insert = twice.set_column(1, "op", pa.array([ord("I")] * 2, pa.int16()))
    alone = [
        made(table, alterations=(AddColumn("c", pa.int64(), None),)),
        made(table, fills={"c": pa.scalar(1)}),
        made(table, spill=spill_in(tmp_path)),
        made(insert),
    ]
    assert [GrowingTable.of(changes) for changes in alone] == [None] * len(alone)


def test_only_changes_under_the_same_definition_are_added():
    table = random_changes(4)
    growing = GrowingTable.of(made(table))
    assert growing is not None
    others = [
        replace(made(table), columns=(*COLUMNS[:3], TargetColumn("wide", resolve(25, -1)))),
        replace(made(table), target=replace(TARGET, path="/other")),
        made(table[:0], key=()),
    ]
    for changes in others:
        other = GrowingTable.of(changes)
        assert other is not None
        assert not growing.takes(other)


ID_COLUMN = (TargetColumn("id", resolve(20, -1)),)


def changes(operations: str, *ids: int, name: str = "t", **fields: Any) -> TableChanges:
    """Changes by their initial letters."""
    target = Target("public", name, f"/{name}", target_schema([("id", pa.int64())]))
    rows = [
        {"seq": n, "op": ord(op), "old": 0, "new_0": None if op == "D" else id_, "old_0": id_ if op == "D" else None}
        for n, (op, id_) in enumerate(zip(operations, ids, strict=True))
    ]
    types = [("seq", pa.int64()), ("op", pa.int16()), ("old", pa.int16()), ("new_0", pa.int64()), ("old_0", pa.int64())]
    table = pa.Table.from_pylist(rows, schema=pa.schema(types))
    return TableChanges(target, ID_COLUMN, fields.pop("key", (0,)), table, **fields)


def batch(number: int, *tables: TableChanges, rows: int = 3, **fields: Any) -> Batch:
    """The number-th batch of a stream, of one transaction."""
    end_lsn = Lsn(100 * number)
    transaction = Transaction(number, Lsn(end_lsn - 8), number, end_lsn, ChunkedMessages([b"x"] * rows))
    return replace(Batch.of([transaction], Lsn(end_lsn - 100)), tables=list(tables), **fields)


def joined(*batches: Batch) -> Batch:
    growing = GrowingBatch(batches[0])
    for one in batches[1:]:
        assert growing.join(one)
    return growing.formed()


def ids(table: TableChanges) -> dict[int, bool]:
    """The keys of effects, and whether the row is there afterwards."""
    assert table.effect is not None
    return {row["match_0"]: not row["ended"] for row in table.effect.table.to_pylist()}


def test_a_batch_that_nobody_joins_is_as_it_was():
    alone = batch(1, changes("I", 1))
    growing = GrowingBatch(alone)
    assert growing.formed() is alone
    assert (growing.rows, growing.memory_bytes) == (3, 0)


def test_what_a_joined_batch_knows():
    first, last = batch(1, changes("II", 1, 2)), batch(2, changes("UD", 2, 1), changes("I", 7, name="u"))
    found = joined(first, last)
    assert (found.start_lsn, found.end_lsn, found.finish_lsn, found.xid) == (0, 200, 192, None)
    assert (found.transactions, found.rows, found.commit_time_us) == (2, 6, 2)
    assert not found.divisible
    assert not found.committed
    assert [table.target.name for table in found.tables] == ["t", "u"]
    assert [ids(table) for table in found.tables] == [{1: False, 2: True}, {7: True}]


def test_lists_and_maps_are_joined_in_order():
    one: Any = {name: [name] for name in ("prepared", "ended", "spools")}
    other: Any = {name: [name.upper()] for name in one}
    found = joined(
        batch(1, **one, columns={1: ("a",), 2: ("b",)}, relids={5: ("s", "t")}, names_before={1: ("s", "t")}),
        batch(2, **other, columns={2: ("c",)}, relids={6: ("s", "u")}, names_before={2: ("s", "u")}),
    )
    for name in one:
        assert getattr(found, name) == [name, name.upper()]
    maps: Any = (found.columns, found.relids, found.names_before)
    assert maps == ({1: ("a",), 2: ("c",)}, {5: ("s", "t"), 6: ("s", "u")}, {1: ("s", "t")})


def test_logical_messages_stay_without_the_rows_of_their_transactions():
    """They are delivered once the batch is durable; many of them fill a batch."""
    batches = []
    for number in (1, 2):
        made = batch(number)
        (transaction,) = made.items
        assert isinstance(transaction, Transaction)
        transaction.add(LogicalMessage(True, Lsn(1), "p", b"x" * 1000))
        made.with_messages.append(transaction)
        batches.append(made)
    growing = GrowingBatch(batches[0])
    assert growing.join(batches[1])
    assert growing.memory_bytes >= 2000
    found = growing.formed()
    assert [(transaction.xid, len(message.content)) for transaction, message in found.messages()] == [
        (1, 1000),
        (2, 1000),
    ]
    assert [len(transaction.rows) for transaction in found.with_messages] == [0, 0]
    assert len(batches[0].with_messages[0].rows) == 3


def test_a_truncate_voids_what_came_before_it():
    found = joined(
        batch(1, changes("I", 1), changes("I", 1, name="u")),
        batch(2, changes("I", 2, truncated=True, lost=1)),
        batch(3, changes("I", 3)),
    )
    truncated, other = found.tables
    assert (truncated.truncated, ids(truncated), truncated.lost) == (True, {2: True, 3: True}, 1)
    assert (other.truncated, ids(other)) == (False, {1: True})


def test_a_name_that_comes_back_is_the_last_one():
    """The catalog keeps the last relid of a name."""
    names = [{5: ("s", "t")}, {7: ("s", "t")}, {5: ("s", "t")}]
    found = joined(*(batch(number, relids=relids) for number, relids in enumerate(names, 1)))
    assert list(found.relids) == [7, 5]


def test_events_that_do_not_follow_are_seen_before_the_batch_is_applied():
    """Each run is clear; the DELETE in between is not published."""
    assert joined(batch(1, changes("U", 1)), batch(2, changes("I", 1))).unclear
    assert not joined(batch(1, changes("U", 1)), batch(2, changes("D", 1))).unclear


ERROR = ApplyError("no", ApplyContext("o", Lsn(1)))


@pytest.mark.parametrize(
    "alone",
    [
        batch(2, error=ERROR),
        batch(2, changes("I", 2), changes("I", 3)),
        batch(2, changes("I", 2), changes("I", 3, name="u", fills={"c": pa.scalar(1)})),
        batch(2, changes("I", 2, key=())),
    ],
    ids=["error", "two parts of a table", "one of its tables", "another definition"],
)
def test_what_cannot_join_leaves_all_as_it_was(alone):
    growing = GrowingBatch(batch(1, changes("I", 1)))
    assert not growing.join(alone)
    assert growing.join(batch(2, changes("I", 4)))
    assert not growing.join(alone)
    assert growing.join(batch(3, changes("I", 5)))
    assert [ids(table) for table in growing.formed().tables] == [{1: True, 4: True, 5: True}]
    first = GrowingBatch(alone)
    if len(alone.tables) != 1:
        assert not first.join(batch(3, changes("I", 5)))
        assert first.formed() is alone
