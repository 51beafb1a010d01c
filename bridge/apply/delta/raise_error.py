"""Errors that an expression raises inside a commit (Spark's `raise_error`), and how they are read back.

Their text is a JSON object, which is found again in whatever Spark makes of it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from bridge.apply.effects.conflicts import SHOWN_CHARACTERS, Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONFLICT: Final = "pgbridge_conflict"


def marked(error: BaseException, mark: str) -> dict[str, Any] | None:
    """The JSON object with which an expression of ours made a commit fail; `mark` is its first key."""
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
    """The conflict that made a commit fail; None when it was something else."""
    found = marked(error, _CONFLICT)
    try:
        if found is None:
            return None
        return Conflict(found["relation"], found[_CONFLICT], tuple(found["columns"]), tuple(found["values"]))
    except (KeyError, TypeError):
        return None


def raised(name: str, relation: str, columns: Sequence[tuple[str, str, pa.DataType]]) -> str:
    """A Spark SQL expression that fails with a conflict which `conflict_of` reads back.

    Args:
        name: An expression: the conflict's name.
        relation: `namespace.name`.
        columns: Of the key: name, an expression for its value, and its type.
    """
    names = ", ".join(literal(column) for column, _, _ in columns)
    values = ", ".join(f"left({_text_expression(value, arrow)}, {SHOWN_CHARACTERS})" for _, value, arrow in columns)
    return (
        f"raise_error(to_json(named_struct('{_CONFLICT}', {name}, 'relation', {literal(relation)}, "
        f"'columns', array({names}), 'values', array({values}))))"
    )


def literal(text: str) -> str:
    """A Spark SQL string literal. A dollar is written so that Spark does not take it for a variable."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"


def _text_expression(value: str, arrow: pa.DataType) -> str:
    """An expression for a value's text, as `as_text` has it."""
    if pa.types.is_binary(arrow):
        return f"concat('\\\\x', lower(hex({value})))"
    if pa.types.is_boolean(arrow):
        return f"CASE WHEN {value} THEN 't' ELSE 'f' END"
    return f"CAST({value} AS STRING)"
