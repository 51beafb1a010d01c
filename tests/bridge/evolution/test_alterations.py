"""Constants of columns that were added, through the alterations that follow."""

from __future__ import annotations

import pyarrow as pa

from bridge.evolution.alterations import AddColumn, Alteration, RenameColumn, WidenColumn, fills, renamings


def test_fills_have_the_last_names_and_types():
    value = pa.scalar(1, pa.int32())
    steps: list[Alteration] = [
        AddColumn("c", pa.int32(), value),
        RenameColumn("c", "c_dropped"),
        AddColumn("c", pa.int32()),
        WidenColumn("c_dropped", pa.int64()),
    ]
    assert fills(steps) == {"c_dropped": pa.scalar(1, pa.int64())}


def test_names_that_columns_have_in_the_end():
    """Also where they go round; one that comes back to its own name is not renamed."""
    a_b: list[Alteration] = [RenameColumn("a", "tmp"), RenameColumn("b", "a"), RenameColumn("tmp", "b")]
    assert renamings(a_b) == {"a": "b", "b": "a"}
    assert renamings([*a_b, *a_b]) == {}
    assert renamings([AddColumn("c", pa.int32()), RenameColumn("d", "e")]) == {"d": "e"}
