"""What a new definition of a published table makes of its Delta table: a plan, made without Spark.

    ADD COLUMN      added; rows that exist get the constant default, as on the server (`attmissingval`), else NULL.
                    Where the server may have given them values that its catalog does not have, they are NULL, and a
                    warning says so.
    DROP COLUMN     the column and its values stay, as with a native subscriber; new rows have NULL. When a column of
                    its name comes later, it is renamed to `<name>_dropped`.
    RENAME COLUMN   renamed, by attribute number (`attrmap`).
    ALTER … TYPE    where the rows that exist hold the same values as before (`type_change`), the column
                    is widened if it has to be; it is never narrowed.

Everything else, and an identity made of values that are not known here, is an error whose remedy is to copy the table
afresh. A column that is there already under the name of a new one, because somebody added it by hand, is taken as it
is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from bridge.apply.evolution.alterations import AddColumn, RenameColumn, WidenColumn
from bridge.apply.evolution.attrmap import align, without_number
from bridge.apply.evolution.type_change import common_type, declared, keeps_values
from bridge.apply.target.target import TargetColumn, TargetSchema, sql_type, target_field
from bridge.apply.target.widening import holds
from bridge.errors import TargetError
from bridge.track.rows import ColumnRow
from protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import pyarrow as pa

    from bridge.apply.evolution.alterations import Alteration
    from bridge.apply.evolution.attrmap import Alignment, Match
    from bridge.publication.tables import Attribute
    from protocol.messages import Column
    from protocol.values.types import ColumnType


@dataclass(frozen=True, slots=True)
class Plan:
    """What a definition comes to.

    Attributes:
        columns: Of the message, in its order, with their types in the target.
        schema: The target's columns after the alterations.
        alterations: To be made in this order.
        known: What is known of the published table's columns from now on.
        warnings: What the target will not have as the server has it, a sentence each.
    """

    columns: tuple[TargetColumn, ...]
    schema: TargetSchema
    alterations: tuple[Alteration, ...]
    known: tuple[ColumnRow, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Definition:
    """A published table's new definition, and what there is to go by.

    Attributes:
        relation: `namespace.name` of the target, for messages.
        columns: Of the Relation message.
        types: How their values are read.
        wanted: Names of those that the target shall have; None for all.
        key: Names of those that identify a row.
        known: The columns as they were known before; empty where nothing is.
        now: The publisher's catalog, as of now.
        own: The target has the changes of no other table.
        types_of: Resolves (type oid, typmod).
        value_of: Reads a value from its text.
    """

    relation: str
    columns: Sequence[Column]
    types: Sequence[ColumnType]
    wanted: Collection[str] | None
    key: Collection[str]
    known: Sequence[ColumnRow]
    now: Sequence[Attribute]
    own: bool
    types_of: Callable[[Sequence[tuple[int, int]]], list[ColumnType]]
    value_of: Callable[[ColumnType, str], pa.Scalar]

    def wants(self, name: str) -> bool:
        """Whether the target shall have a column."""
        return self.wanted is None or name in self.wanted


def plan(definition: Definition, schema: TargetSchema) -> Plan:
    """Plan what a definition makes of a target.

    Raises:
        TargetError: The target cannot follow.
    """
    found = _aligned(definition, schema)
    draft = _Draft(definition, schema, found)
    draft.rename()
    types = [draft.place(match, type_) for match, type_ in zip(found.matches, definition.types, strict=True)]
    columns = (TargetColumn(column.name, type_) for column, type_ in zip(definition.columns, types, strict=True))
    return Plan(tuple(columns), draft.schema(), tuple(draft.alterations), draft.known(), tuple(draft.warnings))


def _aligned(definition: Definition, schema: TargetSchema) -> Alignment:
    """Where nothing is known, the target's columns are those of their names."""
    known = definition.known
    found = align(known, definition.columns, definition.now)
    if not known and found is not None:
        names = {field.name for field in schema}
        known = [
            ColumnRow(match.attnum, match.column.name, match.column.type_oid, match.column.typmod)
            for match in found.matches
            if match.column.name in names
        ]
        by_number = {row.attnum: row for row in known}
        return replace(
            found, matches=tuple(replace(match, known=by_number.get(match.attnum)) for match in found.matches)
        )
    if found is None:
        listed = ", ".join(f'"{column.name}"' for column in definition.columns)
        raise TargetError(f'the columns {listed} of table "{definition.relation}" are not those of the table before')
    return found


class _Draft:
    """The target's columns while a plan is made."""

    def __init__(self, definition: Definition, schema: TargetSchema, alignment: Alignment) -> None:
        self._definition = definition
        self._fields = {field.name: field for field in schema}
        self._matches = alignment.matches
        self._gone = [row if row.state == "hidden" else replace(row, state="gone") for row in alignment.absent]
        self._returned = {match.attnum for match in self._matches if self._returns_elsewhere(match)}
        for match in self._matches:
            if match.known is not None and match.attnum in self._returned:
                self._gone.append(without_number(match.known, [row.attnum for row in self._gone]))
        self.alterations: list[Alteration] = []
        self.warnings: list[str] = []

    def _returns_elsewhere(self, match: Match) -> bool:
        """The message has a column again that it lacked, and where a new one would be: it is taken for a new one."""
        if match.known is None or match.known.state != "gone":
            return False
        after = [other for other in self._matches if other.attnum > match.attnum]
        return not any(other.known is not None and other.known.state != "gone" for other in after)

    # --- names --------------------------------------------------------------------------------------------------------

    def rename(self) -> None:
        """Give the columns that are there their new names, whatever the order this takes."""
        wanted = self._definition.wants
        pending = {
            match.known.name: match.column.name
            for match in self._matches
            if match.known is not None
            and match.known.state == "live"
            and match.known.name != match.column.name
            and match.known.name in self._fields
            and wanted(match.column.name)
        }
        while pending:
            free = next((old for old, new in pending.items() if self._holder(new) is None), None)
            if free is not None:
                self._rename(free, pending.pop(free))
                continue
            holder = self._holder(next(iter(pending.values())))
            assert holder is not None  # noqa: S101 - or the name were free
            if holder in pending:  # a ring, or the same name in other letters
                temporary = self._unused("pgbridge_renamed")
                self._rename(holder, temporary)
                pending[temporary] = pending.pop(holder)
            else:
                self._set_aside(holder)

    def _holder(self, name: str) -> str | None:
        """The target's column that stands in the way of a name; Delta does not tell upper case from lower case."""
        return next((field for field in self._fields if field.lower() == name.lower()), None)

    def _rename(self, name: str, new_name: str) -> None:
        fields = self._fields.values()
        renamed = [field._replace(name=new_name) if field.name == name else field for field in fields]
        self._fields = {field.name: field for field in renamed}
        self._gone = [replace(row, name=new_name) if row.name == name else row for row in self._gone]
        self.alterations.append(RenameColumn(name, new_name))

    def _set_aside(self, name: str) -> None:
        """Make room for a column of this name, if what has it is one that the server has no more.

        Of partitions whose changes go to their root, each has its definition: only the first would be right to.
        """
        if not self._definition.own or all(row.name != name or row.state != "gone" for row in self._gone):
            raise TargetError(
                f'column "{name}" of the Delta table is in the way of one that table "{self._definition.relation}" '
                "has now",
                hint="rename the Delta table's column, or drop it" if self._definition.own else "",
            )
        self._rename(name, self._unused(f"{name}_dropped"))

    def _unused(self, name: str) -> str:
        taken = {field.lower() for field in self._fields} | {column.name.lower() for column in self._definition.columns}
        number, found = 1, name
        while found.lower() in taken:
            number += 1
            found = f"{name}_{number}"
        return found

    # --- columns ------------------------------------------------------------------------------------------------------

    def place(self, match: Match, type_: ColumnType) -> ColumnType:
        """See that a column of the message has its place in the target; how its values stand there."""
        name, known = match.column.name, match.known
        if not self._definition.wants(name):
            return type_
        if known is not None and known.state != "hidden" and match.attnum not in self._returned:
            if known.state == "gone":
                self.warnings.append(f'column "{name}" was not published for a while: its values may be old')
            if match.doubtful:
                self.warnings.append(
                    f'column "{name}" is taken for "{known.name}" under another name; where it is a new one in its '
                    "place, seen late by a stream that lags, rows that exist have its values"
                )
            self._check_values(match, known, type_)
        if self._is_new(match):
            return self._add(match, type_)
        return self._fit(name, type_)

    def _is_new(self, match: Match) -> bool:
        name = match.column.name
        if name not in self._fields:
            return True
        return any(row.name == name and row.state == "gone" for row in self._gone)

    def _check_values(self, match: Match, known: ColumnRow, type_: ColumnType) -> None:
        name = match.column.name
        (old,) = self._definition.types_of([(known.type_oid, known.typmod)])
        if (old.oid, old.typmod) == (type_.oid, type_.typmod):
            return
        if not keeps_values(old, type_):
            raise TargetError(
                f'column "{name}" of table "{self._definition.relation}" has another type now ({declared(old)} before, '
                f"{declared(type_)} now): what the rows hold was converted on the server, and is not in the stream"
            )
        self.warnings.append(
            f'column "{name}" has another type now ({declared(old)} before, {declared(type_)} now): rows that exist '
            "keep their values, and where ALTER … USING has given them others, that is not in the stream"
        )

    def _fit(self, name: str, type_: ColumnType) -> ColumnType:
        """Widen a column where it cannot hold the values."""
        there = self._fields[name].arrow
        if there is not None and holds(there, type_.arrow):
            return replace(type_, arrow=there)
        common = common_type(there, type_.arrow) if there is not None else None
        if common is None:
            raise TargetError(
                f'column "{name}" of target "{self._definition.relation}" is {self._fields[name].sql_type}, '
                f"but the published values are {sql_type(type_.arrow)}"
            )
        self._fields[name] = target_field(name, common)
        self.alterations.append(WidenColumn(name, common))
        return replace(type_, arrow=common)

    def _add(self, match: Match, type_: ColumnType) -> ColumnType:
        name, now = match.column.name, match.now
        holder = self._holder(name)
        if holder is not None:
            self._set_aside(holder)
        value, doubt = None, ""
        if match.known is not None and match.known.state == "hidden":
            doubt = "it was not published before"
        elif now is None:
            doubt = "the server's catalog does not have it any more"
        elif now.has_missing:
            try:
                value = None if now.missing is None else self._definition.value_of(type_, now.missing)
            except ProtocolError as error:
                doubt = f"its default cannot be read: {error}"
        elif now.filled:
            doubt = "they were not filled with a constant, or the table was rewritten since"
        if doubt:
            self._warn_of_nulls(name, doubt)
        elif match.doubtful or match.attnum in self._returned:
            self.warnings.append(
                f'column "{name}" is taken for a new one in the place of one that was dropped; where it is that one, '
                "left out of the publication for a while or seen late by a stream that lags, values are missing"
            )
        self._fields[name] = target_field(name, type_.arrow)
        self.alterations.append(AddColumn(name, type_.arrow, value))
        return type_

    def _warn_of_nulls(self, name: str, why: str) -> None:
        if name in self._definition.key:
            raise TargetError(
                f'column "{name}" of table "{self._definition.relation}" identifies rows now, and what rows that '
                f"exist have in it is not in the stream: {why}"
            )
        self.warnings.append(f'rows that exist have NULL in the new column "{name}": {why}')

    # --- what comes of it ---------------------------------------------------------------------------------------------

    def schema(self) -> TargetSchema:
        """The target's columns."""
        return tuple(self._fields.values())

    def known(self) -> tuple[ColumnRow, ...]:
        """The published table's columns."""
        rows = {row.attnum: row for row in self._gone}
        for match in self._matches:
            column = match.column
            state: Literal["live", "hidden"] = "live" if self._definition.wants(column.name) else "hidden"
            rows[match.attnum] = ColumnRow(match.attnum, column.name, column.type_oid, column.typmod, state)
        return tuple(rows[attnum] for attnum in sorted(rows))
