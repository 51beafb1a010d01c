"""Unchanged TOAST values: pgoutput does not send a large value that an UPDATE leaves as it was.

The old tuple has it under REPLICA IDENTITY FULL, and it has those of the key, whose tuple the server sends whenever
there is one (`ExtractReplicaIdentity` in heapam.c). Every other one stays marked: the target's value, or an earlier
change's in the batch, is kept when the change is applied (`effects/fold`, `delta/net_effect`).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def from_old_tuples(table: pa.Table) -> pa.Table:
    """Take unchanged values from the old tuples that have them.

    Where the old tuple has NULL, the value stays unchanged: that tuple is a key's. It may come as the whole row, where
    the root has REPLICA IDENTITY FULL and the partition does not.

    Args:
        table: Decoded rows (`RowMessages.decode`): `new_<i>`, `old_<i>`, `unchanged_<i>`, …

    Returns:
        The same table; `unchanged_<i>` marks the values that are still not known.
    """
    names = frozenset(table.column_names)
    for name in table.column_names:
        kind, _, i = name.partition("_")
        if kind != "unchanged" or f"old_{i}" not in names:
            continue
        known = pc.is_valid(table[f"old_{i}"])
        if f"oldunheld_{i}" in names:
            known = pc.or_(known, pc.is_valid(table[f"oldunheld_{i}"]))
        from_old = pc.and_(table[name], known)
        table = _replaced(table, f"new_{i}", pc.if_else(from_old, table[f"old_{i}"], table[f"new_{i}"]))
        table = _replaced(table, name, pc.and_not(table[name], known))
        if f"oldunheld_{i}" in names:
            texts = table[f"unheld_{i}"] if f"unheld_{i}" in names else pa.nulls(len(table), pa.string())
            table = _replaced(table, f"unheld_{i}", pc.if_else(from_old, table[f"oldunheld_{i}"], texts))
    return table


def _replaced(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    if name not in table.column_names:
        return table.append_column(name, values)
    return table.set_column(table.column_names.index(name), name, values)
