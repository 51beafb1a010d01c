"""Raises errors inside a commit by Spark's `raise_error`, and reads them back from Spark's exception.

The error's text is a JSON object, which is found wherever Spark puts it in its message.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from bridge.effects.conflicts import SHOWN_CHARACTERS, Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONFLICT: Final = "pgbridge_conflict"


def error_object(error: BaseException, mark: str) -> dict[str, Any] | None:
    """Read the JSON object whose first key is `mark` from an error; None if the error has none."""
    text = str(error)
    start = text.find(f'{{"{mark}":')
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None
    return dict(found)


def conflict_of(error: BaseException) -> Conflict | None:
    """Read the conflict that made a commit fail from the error; None for another error."""
    found = error_object(error, _CONFLICT)
    try:
        if found is None:
            return None
        return Conflict(found["relation"], found[_CONFLICT], tuple(found["columns"]), tuple(found["values"]))
    except (KeyError, TypeError):
        return None


def raise_conflict(name: str, relation: str, columns: Sequence[tuple[str, str, pa.DataType]]) -> str:
    """A Spark SQL expression that raises a conflict; `conflict_of` reads it back.

    Args:
        name: An expression for the conflict's name.
        relation: `namespace.name`.
        columns: The key's columns: name, an expression for the value, and the type.
    """
    names = ", ".join(literal(column) for column, _, _ in columns)
    values = ", ".join(f"left({text_expression(value, arrow)}, {SHOWN_CHARACTERS})" for _, value, arrow in columns)
    return (
        f"raise_error(to_json(named_struct('{_CONFLICT}', {name}, 'relation', {literal(relation)}, "
        f"'columns', array({names}), 'values', array({values}))))"
    )


def literal(text: str) -> str:
    """A Spark SQL string literal; escapes a dollar too, because Spark would substitute a variable."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"


def text_expression(value: str, arrow: pa.DataType) -> str:
    """An expression for a value's text, equal to `as_text` of the value."""
    if pa.types.is_binary(arrow):
        return f"concat('\\\\x', lower(hex({value})))"
    if pa.types.is_boolean(arrow):
        return f"CASE WHEN {value} THEN 't' ELSE 'f' END"
    return f"CAST({value} AS STRING)"
