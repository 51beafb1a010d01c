"""The rows of tiny tables, which are kept, and what a net effect makes of them.

A commit to a table of some rows costs Spark more to read and join them than to write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.effects.events import BEGINS, key_codes

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_ROWS: Final = 5_000
MOST_BYTES: Final = 1 << 20
"""Of one table. Spark computes more rows on several cores, and reads of them what it needs."""


def are_few(rows: pa.Table) -> bool:
    """Whether a table's rows may be kept."""
    return len(rows) <= MOST_ROWS and bool(rows.nbytes <= MOST_BYTES)


def rows_after(
    rows: pa.Table, effects: pa.Table, key: Sequence[int], names: Sequence[str], values: Sequence[str]
) -> pa.Table | None:
    """A table's rows after a net effect on their keys.

    Args:
        rows: The rows before, under the table's column names.
        effects: As `NetEffect.table`; clear.
        key: Positions of the key's columns.
        names: The table's columns.
        values: The columns of `effects` with their new values.

    Returns:
        The rows; None if an effect is on a row that is not there, or begins one that is, or a key is there twice.
    """
    pairs = [(rows[names[k]], effects[f"match_{k}"].cast(rows.schema.field(names[k]).type)) for k in key]
    codes = key_codes([pa.chunked_array([*ours.chunks, *theirs.chunks], ours.type) for ours, theirs in pairs])
    ours, theirs = codes[: len(rows)], codes[len(rows) :]
    order = np.argsort(ours, kind="stable")
    if len(ours) and (np.diff(ours[order]) == 0).any():
        return None
    if len(ours):
        at = order[np.minimum(np.searchsorted(ours, theirs, sorter=order), len(ours) - 1)]
        is_there = ours[at] == theirs
    else:
        at, is_there = np.zeros(len(theirs), np.int64), np.zeros(len(theirs), np.bool_)
    if (is_there == np.isin(effects["first"].to_numpy(), BEGINS)).any():
        return None
    untouched = np.ones(len(rows), np.bool_)
    untouched[at[is_there]] = False
    before = pa.array(at, mask=~is_there)
    columns: dict[str, Any] = {}
    for i, (name, value_name) in enumerate(zip(names, values, strict=True)):
        value = effects[value_name].cast(rows.schema.field(name).type)
        if f"unchanged_{i}" in effects.column_names:
            stays = pc.and_(pc.fill_null(effects[f"unchanged_{i}"], fill_value=False), pa.array(is_there))
            value = pc.if_else(stays, rows[name].take(before), value)
        columns[name] = value
    put = pa.table(columns, rows.schema).filter(pa.array(~effects["ended"].to_numpy()))
    # in one chunk, or each commit would add one
    return pa.concat_tables([rows.filter(pa.array(untouched)), put]).combine_chunks()
