"""Which changes a table lacks whose copy has ranges of several snapshots."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgbridge.bridge.batch.range_cut import RangeCut
from pgbridge.bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, UPDATE
from pgbridge.bridge.runtime.errors import RangesDiffer
from pgbridge.bridge.targets.target import Target
from pgbridge.protocol.codec.messages import Column, Relation
from pgbridge.protocol.lsn import Lsn

TARGET = Target("public", "t", "/t", ())
BOUNDS = (10, 20)
LSNS = (Lsn(100), Lsn(300), Lsn(200))
CUT = RangeCut("id", BOUNDS, LSNS)


def relation(identity="d", *, is_key=True):
    columns = (Column("note", 25, -1, is_key=False), Column("id", 20, -1, is_key=is_key))
    return Relation(1, "public", "t", identity, columns)


def decoded(changes, unchanged=()):
    """Rows of (operation, old key or None, new key or None)."""
    return pa.table(
        {
            "op": pa.array([op for op, _, _ in changes], pa.uint8()),
            "old": pa.array([NO_OLD if old is None else KEY_TUPLE for _, old, _ in changes], pa.uint8()),
            "new_1": pa.array([new for _, _, new in changes], pa.int64()),
            "old_1": pa.array([old for _, old, _ in changes], pa.int64()),
            "unchanged_0": pa.array([number in unchanged for number in range(len(changes))]),
        }
    )


def left(changes, lsns, unchanged=(), of=None):
    """What is left of changes that commit at these LSNs."""
    operations = np.array([op for op, _, _ in changes], np.uint8)
    firsts = np.array([np.searchsorted(np.array(lsns), lsn) for lsn in LSNS])
    table = decoded(changes, unchanged)
    rows = np.arange(len(changes))
    passed, become = CUT.left(of or relation(), TARGET, rows, table, operations, firsts)
    return [int(operation) if counts else None for counts, operation in zip(passed, become, strict=True)]


def test_a_change_counts_if_its_range_was_read_before():
    changes = [(INSERT, None, key) for key in (9, 10, 20)] * 3
    assert left(changes, [99, 99, 99, 200, 200, 200, 300, 300, 300]) == [
        *(None, None, None),
        *(INSERT, None, INSERT),
        *(INSERT, INSERT, INSERT),
    ]


@pytest.mark.parametrize(
    ("change", "becomes"),
    [
        ((UPDATE, None, 5), UPDATE),
        ((UPDATE, None, 15), None),
        ((DELETE, 5, None), DELETE),
        ((DELETE, 15, None), None),
        ((UPDATE, 5, 25), UPDATE),
        ((UPDATE, 5, 15), DELETE),
        ((UPDATE, 15, 5), INSERT),
        ((UPDATE, 15, 16), None),
    ],
)
def test_an_update_that_moves_a_row_counts_for_each_of_its_ranges(change, becomes):
    assert left([change], [250]) == [becomes]


def test_a_row_that_arrives_without_all_of_its_values():
    """The range that it was in was read after it had left."""
    assert left([(UPDATE, 5, 25)], [250], unchanged=[0]) == [UPDATE]
    assert left([(UPDATE, 5, 15)], [250], unchanged=[0]) == [DELETE]
    with pytest.raises(RangesDiffer, match=r'table "public\.t" was copied in parts, and .* lacks values of it'):
        left([(UPDATE, 15, 5)], [250], unchanged=[0])


def test_a_key_that_is_null():
    """The constraint was dropped for a while: no range has the row."""
    with pytest.raises(RangesDiffer, match='its column "id" was NULL in a row'):
        left([(INSERT, None, None)], [250])


def test_an_identity_without_the_column():
    assert left([(INSERT, None, 5)], [250], of=relation(is_key=False)) == [INSERT]
    assert left([(UPDATE, 15, 5)], [250], of=relation("f", is_key=False)) == [INSERT]
    with pytest.raises(RangesDiffer, match='the replica identity lacked its column "id"'):
        left([(UPDATE, None, 5)], [250], of=relation(is_key=False))


def test_whatever_happens_between_the_snapshots_ranges_and_stream_give_the_rows_of_the_end():
    """A model: ranges read at their LSNs, and the changes that are left applied to them."""
    chosen: Any = random.Random(7)
    for _ in range(200):
        rows, states, changes, lsns = dict.fromkeys(chosen.sample(range(30), 12), 0), {}, [], []
        for lsn in range(0, 400, 10):
            states.update({at: dict(rows) for at in LSNS if at == lsn})
            free = [key for key in range(30) if key not in rows]
            old = chosen.choice(list(rows)) if rows else None
            op = chosen.choice([INSERT, UPDATE, UPDATE, DELETE] if old is not None else [INSERT])
            new = chosen.choice([*free, old]) if op == UPDATE else chosen.choice(free) if op == INSERT else None
            changes.append((op, None if op == INSERT or (op == UPDATE and new == old) else old, new))
            lsns.append(lsn)
            if op != INSERT:
                rows.pop(old)
            if new is not None:
                rows[new] = lsn
        table = {
            key: value
            for number, at in enumerate(LSNS)
            for key, value in states[at].items()
            if np.searchsorted(BOUNDS, key, side="right") == number
        }
        for (_, old, new), lsn, becomes in zip(changes, lsns, left(changes, lsns), strict=True):
            if becomes in {UPDATE, DELETE}:
                del table[old if old is not None else new]
            if becomes in {UPDATE, INSERT}:
                assert new not in table
                table[new] = lsn
        assert table == rows
