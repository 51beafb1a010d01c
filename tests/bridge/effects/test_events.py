"""Changes as effects of one event each.

Numbers for keys.
"""

from __future__ import annotations

import math
from decimal import Decimal

import pyarrow as pa
import pytest

from pgbridge.bridge.effects.events import ARRIVED, DELETED, INSERTED, UPDATED, events, key_codes

KEY_TUPLE = ord("K")


def changes(*rows):
    """Changes as (operation, old key, new key, value)."""
    columns = list(zip(*rows, strict=True))
    return pa.table(
        {
            "seq": range(len(rows)),
            "op": pa.array(map(ord, columns[0]), pa.int16()),
            "old": pa.array([0 if old is None else KEY_TUPLE for old in columns[1]], pa.int16()),
            "new_0": pa.array(columns[2], pa.int64()),
            "new_1": pa.array(columns[3], pa.string()),
            "old_0": pa.array(columns[1], pa.int64()),
            "unchanged_1": [value is None for value in columns[3]],
        }
    )


def test_each_event():
    found, rounds = events(
        changes(("I", None, 1, "a"), ("U", None, 1, "b"), ("U", 1, 1, "c"), ("U", 1, 2, None), ("D", 2, None, None)),
        (0,),
    )
    assert rounds.tolist() == [0, 1, 2, 3, 3, 4]
    wanted = ("match_0", "first", "born", "ended", "leaves", "moved", "updates", "deletes")
    assert [tuple(row[name] for name in wanted) for row in found.to_pylist()] == [
        (1, INSERTED, True, False, False, False, 0, 0),
        (1, UPDATED, False, False, False, False, 1, 0),
        (1, UPDATED, False, False, False, False, 1, 0),
        (2, ARRIVED, True, True, False, False, 0, 0),
        (1, UPDATED, False, False, True, True, 1, 0),
        (2, DELETED, False, True, False, False, 0, 1),
    ]
    assert found["new_1"].to_pylist() == ["a", "b", "c", None, None, None]
    assert found["unchanged_1"].to_pylist() == [False, False, False, False, True, True]


def test_the_values_of_a_row_that_moves_are_there_once():
    found, _ = events(changes(*(("U", number, number + 1000, "x" * 1000) for number in range(100))), (0,))
    assert len(found) == 200
    assert found["new_1"].null_count == 100
    assert found.nbytes < 120_000


@pytest.mark.parametrize(
    ("type_", "values", "codes"),
    [
        (pa.float64(), [0.0, -0.0, 1.5, math.nan, float("-nan"), None], [0, 0, 1, 2, 2, 3]),
        (pa.float32(), [-0.0, 0.0, math.nan, math.nan], [0, 0, 1, 1]),
        (pa.string(), ["", "a", "A", "a", "ä", None], [0, 1, 2, 1, 3, 4]),
        (pa.binary(), [b"", b"\0", b"\0\0", b"\0"], [0, 1, 2, 1]),
        (pa.decimal128(20, 2), [Decimal("1.10"), Decimal("1.1"), Decimal(0)], [0, 0, 1]),
        (pa.bool_(), [True, False, True], [0, 1, 0]),
        (pa.timestamp("us", "UTC"), [0, 1, 0], [0, 1, 0]),
        (pa.date32(), [0, 1, 0], [0, 1, 0]),
        (pa.list_(pa.float64()), [[0.0], [-0.0], [math.nan], [math.nan], [], None], [0, 0, 1, 1, 2, 3]),
    ],
)
def test_equal_keys_have_equal_codes(type_, values, codes):
    halves = pa.chunked_array([pa.array(values[:2], type_), pa.array(values[2:], type_)])
    for columns in ([halves], [halves, halves], [pa.chunked_array([pa.array([7] * len(values))]), halves]):
        found = key_codes(columns).tolist()
        first = {code: at for at, code in reversed(list(enumerate(found)))}
        assert [codes.index(code) for code in codes] == [first[code] for code in found]


def test_many_long_columns_do_not_overflow():
    numbers = pa.chunked_array([pa.array(range(70_000))])
    assert len(set(key_codes([numbers] * 9).tolist())) == 70_000
