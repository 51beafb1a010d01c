"""Judges values that a column's type cannot hold, in tables with row filters: only rows that pass need to be held.

Values are decoded before Spark's filters are computed. A value that its column cannot hold is NULL in the changes, and
PostgreSQL's text of it is in `unheld_<i>` for the new row, in `oldunheld_<i>` for the old row. The option
`unrepresentable` is applied here to the changes that have passed: NULL, or an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.effects.events import DELETE, INSERT, NO_OLD, UPDATE
from protocol.errors import UnrepresentableValue
from protocol.values.text_values import NOT_A_DECIMAL, OUTSIDE_YEARS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bridge.targets.target import TargetColumn

MARKS: Final = {"new": "unheld", "old": "oldunheld"}
"""The prefix of the columns with the texts, by the prefix of the columns with the values."""

_SHOWN_CHARACTERS: Final = 200


def judged(
    changes: pa.Table,
    columns: Sequence[TargetColumn],
    key: Collection[int],
    unrepresentable: Literal["error", "null", "show"],
) -> pa.Table:
    """Return changes that have passed, with the operations that they became, without the texts.

    Args:
        columns: Their columns.
        key: Positions of the columns that identify rows; empty if all do.
        unrepresentable: Whether such a value is an error or NULL; in the key it is always an error. "show": the texts
            stay, and nothing is an error.

    Raises:
        UnrepresentableValue: A value may not be NULL; `row` is the first such change's index.
    """
    texts = [name for name in changes.column_names if name.startswith(tuple(f"{mark}_" for mark in MARKS.values()))]
    if not texts or unrepresentable == "show":
        return changes
    operations = changes["op"].to_numpy()
    concerned = {
        "unheld": np.isin(operations, (INSERT, UPDATE)),
        "oldunheld": np.isin(operations, (UPDATE, DELETE)) & (changes["old"].to_numpy() != NO_OLD),
    }
    refused: list[tuple[int, int, str]] = []  # the change, the column, and the text
    for name in texts:
        kind, _, index = name.partition("_")
        i = int(index)
        finds = i in key or not key  # an old value counts only where rows are looked for by it
        if (kind == "unheld" or finds) and (unrepresentable == "error" or i in key):
            at = np.flatnonzero(concerned[kind] & pc.is_valid(changes[name]).to_numpy())
            refused += [(int(row), i, changes[name][row].as_py()) for row in at[:1]]
    if refused:
        row, i, text = min(refused)
        raise UnrepresentableValue(columns[i].name, text[:_SHOWN_CHARACTERS], reason_of(columns[i].type.arrow), row)
    return changes.drop_columns(texts)


def reason_of(arrow: pa.DataType) -> str:
    """Why a column of a type cannot hold a value."""
    if pa.types.is_decimal(arrow):
        return NOT_A_DECIMAL
    if pa.types.is_date(arrow) or pa.types.is_timestamp(arrow):
        return OUTSIDE_YEARS
    return "the column cannot hold it or one of its elements"
