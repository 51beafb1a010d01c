"""Batches that join one: what becomes of each of their parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from bridge.apply.batch.batch import Batch
from bridge.apply.batch.growing_batch import GrowingBatch
from bridge.apply.batch.table_changes import TableChanges
from bridge.apply.target.target import Target, TargetColumn, target_schema
from bridge.errors import ApplyContext, ApplyError
from protocol.lsn import Lsn
from protocol.message_array import ChunkedMessages
from protocol.messages import LogicalMessage
from protocol.transactions import Transaction
from protocol.values.types import resolve

COLUMNS = (TargetColumn("id", resolve(20, -1)),)


def changes(operations: str, *ids: int, name: str = "t", **fields: Any) -> TableChanges:
    """Changes by their initial letters."""
    target = Target("public", name, f"/{name}", target_schema([("id", pa.int64())]))
    rows = [
        {"seq": n, "op": ord(op), "old": 0, "new_0": None if op == "D" else id_, "old_0": id_ if op == "D" else None}
        for n, (op, id_) in enumerate(zip(operations, ids, strict=True))
    ]
    types = [("seq", pa.int64()), ("op", pa.int16()), ("old", pa.int16()), ("new_0", pa.int64()), ("old_0", pa.int64())]
    table = pa.Table.from_pylist(rows, schema=pa.schema(types))
    return TableChanges(target, COLUMNS, fields.pop("key", (0,)), table, **fields)


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
