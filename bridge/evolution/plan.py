"""Plan how a Delta table follows a new definition of its published table. No Spark: a plan is a value.

    ADD COLUMN      Added. Existing rows get the constant default, as on the server (`Attribute.fill`), else NULL.
    DROP COLUMN     The column and its values stay, as with a native subscriber; new rows have NULL. When another
                    column gets its name, the dropped one becomes `<name>_dropped`.
    RENAME COLUMN   Renamed, by attribute number (`attrmap`).
    ALTER … TYPE    If every value stays the same (`alterations`), the column is widened where necessary, and never
                    narrowed.

Anything else is a NeedsResync, and so is a column whose values in existing rows are unknown: the table waits until it
is copied afresh. If somebody has already added a column of the new column's name by hand, that column is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Literal

from pgbridge.bridge.catalog.catalog_rows import ColumnRow
from pgbridge.bridge.evolution.alterations import (
    AddColumn,
    Alteration,
    RenameColumn,
    WidenColumn,
    common_type,
    declared,
    keeps_texts,
    keeps_values,
)
from pgbridge.bridge.evolution.attrmap import Alignment, Match, align, without_number
from pgbridge.bridge.publication.published_table import folded, unsupported
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import NeedsResync, TargetError
from pgbridge.bridge.targets.target import (
    TargetColumn,
    TargetSchema,
    new_type,
    sql_type,
    target_field,
    unrepresentable_hint,
    variant_field,
)
from pgbridge.protocol.errors import ProtocolError, UnrepresentableValue
from pgbridge.protocol.values.types import ColumnType, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import pyarrow as pa

    from pgbridge.bridge.publication.shape import Masks
    from pgbridge.bridge.publication.tables import Attribute
    from pgbridge.protocol.codec.messages import Column


@dataclass(frozen=True, slots=True)
class Plan:
    """How a target follows a definition.

    Attributes:
        columns: The message's columns, in its order, with their types in the target.
        schema: The target's columns after the alterations.
        alterations: What to change in the target, in this order.
        known: The published table's columns as they are known from now on.
        warnings: Sentences, one for each possible difference between the target's values and the server's.
    """

    columns: tuple[TargetColumn, ...]
    schema: TargetSchema
    alterations: tuple[Alteration, ...]
    known: tuple[ColumnRow, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Definition:
    """A published table's new definition, and what is known about its columns.

    Attributes:
        table: (namespace, name) of the target.
        replicated: Names of the replicated columns, which the target must have; None for all.
        known: The columns before this definition; empty if they are not known.
        attributes: The columns in the publisher's present catalog.
        sole_source: Whether the target gets changes from this table only, not from several partitions.
        types_of: Resolves (type oid, typmod).
        value_of: Reads a value from its text.
        parsed: Which types do not become strings in new columns outside of the key, as in `new_type`.
        unrepresentable: Whether a default that the target's type cannot hold is an error, or NULL.
        masks: The masks of columns, whose values are texts in `types`; none that does nothing.
        named: The columns that `mask` names, also those that are not masked.
        reserved: Names, in lower case, that the target's mode has for columns of its own.
    """

    table: tuple[str, str]
    columns: Sequence[Column]
    types: Sequence[ColumnType]
    replicated: Collection[str] | None
    key: Collection[str]
    known: Sequence[ColumnRow]
    attributes: Sequence[Attribute]
    sole_source: bool
    types_of: Callable[[Sequence[tuple[int, int]]], list[ColumnType]]
    value_of: Callable[[ColumnType, bytes], pa.Scalar]
    parsed: Collection[str] = ()
    unrepresentable: Literal["error", "null"] = "error"
    masks: Masks = field(default_factory=dict)
    named: Collection[str] = ()
    reserved: Collection[str] = ()

    @property
    def relation(self) -> str:
        """`namespace.name`, for messages."""
        return ".".join(self.table)

    def refusal(self, message: str, hint: str = "") -> NeedsResync:
        """The error for a definition that the target cannot follow."""
        return NeedsResync(message, self.table, hint=hint)

    def replicates(self, name: str) -> bool:
        """Whether a column is replicated."""
        return self.replicated is None or name in self.replicated


def plan(definition: Definition, schema: TargetSchema) -> Plan:
    """Plan how a target follows a definition.

    Raises:
        NeedsResync: The target cannot follow it.
    """
    alignment = _align(definition, schema)
    draft = _SchemaDraft(definition, schema, alignment)
    draft.rename_columns()
    types = [draft.add_or_widen(match, type_) for match, type_ in zip(alignment.matches, definition.types, strict=True)]
    columns = tuple(TargetColumn(column.name, type_) for column, type_ in zip(definition.columns, types, strict=True))
    fields, alterations = tuple(draft.fields.values()), tuple(draft.alterations)
    return Plan(columns, fields, alterations, draft.known(), tuple(draft.warnings))


def _align(definition: Definition, schema: TargetSchema) -> Alignment:
    """Give each column its attribute number; columns that are not known yet are matched with the target's by name."""
    known = definition.known
    alignment = align(known, definition.columns, definition.attributes)
    if not known and alignment is not None:
        names = {field.name for field in schema}
        known = [
            ColumnRow(match.attnum, match.column.name, match.column.type_oid, match.column.typmod)
            for match in alignment.matches
            if match.column.name in names
        ]
        by_number = {row.attnum: row for row in known}
        matches = (
            replace(match, known=by_number.get(match.attnum), doubtful=match.doubtful and match.attnum not in by_number)
            for match in alignment.matches
        )
        return replace(alignment, matches=tuple(matches))
    if alignment is None:
        listed = ", ".join(f'"{column.name}"' for column in definition.columns)
        raise definition.refusal(
            f'the columns of table "{definition.relation}" cannot be matched with those that it had before: {listed}'
        )
    return alignment


class _SchemaDraft:
    """The target's columns while a plan is made: `fields`, by name."""

    def __init__(self, definition: Definition, schema: TargetSchema, alignment: Alignment) -> None:
        self._definition = definition
        self.fields = {field.name: field for field in schema}
        self._matches = alignment.matches
        self._absent = [row if row.state == "hidden" else replace(row, state="gone") for row in alignment.absent]
        self._republished = {match.attnum for match in self._matches if self._is_republished(match)}
        for match in self._matches:
            if match.known is not None and match.attnum in self._republished:
                self._absent.append(without_number(match.known, [row.attnum for row in self._absent]))
        self.alterations: list[Alteration] = []
        self.warnings: list[str] = []

    def _is_republished(self, match: Match) -> bool:
        """Whether a column that the message lacked has returned behind all known ones: there it counts as new.

        Not so if the catalog has its number: no column gets a dropped one's, so it was not published for some time.
        """
        known, column, attribute = match.known, match.column, match.attribute
        if known is None or known.state != "gone":
            return False
        certain = (known.type_oid, known.typmod) == (column.type_oid, column.typmod) and not match.doubtful
        if attribute is not None and (attribute.settled or (attribute.name == column.name and certain)):
            return False
        after = [other for other in self._matches if other.attnum > match.attnum]
        return not any(other.known is not None and other.known.state != "gone" for other in after)

    # --- names --------------------------------------------------------------------------------------------------------

    def rename_columns(self) -> None:
        """Rename the target's columns, in an order in which every new name is free."""
        pending = {
            match.known.name: match.column.name
            for match in self._matches
            if match.known is not None
            and match.known.state != "hidden"
            and match.attnum not in self._republished
            and match.known.name != match.column.name
            and match.known.name in self.fields
            and self._definition.replicates(match.column.name)
        }
        for name in pending.values():
            self._check_new_name(name)
        while pending:
            free = next((old for old, new in pending.items() if self._same_name(new) is None), None)
            if free is not None:
                self._rename(free, pending.pop(free))
                continue
            taken = self._same_name(next(iter(pending.values())))
            assert taken is not None  # noqa: S101 - otherwise the name would be free
            if taken in pending:  # a ring, or the same name in another case
                temporary = self._unused_name("pgbridge_renamed")
                self._rename(taken, temporary)
                pending[temporary] = pending.pop(taken)
            else:
                self._rename_dropped(taken)

    def _same_name(self, name: str) -> str | None:
        """Return the target's column of this name in any case: Delta does not distinguish upper and lower case."""
        return next((field for field in self.fields if folded(field) == folded(name)), None)

    def _check_new_name(self, name: str) -> None:
        """Raise if Delta cannot hold a column of this name beside the others."""
        definition = self._definition
        if name.lower() in definition.reserved:
            raise definition.refusal(
                f'column "{name}" of table "{definition.relation}" has the name of one that the mode adds',
                "give it another name by rename_columns, or leave it out by a column list",
            )
        others = [column.name for column in definition.columns if definition.replicates(column.name)]
        alike = [other for other in others if other != name and folded(other) == folded(name)]
        if (why := unsupported(*definition.table, [*alike, name])) is not None:
            raise definition.refusal(why.reason, why.hint)

    def _rename(self, name: str, new_name: str) -> None:
        renamed = (field._replace(name=new_name) if field.name == name else field for field in self.fields.values())
        self.fields = {field.name: field for field in renamed}
        self._absent = [replace(row, name=new_name) if row.name == name else row for row in self._absent]
        self.alterations.append(RenameColumn(name, new_name))

    def _rename_dropped(self, name: str) -> None:
        """Free a name, if the target's column of that name was dropped on the server.

        Partitions that share their root's target each send a definition. Only the first one could do this rightly, so
        none does.

        Raises:
            NeedsResync: The column was not dropped, or the target has several sources.
        """
        sole_source = self._definition.sole_source
        if not sole_source or not self._is_dropped(name):
            raise self._definition.refusal(
                f'the Delta table already has a column "{name}", and it is not the column of that name that table '
                f'"{self._definition.relation}" has now',
                "rename or drop the Delta table's column" if sole_source else "",
            )
        self._rename(name, self._unused_name(f"{name}_dropped"))

    def _unused_name(self, name: str) -> str:
        taken = {folded(name) for name in (*self.fields, *(column.name for column in self._definition.columns))}
        numbered = (name if number == 1 else f"{name}_{number}" for number in count(1))
        return next(unused for unused in numbered if folded(unused) not in taken)

    # --- columns ------------------------------------------------------------------------------------------------------

    def add_or_widen(self, match: Match, type_: ColumnType) -> ColumnType:
        """Make the target hold a column's values, and return how they stand there."""
        name, known = match.column.name, match.known
        if not self._definition.replicates(name):
            return type_
        if known is not None and known.state != "hidden" and match.attnum not in self._republished:
            if known.state == "gone":
                self.warnings.append(
                    f'column "{name}" was not published for some time: existing rows may have outdated values in it'
                )
            elif match.doubtful:
                self.warnings.append(
                    f'column "{name}" is assumed to be column "{known.name}", renamed. If it is a new column (the '
                    f'stream lags behind the catalog), existing rows wrongly have the values of "{known.name}" in it'
                )
            self._check_mask(match, known)
            self._check_type_change(match, known, type_)
        is_new = name not in self.fields or self._is_dropped(name)
        return self._add(match, type_) if is_new else self._widen(name, type_)

    def _is_dropped(self, name: str) -> bool:
        """Whether the target's column of a name was dropped on the server."""
        return any(row.name == name and row.state == "gone" for row in self._absent)

    def _check_mask(self, match: Match, known: ColumnRow) -> None:
        """Raise if a column that was masked has a name by which it is not."""
        name, definition = match.column.name, self._definition
        if known.name != name and known.name in definition.masks and name not in definition.named:
            raise TargetError(
                f'column "{name}" of table "{definition.relation}" is the masked column "{known.name}", renamed',
                hint=f'add "{name}" to mask in tables."{definition.relation}", and run: {remedies.reload()}',
            )

    def _check_type_change(self, match: Match, known: ColumnRow, type_: ColumnType) -> None:
        name, of = match.column.name, (match.column.type_oid, match.column.typmod)
        old, published = self._definition.types_of([(known.type_oid, known.typmod), of])
        is_masked = name in self._definition.masks
        type_ = published if is_masked else type_
        if (old.oid, old.typmod) == (type_.oid, type_.typmod):
            return
        if not (keeps_texts if is_masked else keeps_values)(old, type_):
            raise self._definition.refusal(
                f'column "{name}" of table "{self._definition.relation}" changed its type from {declared(old)} to '
                f"{declared(type_)}: the server converted the values of existing rows, and does not send them again"
            )
        self.warnings.append(
            f'column "{name}" changed its type from {declared(old)} to {declared(type_)}: existing rows keep their '
            "values. If ALTER … USING changed them, the stream does not have the new ones"
        )

    def _widen(self, name: str, type_: ColumnType) -> ColumnType:
        """Widen a column if it does not hold all values of a type."""
        field = self.fields[name]
        fitted, present = field.fitted(type_), field.arrow
        if fitted is not None:
            return fitted
        has_common = present is not None and field.place is not Place.VARIANT
        common = common_type(present, type_.arrow) if has_common else None
        if common is None:
            raise self._definition.refusal(
                f'column "{name}" of target "{self._definition.relation}" is {field.sql_type}, '
                f"but the published values are {sql_type(type_.arrow)}"
            )
        self.fields[name] = field._replace(arrow=common, sql_type=sql_type(common))
        self.alterations.append(WidenColumn(name, common))
        return replace(type_, arrow=common)

    def _add(self, match: Match, type_: ColumnType) -> ColumnType:
        name = match.column.name
        self._check_new_name(name)
        if name not in self._definition.key:
            type_ = new_type(type_, self._definition.parsed)
        variant = type_.place is Place.VARIANT
        if (taken := self._same_name(name)) is not None:
            self._rename_dropped(taken)
        value, unknown = self._fill(match, type_)
        if unknown and name in self._definition.key:
            raise self._definition.refusal(
                f'column "{name}" of table "{self._definition.relation}" now identifies rows, but its values in '
                f"existing rows are unknown: {unknown}"
            )
        if unknown:
            self.warnings.append(f'existing rows have NULL in the new column "{name}": {unknown}')
        elif match.doubtful or match.attnum in self._republished:
            self.warnings.append(
                f'column "{name}" is assumed to be the new column that the server has now. If it is an older one of '
                "its name (not published for some time, or the stream lags behind the catalog), rows have wrong values"
            )
        self.fields[name] = variant_field(name) if variant else target_field(name, type_.arrow)
        self.alterations.append(AddColumn(name, type_.arrow, value, variant))
        return type_

    def _fill(self, match: Match, type_: ColumnType) -> tuple[pa.Scalar | None, str]:
        """The value that existing rows have in a new column, None for NULL; and why that is not the server's, or ""."""
        definition, name, attribute = self._definition, match.column.name, match.attribute
        if match.known is not None and match.known.state == "hidden":
            return None, "it was not published before"
        if attribute is None:
            return None, "the server's catalog no longer has it"
        if not attribute.fill_known:
            raise definition.refusal(
                f'the server filled column "{name}" of table "{definition.relation}" in existing rows, and does not '
                "send its values: its default is not a constant, or the table was rewritten since"
            )
        fill, mask = attribute.fill, definition.masks.get(name)
        if fill is not None and mask is not None:
            fill = mask.of(fill)
        try:
            return None if fill is None else definition.value_of(type_, fill), ""
        except ProtocolError as error:
            # a text of another type is the default of a later column of the same name
            if definition.unrepresentable == "null" or not isinstance(error, UnrepresentableValue):
                return None, f"its default cannot be read: {error}"
            raise definition.refusal(
                f'column "{name}" of table "{definition.relation}" has a value in existing rows that the target cannot '
                f"hold: {error}",
                unrepresentable_hint(in_key=name in definition.key),
            ) from error

    def known(self) -> tuple[ColumnRow, ...]:
        """Return the published table's columns as they are known from now on."""
        rows = {row.attnum: row for row in self._absent}
        for match in self._matches:
            column = match.column
            state: Literal["live", "hidden"] = "live" if self._definition.replicates(column.name) else "hidden"
            rows[match.attnum] = ColumnRow(match.attnum, column.name, column.type_oid, column.typmod, state)
        return tuple(rows[attnum] for attnum in sorted(rows))
