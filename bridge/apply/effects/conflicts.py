"""Conflicts of changes with what the target has, by PostgreSQL 18's names and in its words (`conflict.c`).

    insert_exists    an INSERT of a key that the target has
    update_exists    an UPDATE that moves a row to a key that the target has
    update_missing   an UPDATE of a row that the target has not
    delete_missing   a DELETE of a row that the target has not

The first two are errors under `conflict = "error"`: the commit fails inside Delta, by `raise_error` with a JSON text
that `conflict_of` finds again in whatever Spark makes of it. The last two never are: such a change does nothing.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

INSERT_EXISTS, UPDATE_EXISTS = "insert_exists", "update_exists"
UPDATE_MISSING, DELETE_MISSING = "update_missing", "delete_missing"
NAMES = (INSERT_EXISTS, UPDATE_EXISTS, UPDATE_MISSING, DELETE_MISSING)

EXAMPLES = 10
"""How many keys are told of each kind, in a batch of a table."""

_MARK = "pgbridge_conflict"
_SHOWN_CHARACTERS = 200
_DETAILS = {
    INSERT_EXISTS: "Key already exists in the target: key",
    UPDATE_EXISTS: "Key already exists in the target: key",
    UPDATE_MISSING: "Could not find the row to be updated: replica identity",
    DELETE_MISSING: "Could not find the row to be deleted: replica identity",
}


@dataclass(frozen=True, slots=True)
class Conflict:
    """One conflict.

    Attributes:
        relation: `namespace.name` of the target.
        name: One of `NAMES`.
        columns: The key's columns; under REPLICA IDENTITY FULL without a key, all.
        values: Their values as text, cut after 200 characters; None for NULL.
        full: The columns are those of a row without a key.
    """

    relation: str
    name: str
    columns: tuple[str, ...]
    values: tuple[str | None, ...]
    full: bool = False

    @property
    def message(self) -> str:
        """PostgreSQL's message."""
        return f'conflict detected on relation "{self.relation}": conflict={self.name}'

    @property
    def key(self) -> str:
        """`(id)=(1)`."""
        values = ("null" if value is None else value for value in self.values)
        return f"({', '.join(self.columns)})=({', '.join(values)})"

    @property
    def detail(self) -> str:
        """What was (not) there, and under which key."""
        return f"{_DETAILS[self.name]} {'full ' if self.full else ''}{self.key}."

    def __str__(self) -> str:
        return f"{self.message}\nDETAIL:  {self.detail}"


@dataclass(frozen=True, slots=True)
class Conflicts:
    """What was found while a table's part of a batch was committed, and did not stop it.

    Attributes:
        relation: `namespace.name` of the target.
        counts: Changes in conflict, by the conflict's name; none is 0.
        examples: Up to `EXAMPLES` of each.
    """

    relation: str
    counts: Mapping[str, int]
    examples: Mapping[str, tuple[Conflict, ...]]


@dataclass(slots=True)
class Tally:
    """Conflicts as they are counted: of each kind how many, and keys for examples."""

    counts: dict[str, int] = field(default_factory=dict)
    keys: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    def add(self, name: str, key: tuple[Any, ...], count: int = 1) -> None:
        """Count conflicts of one key."""
        self.counts[name] = self.counts.get(name, 0) + count
        found = self.keys.setdefault(name, [])
        if len(found) < EXAMPLES and key not in found:
            found.append(key)

    def report(
        self, relation: str, columns: Sequence[str], conflicts: Callable[[Conflicts], None], *, full: bool = False
    ) -> None:
        """Hand it on, if there is anything."""
        counts = {name: count for name, count in self.counts.items() if count}
        if not counts:
            return
        examples = {
            name: tuple(
                Conflict(relation, name, tuple(columns), tuple(map(as_text, key)), full)
                for key in self.keys.get(name, ())
            )
            for name in counts
        }
        conflicts(Conflicts(relation, counts, examples))


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
    found = marked(error, _MARK)
    try:
        if found is None:
            return None
        return Conflict(found["relation"], found[_MARK], tuple(found["columns"]), tuple(found["values"]))
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
    values = ", ".join(f"left({_text_expression(value, arrow)}, {_SHOWN_CHARACTERS})" for _, value, arrow in columns)
    return (
        f"raise_error(to_json(named_struct('{_MARK}', {name}, 'relation', {literal(relation)}, "
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


def as_text(value: Any) -> str | None:
    """A value for people, as PostgreSQL writes it where that is simple."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        text = "\\x" + value.hex()
    elif isinstance(value, dt.datetime):
        text = value.isoformat(" ")
    elif isinstance(value, list):
        text = "{" + ",".join("NULL" if item is None else str(as_text(item)) for item in value) + "}"
    else:
        text = str(value)
    return text[:_SHOWN_CHARACTERS]
