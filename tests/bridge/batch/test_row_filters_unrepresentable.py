"""Values that a target cannot hold, in changes that have passed a row filter: NULL or an error."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgbridge.bridge.batch.row_filters import judged, reason_of
from pgbridge.bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, UPDATE
from pgbridge.bridge.targets.target import TargetColumn
from pgbridge.protocol.errors import UnrepresentableValue
from pgbridge.protocol.values.types import resolve

COLUMNS = [TargetColumn("id", resolve(1082, -1, {})), TargetColumn("day", resolve(1082, -1, {}))]
HELD = {"op": INSERT, "old": NO_OLD, "new": (None, None), "olds": (None, None)}


def change(op, old=NO_OLD, *, new=(None, None), olds=(None, None)):
    """A change with these texts of values that are not held."""
    return {"op": op, "old": old, "new": new, "olds": olds}


def table(*changes):
    return pa.table(
        {
            "op": pa.array([one["op"] for one in changes], pa.int16()),
            "old": pa.array([one["old"] for one in changes], pa.int16()),
            **{f"{kind}_{i}": pa.nulls(len(changes), pa.date32()) for kind in ("new", "old") for i in range(2)},
            **{f"unheld_{i}": pa.array([one["new"][i] for one in changes], pa.string()) for i in range(2)},
            **{f"oldunheld_{i}": pa.array([one["olds"][i] for one in changes], pa.string()) for i in range(2)},
        }
    )


def passed(op, old=NO_OLD, *, key=(0,), policy="error", **texts):
    """What a change with these texts is stopped by, after one whose values are held; None if it goes on."""
    changes = table(HELD, change(op, old, **texts))
    try:
        found = judged(changes, COLUMNS, key, policy)
    except UnrepresentableValue as error:
        return error.column if error.row == 1 else error
    assert found.column_names == ["op", "old", "new_0", "new_1", "old_0", "old_1"]
    return None


def test_what_has_passed():
    """NULL where it may be; a key's never; of an old row only what it is found by."""
    odd = (None, "infinity")
    assert passed(INSERT, new=odd) == "day"
    assert passed(INSERT, new=odd, policy="null") is None
    assert passed(UPDATE, new=("infinity", None), policy="null") == "id"
    assert passed(DELETE, KEY_TUPLE, new=odd, olds=odd) is None
    assert passed(DELETE, KEY_TUPLE, olds=("infinity", None), policy="null") == "id"
    assert passed(DELETE, KEY_TUPLE, olds=odd, key=()) == "day"
    assert passed(DELETE, KEY_TUPLE, olds=odd, key=(), policy="null") is None
    assert passed(UPDATE, olds=("infinity", None)) is None, "without an old tuple"


def test_the_first_change_is_told_and_its_first_column():
    changes = table(HELD, change(INSERT, new=("-infinity", "x" * 300)), change(UPDATE, new=("infinity", None)))
    with pytest.raises(UnrepresentableValue, match="column \"id\": value '-infinity' cannot be represented") as raised:
        judged(changes, COLUMNS, (0,), "error")
    assert (raised.value.row, raised.value.column) == (1, "id")
    with pytest.raises(UnrepresentableValue) as raised:
        judged(table(change(INSERT, new=(None, "x" * 300))), COLUMNS, (0,), "error")
    assert raised.value.value == "x" * 200


def test_without_such_values_nothing_is_done():
    changes = table(HELD).select(["op", "old", "new_0"])
    assert judged(changes, COLUMNS[:1], (0,), "error") is changes


@pytest.mark.parametrize(
    ("arrow", "reason"),
    [
        (pa.decimal128(5, 2), "the column holds finite numbers only"),
        (pa.timestamp("us"), "years 0001 to 9999"),
        (pa.date32(), "years 0001 to 9999"),
        (pa.list_(pa.date32()), "or one of its elements"),
    ],
)
def test_reasons(arrow, reason):
    assert reason in reason_of(arrow)
