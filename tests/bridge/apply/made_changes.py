"""A plain row-at-a-time model of a table, random valid changes to it, and a model of the MERGE of effects.

The net effect must agree with the model, and shares no code with it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import random

INSERT, UPDATE, DELETE, NO_OLD, KEY_TUPLE = ord("I"), ord("U"), ord("D"), 0, ord("K")
TYPES = [pa.int64(), pa.int64(), pa.int64(), pa.string()]
"""Case, key, a plain column, and a column with unchanged TOAST values. The key is (case, key)."""
KEY = (0, 1)
TOAST = 3

Row = tuple[Any, ...]


@dataclass
class Case:
    """One random history: the table before it, the changes, the table after it."""

    number: int
    before: dict[int, Row]
    changes: list[dict[str, Any]] = field(default_factory=list)
    after: dict[int, Row] = field(default_factory=dict)


def random_case(number: int, rng: random.Random, *, moves_keep_toast: bool) -> Case:
    """Make a history as a publisher sends it: keys are always unique, and updated rows exist."""

    def value() -> int | None:
        return rng.choice([None, rng.randrange(1000)])

    def text() -> str | None:
        return rng.choice([None, "", f"large {rng.randrange(1000)}"])

    keys = range(5)
    case = Case(number, {key: (value(), text()) for key in keys if rng.random() < 0.5})
    table = dict(case.before)
    for _ in range(rng.randrange(1, 14)):
        there = sorted(table)
        absent = [key for key in keys if key not in table]
        kind = rng.choice([INSERT, UPDATE, UPDATE, UPDATE, DELETE])
        if kind == INSERT and absent:
            key, row = rng.choice(absent), (value(), text())
            table[key] = row
            case.changes.append(_change(case, INSERT, None, key, row, unchanged=False))
        elif kind == DELETE and there:
            key = rng.choice(there)
            del table[key]
            case.changes.append(_change(case, DELETE, key, None, (None, None), unchanged=False))
        elif kind == UPDATE and there:
            old = rng.choice(there)
            needs_fold = bool(absent) and rng.random() < 0.4
            new = rng.choice(absent) if needs_fold else old
            unchanged = rng.random() < 0.5 and (moves_keep_toast or not needs_fold)
            row = (value(), table[old][1] if unchanged else text())
            del table[old]
            table[new] = row
            sent = (row[0], None) if unchanged else row
            case.changes.append(_change(case, UPDATE, old if needs_fold else None, new, sent, unchanged=unchanged))
    case.after = table
    return case


def _change(
    case: Case, op: int, old_key: int | None, new_key: int | None, row: Row, *, unchanged: bool
) -> dict[str, Any]:
    return {
        "op": op,
        "old": NO_OLD if old_key is None else KEY_TUPLE,
        "new_0": None if new_key is None else case.number,
        "new_1": new_key,
        "new_2": row[0],
        "new_3": row[1],
        "old_0": None if old_key is None else case.number,
        "old_1": old_key,
        "unchanged_3": unchanged,
    }


def changes_table(cases: list[Case], rng: random.Random) -> pa.Table:
    """Interleave all histories, each in its own order, in the columns of `TableChanges.changes`."""
    pending = [list(case.changes) for case in cases]
    rows: list[dict[str, Any]] = []
    while pending := [changes for changes in pending if changes]:
        rows.append({"seq": len(rows), **rng.choice(pending).pop(0)})
    schema = pa.schema(
        [
            ("seq", pa.int64()),
            ("op", pa.int16()),
            ("old", pa.int16()),
            *((f"new_{i}", arrow) for i, arrow in enumerate(TYPES)),
            *((f"old_{k}", TYPES[k]) for k in KEY),
            (f"unchanged_{TOAST}", pa.bool_()),
        ]
    )
    return pa.Table.from_pylist(rows, schema=schema)


def rows_of(effects: pa.Table) -> list[dict[str, Any]]:
    """Effects with the action that `merged` reads."""
    return [{**row, "action": "delete" if row["ended"] else "put"} for row in effects.to_pylist()]


def merged(before: dict[tuple[int, int], Row], effects: list[dict[str, Any]]) -> dict[tuple[int, int], Row]:
    """The table after a MERGE of effects, by the rules of SQL: every effect sees the table as it was."""
    matched: set[tuple[int, int]] = set()
    after = dict(before)
    added: list[tuple[tuple[int, int], Row]] = []
    for effect in effects:
        match = (effect["match_0"], effect["match_1"])
        row = before.get(match)
        if row is not None:
            assert match not in matched, "two effects on one row: MERGE would fail"
            matched.add(match)
            del after[match]
        if effect["action"] == "delete":
            continue
        if row is None and not effect["born"]:
            continue
        toast = row[1] if row is not None and effect.get(f"unchanged_{TOAST}") else effect["new_3"]
        added.append(((effect["new_0"], effect["new_1"]), (effect["new_2"], toast)))
    for key, new in added:
        assert key not in after, f"two rows with the key {key}"
        after[key] = new
    return after


class RowAtATime:
    """PostgreSQL's apply worker on a table with a key: every change sees the table after the changes before it.

    Args:
        rows: The table's rows by key.
        overwrite: Whether a row with the same key is overwritten; otherwise it stops all (`stopped`: the conflict and
            its key).
    """

    def __init__(self, rows: dict[tuple[int, int], Row], *, overwrite: bool) -> None:
        self.rows = dict(rows)
        self.overwrite = overwrite
        self.conflicts: Counter[str] = Counter()
        self.stopped: tuple[str, tuple[int, int]] | None = None

    def apply(self, change: dict[str, Any]) -> None:
        """Make one change, in the columns of `TableChanges.changes`."""
        new = (change["new_0"], change["new_1"])
        old = (change["old_0"], change["old_1"]) if change["old"] != NO_OLD else new
        values = (change["new_2"], change["new_3"])
        if self.stopped:
            return
        if change["op"] != INSERT and old not in self.rows:
            self.conflicts["update_missing" if change["op"] == UPDATE else "delete_missing"] += 1
            return
        if change["op"] != DELETE and new in self.rows and (change["op"] == INSERT or new != old):
            name = "insert_exists" if change["op"] == INSERT else "update_exists"
            if not self.overwrite:
                self.stopped = (name, new)
                return
            self.conflicts[name] += 1
        kept = self.rows.pop(old)[1] if change["op"] != INSERT else None
        if change["op"] != DELETE:
            self.rows[new] = (values[0], kept if change["unchanged_3"] else values[1])


def before_all(cases: list[Case]) -> dict[tuple[int, int], Row]:
    """The rows before all histories, in one table."""
    return {(case.number, key): row for case in cases for key, row in case.before.items()}


def after_all(cases: list[Case]) -> dict[tuple[int, int], Row]:
    """The rows after all histories, in one table."""
    return {(case.number, key): row for case in cases for key, row in case.after.items()}
