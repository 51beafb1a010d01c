"""Conflicts of changes with the target's rows, by PostgreSQL 18's names and in its words (`conflict.c`).

    insert_exists    an INSERT of a key that the target has
    update_exists    an UPDATE that moves a row to a key that the target has
    update_missing   an UPDATE of a row that the target does not have
    delete_missing   a DELETE of a row that the target does not have

Under `conflict = "error"` the first two are errors: the commit fails inside Delta, by Spark's `raise_error` with a JSON
text, which `bridge.lake.commit_errors` reads out of Spark's error. The last two are never errors: such a change does
nothing.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

INSERT_EXISTS, UPDATE_EXISTS = "insert_exists", "update_exists"
UPDATE_MISSING, DELETE_MISSING = "update_missing", "delete_missing"

KEPT_KEYS = 1_000
"""Most keys kept of each conflict, for one table of a batch."""

EXAMPLES = 10
"""Most of these that the log shows."""

SHOWN_CHARACTERS = 200
"""Longest text of a value that is shown."""
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
        name: One of the four above.
        columns: The key's columns; under REPLICA IDENTITY FULL without a key, all.
        values: Their values as text, cut after 200 characters; None for NULL.
        full: Whether the columns are those of a whole row, because the table has no key.
        existing: The target's row as `(1, text)`, values cut; None if it was not looked for, or not found.
        remote: The publisher's new row; the same.
    """

    relation: str
    name: str
    columns: tuple[str, ...]
    values: tuple[str | None, ...]
    full: bool = False
    existing: str | None = None
    remote: str | None = None

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
        """PostgreSQL's DETAIL: the key that the target already has, or lacks, and the rows."""
        existing = f"; existing local row {self.existing}" if self.existing is not None else ""
        remote = f"; remote row {self.remote}" if self.remote is not None else ""
        return f"{_DETAILS[self.name]} {'full ' if self.full else ''}{self.key}{existing}{remote}."

    def __str__(self) -> str:
        return f"{self.message}\nDETAIL:  {self.detail}"


@dataclass(frozen=True, slots=True)
class Conflicts:
    """Conflicts of a table's changes.

    Attributes:
        relation: `namespace.name` of the target.
        counts: The number of changes in conflict, above 0, by the conflict's name.
        kept: Up to `KEPT_KEYS` conflicts, one for each key, by the conflict's name.
        stopped: It did stop the commit, and is the only one.
    """

    relation: str
    counts: Mapping[str, int]
    kept: Mapping[str, tuple[Conflict, ...]]
    stopped: bool = False


@dataclass(slots=True)
class Tally:
    """Counts conflicts by their name, and keeps some of their keys."""

    counts: dict[str, int] = field(default_factory=dict)
    keys: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    def add(self, name: str, key: tuple[Any, ...], count: int = 1) -> None:
        """Count conflicts of one key."""
        self.counts[name] = self.counts.get(name, 0) + count
        keys = self.keys.setdefault(name, [])
        if len(keys) < KEPT_KEYS and key not in keys:
            keys.append(key)

    def report(
        self, relation: str, columns: Sequence[str], conflicts: Callable[[Conflicts], None], *, full: bool = False
    ) -> None:
        """Call `conflicts` with the conflicts, if there are any."""
        counts = {name: count for name, count in self.counts.items() if count}
        if not counts:
            return
        kept = {
            name: tuple(
                Conflict(relation, name, tuple(columns), tuple(map(as_text, key)), full)
                for key in self.keys.get(name, ())
            )
            for name in counts
        }
        conflicts(Conflicts(relation, counts, kept))


def as_text(value: Any) -> str | None:
    """A value as PostgreSQL writes it, where that is simple, cut to `SHOWN_CHARACTERS`; None for NULL."""
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
    return text[:SHOWN_CHARACTERS]
