"""Writes the MERGE of a net effect, with only the clauses that the effects need.

Delta's work follows the clauses. Without a NOT MATCHED clause it does not need the full outer join of all rows in the
touched files with the source, which cannot be a broadcast join; a clause less is a condition less for each row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.effects.conflicts import INSERT_EXISTS, UPDATE_EXISTS
from pgbridge.bridge.effects.events import ARRIVED, BEGINS, INSERTED
from pgbridge.bridge.lake.commit.key_condition import key_ranges
from pgbridge.bridge.lake.commit_errors import error_object
from pgbridge.bridge.lake.schema import stored
from pgbridge.bridge.targets.location import quoted, sql_name

if TYPE_CHECKING:
    from pgbridge.bridge.effects.net_effect import NetEffect, Shape
    from pgbridge.bridge.lake.commit.conflicts import KeyedTarget

_LEFT_NONE: Final = "pgbridge_left_none"
"""Marks the error that a row is missing that would move to another key."""


@dataclass(frozen=True, slots=True)
class Clauses:
    """The clauses that effects need.

    Attributes:
        raises: A row of the target with the key of a new one makes the commit fail.
        inserts: Rows are inserted where the target does not have them.
        moves: The values that are put have other keys than the effects.
        leaves: A missing row that would move to another key makes the commit fail: then that one need not be free.
    """

    raises: bool
    deletes: bool
    updates: bool
    inserts: bool
    moves: bool
    leaves: bool

    @classmethod
    def of(cls, effect: NetEffect, *, overwrite: bool) -> Self:
        """The clauses for effects; with `overwrite`, an existing row is overwritten by a new one."""
        shape = effect.shape
        begins = bool(shape.new or shape.brief)
        return cls(
            raises=begins and not overwrite,
            deletes=bool(shape.deletes or (shape.brief and overwrite)),
            updates=bool(shape.puts or (shape.new and overwrite)),
            inserts=bool(shape.new or shape.reborn),
            moves=bool(shape.moved),
            leaves=bool(shape.leaves) and overwrite,
        )

    @staticmethod
    def fit(shape: Shape, counts: tuple[int, int, int], *, overwrite: bool) -> bool:
        """Whether a MERGE found every row that it had to find, and no other: no conflicts.

        Args:
            counts: How many rows it updated, deleted and inserted.
        """
        if counts != (shape.puts, shape.deletes, shape.new):
            return False
        # a missing row and an existing one, that was not expected, can cancel out in the counts
        return not overwrite or not ((shape.reborn and shape.new) or (shape.deletes and shape.brief))

    def source(self, effects: pa.Table, key: tuple[int, ...]) -> pa.Table:
        """The columns of effects that the clauses use; if no key changes, its values are in `match_<k>` only."""
        columns = {f"match_{k}": effects[f"match_{k}"] for k in key}
        values = self.updates or self.inserts
        for name in effects.column_names:
            kind, _, position = name.partition("_")
            kept = (kind == "new" and values) or (kind == "unchanged" and self.updates)
            if kept and (self.moves or int(position) not in key):
                columns[name] = effects[name]
        if self.raises:
            columns["first"] = effects["first"].cast(pa.int16())
        if self.deletes and self.updates:
            columns["ended"] = effects["ended"]
        if self.leaves:
            columns["leaves"] = effects["leaves"]
        if self.inserts:
            columns["inserted"] = pc.and_not(effects["born"], effects["ended"])
        return pa.table(columns)

    def statement(self, view: str, source: pa.Table, keyed: KeyedTarget, *, ranges: bool) -> str:
        """The MERGE statement. Rows have no NULL in the key, so `=` finds them.

        Args:
            view: The name of a view of `source`.
            source: What `source` has returned.
            ranges: Whether to tell Delta the ranges of the keys, so that it leaves out files.
        """
        names = [quoted(name) for name in keyed.names]
        conditions = [f"t.{names[k]} = s.match_{k}" for k in keyed.key]
        if ranges:
            range_conditions = (key_ranges(f"t.{names[k]}", source[f"match_{k}"].drop_null()) for k in keyed.key)
            conditions += [condition for condition in range_conditions if condition is not None]

        def new(i: int) -> str:
            return f"s.match_{i}" if i in keyed.key and not self.moves else stored(f"s.new_{i}", keyed.columns[i])

        def updated(i: int) -> str:
            if f"unchanged_{i}" in source.column_names:
                return f"CASE WHEN s.unchanged_{i} THEN t.{names[i]} ELSE {new(i)} END"
            return new(i)

        clauses = []
        if self.raises:
            raising = keyed.raising(_conflict_name(source), "s.match")
            begins = f"s.first IN ({', '.join(map(str, BEGINS))})"
            clauses.append(f"WHEN MATCHED AND {begins} THEN UPDATE SET t.{names[keyed.key[0]]} = {raising}")
        if self.deletes:
            clauses.append(f"WHEN MATCHED {'AND s.ended ' if self.updates else ''}THEN DELETE")
        if self.updates:
            sets = ", ".join(f"t.{name} = {updated(i)}" for i, name in enumerate(names))
            clauses.append(f"WHEN MATCHED THEN UPDATE SET {sets}")
        if self.leaves:
            clauses.append(leaving_clause(names[keyed.key[0]], keyed.key_type).rstrip())
        if self.inserts:
            values = ", ".join(map(new, range(len(names))))
            clauses.append(f"WHEN NOT MATCHED AND s.inserted THEN INSERT ({', '.join(names)}) VALUES ({values})")
        target = sql_name(keyed.path)
        return f"MERGE INTO {target} AS t USING {view} AS s ON {' AND '.join(conditions)} {' '.join(clauses)}"


def leaving_clause(column: str, type_: str) -> str:
    """The clause that makes a MERGE fail if a row is missing that moves to another key; of its first column."""
    raising = f"CAST(raise_error('{json.dumps({_LEFT_NONE: True})}') AS {type_})"
    return f"WHEN NOT MATCHED AND s.leaves THEN INSERT ({column}) VALUES ({raising}) "


def left_none(error: BaseException) -> bool:
    """Whether a MERGE failed by that clause."""
    return error_object(error, _LEFT_NONE) is not None


def _conflict_name(source: pa.Table) -> str:
    """An expression for the conflict of an effect that begins with a new row."""
    if ARRIVED not in source["first"].to_numpy():
        return f"'{INSERT_EXISTS}'"
    return f"CASE s.first WHEN {INSERTED} THEN '{INSERT_EXISTS}' ELSE '{UPDATE_EXISTS}' END"
