"""The net effect of a batch in which a key change carries an unchanged TOAST value.

Such a row's value stands only in the target, under the old key: the target's row must be moved, not deleted and
inserted. Which row of the target ends up where depends on the order of all changes of the table, so they are
folded here one by one, in Python. It is rare (a key change, of a row with a large value that it leaves alone),
and the batch limits bound it; everything else goes the way of `bridge.apply.net_effect`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bridge.apply.changes import DELETE, INSERT, NO_OLD

if TYPE_CHECKING:
    from collections.abc import Sequence

_Key = tuple[Any, ...]


@dataclass(slots=True)
class _Row:
    """A row that is alive at this point of the batch.

    Attributes:
        root: The key under which the target has it; None when it began within the batch.
        values: The values the batch has for it, by position; a position that is missing keeps the target's.
    """

    root: _Key | None
    values: dict[int, Any]


def fold(changes: pa.Table, key: Sequence[int], types: Sequence[pa.DataType]) -> pa.Table:
    """Fold a table's changes into effects.

    Args:
        changes: In the columns of `TableChanges.changes`.
        key: Positions of the key's columns.
        types: The columns' types, by position.

    Returns:
        Effects in the columns that `bridge.apply.net_effect` describes, with every `unchanged_<i>` that may be
        true. A row that took a key away from one that moved has NULL in `match_<k>`: it is inserted.
    """
    live: dict[_Key, _Row] = {}
    ended: set[_Key] = set()
    for change in changes.to_pylist():
        new_key = tuple(change[f"new_{k}"] for k in key)
        old_key = tuple(change.get(f"old_{k}") for k in key) if change["old"] != NO_OLD else new_key
        if change["op"] == INSERT:
            live[new_key] = _Row(None, {i: change[f"new_{i}"] for i in range(len(types))})
            continue
        row = live.pop(old_key, None) or _Row(old_key, {})
        if change["op"] == DELETE:
            if row.root is not None:
                ended.add(row.root)
            continue
        row.values.update({i: change[f"new_{i}"] for i in range(len(types)) if not change.get(f"unchanged_{i}")})
        live[new_key] = row
    return _effects(live, ended, key, types)


def _effects(live: dict[_Key, _Row], ended: set[_Key], key: Sequence[int], types: Sequence[pa.DataType]) -> pa.Table:
    claimed = {row.root for row in live.values() if row.root is not None}
    toast = sorted({i for row in live.values() for i in range(len(types)) if i not in row.values})
    effects: list[dict[str, Any]] = []

    def effect(match: _Key, action: str, row: _Row, *, born: bool) -> None:
        effects.append(
            {
                **{f"match_{k}": value for k, value in zip(key, match, strict=True)},
                "action": action,
                "born": born,
                **{f"new_{i}": row.values.get(i) for i in range(len(types))},
                **{f"unchanged_{i}": i not in row.values for i in toast},
            }
        )

    for at, row in live.items():
        if row.root is not None:
            effect(row.root, "put", row, born=False)
        else:
            effect((None,) * len(key) if at in claimed else at, "put", row, born=True)
            ended.discard(at)
    for root in ended - claimed:
        effect(root, "delete", _Row(root, {}), born=False)
    schema = pa.schema(
        [
            *((f"match_{k}", types[k]) for k in key),
            ("action", pa.string()),
            ("born", pa.bool_()),
            *((f"new_{i}", arrow) for i, arrow in enumerate(types)),
            *((f"unchanged_{i}", pa.bool_()) for i in toast),
        ]
    )
    return pa.Table.from_pylist(effects, schema=schema)
