"""Constants of columns that were added, through the alterations that follow."""

from __future__ import annotations

import pyarrow as pa

from bridge.apply.evolution.alterations import AddColumn, Alteration, RenameColumn, WidenColumn, fills


def test_fills_have_the_last_names_and_types():
    value = pa.scalar(1, pa.int32())
    steps: list[Alteration] = [
        AddColumn("c", pa.int32(), value),
        RenameColumn("c", "c_dropped"),
        AddColumn("c", pa.int32()),
        WidenColumn("c_dropped", pa.int64()),
    ]
    assert fills(steps) == {"c_dropped": pa.scalar(1, pa.int64())}
