"""The rows of a conflict, as PostgreSQL 18's log shows them: the existing one, and the remote one.

Only the columns that are replicated are shown: a column list keeps the others from the target, and from its log. They
are looked for only once there is a conflict.

Source: `build_tuple_value_details` in conflict.c; `ExecBuildSlotValueDescription` cuts each value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.effects.conflicts import UPDATE_MISSING, Conflict, Conflicts, as_text
from pgbridge.bridge.effects.events import INSERT, NO_OLD, UPDATE
from pgbridge.bridge.lake import commit_errors, location, schema
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.targets.location import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from pgbridge.bridge.batch.batch import TableChanges

    Key = tuple[str | None, ...]

_VALUE_CHARACTERS: Final = 64
_ROW_CHARACTERS: Final = 1000
_LOOKED_THROUGH: Final = 10_000
"""A batch with more changes of a table is not looked through for rows that are only shown."""


def with_rows(spark: SparkSession, conflict: Conflict, changes: TableChanges) -> Conflict:
    """Return a conflict that stopped a commit with its rows, as far as they can be looked for by its key's text."""
    existing = None
    condition = remedies.row_condition(conflict.columns, conflict.values)
    if condition is not None:
        texts = [
            f"to_json({quoted(column.name)})"
            if schema.is_variant(column)
            else commit_errors.text_expression(quoted(column.name), column.type.arrow)
            for column in changes.columns
        ]
        rows = location.read_table(spark, changes.target.path).where(condition).selectExpr(*texts).take(1)
        existing = _row(list(rows[0])) if rows else None
    remote = _remote_rows(changes, {conflict.values}, by_old=False)
    return replace(conflict, existing=existing, remote=remote.get(conflict.values))


def with_remote_rows(conflicts: Conflicts, changes: TableChanges) -> Conflicts:
    """Return conflicts that did not stop a commit with the new rows of UPDATEs that found none."""
    kept = conflicts.kept.get(UPDATE_MISSING, ())
    if not kept or len(changes.changes) > _LOOKED_THROUGH:
        return conflicts
    rows = _remote_rows(changes, {conflict.values for conflict in kept}, by_old=True)
    shown = tuple(replace(conflict, remote=rows.get(conflict.values)) for conflict in kept)
    return replace(conflicts, kept={**conflicts.kept, UPDATE_MISSING: shown})


def _remote_rows(changes: TableChanges, keys: Collection[Key], *, by_old: bool) -> Mapping[Key, str]:
    """The first new row with each of the keys; with `by_old`, of the UPDATEs that look for a row with it."""
    table = changes.changes
    if changes.spill is not None or not changes.key:
        return {}
    rows: dict[Key, str] = {}
    wanted = {UPDATE} if by_old else {INSERT, UPDATE}
    olds, operations = table["old"].to_pylist(), table["op"].to_pylist()
    old_key = by_old and {f"old_{k}" for k in changes.key} <= set(table.column_names)
    new = [table[f"new_{k}"].to_pylist() for k in changes.key]
    old = [table[f"old_{k}"].to_pylist() for k in changes.key] if old_key else new
    for i, (operation, has_old) in enumerate(zip(operations, olds, strict=True)):
        if operation not in wanted:
            continue
        values = old if has_old != NO_OLD else new
        key = tuple(as_text(column[i]) for column in values)
        if key in keys and key not in rows:
            rows[key] = _row([_new_text(table, column, i) for column in range(len(changes.columns))])
            if len(rows) == len(keys):
                break
    return rows


def _new_text(table: pa.Table, column: int, row: int) -> str | None:
    unchanged = f"unchanged_{column}"
    if unchanged in table.column_names and table[unchanged][row].as_py():
        return "unchanged"  # the stream does not carry it
    return as_text(table[f"new_{column}"][row].as_py())


def _row(values: Sequence[str | None]) -> str:
    """`(1, text, null)`, each value cut, and the whole."""
    texts = ("null" if value is None else _cut(value, _VALUE_CHARACTERS) for value in values)
    return f"({_cut(', '.join(texts), _ROW_CHARACTERS)})"


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[:characters] + "..."
