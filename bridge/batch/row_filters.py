"""Applies row filters to changes, as PostgreSQL's `pgoutput_row_filter` does.

An INSERT passes if the filter is true for its new row, a DELETE if it is true for its old row. An UPDATE has both rows:

    old row matches   new row matches   becomes
    no                no                nothing
    no                yes               INSERT
    yes               no                DELETE
    yes               yes               UPDATE

NULL is no match. An UPDATE without an old tuple has not changed its replica identity, and a filter of updates may use
no other columns, so its new row stands for both. The published actions are not checked again for what a change becomes.
An unchanged TOAST value, which the stream does not carry, is taken from the old tuple; if that does not have it, it is
NULL in an UPDATE that becomes an INSERT.

The verdicts come from Spark (`Verdicts`), which sees decoded values, or from a PostgreSQL server, which sees them as
they were sent. Only booleans come back. A server's come before values are decoded, Spark's after that; either way a
value that no Delta table can hold does no harm in a row that does not pass. Such a value is NULL in the changes, and
PostgreSQL's text of it is in `unheld_<i>` for the new row, in `oldunheld_<i>` for the old row. The option
`unrepresentable` is applied here to the changes that have passed: NULL, or an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.effects.events import DELETE, INSERT, NO_OLD, UPDATE
from pgbridge.bridge.rowfilter.server_filter import ServerFilter, VerdictError
from pgbridge.protocol.codec.messages import Relation, Tuple, ValueKind
from pgbridge.protocol.errors import UnrepresentableValue
from pgbridge.protocol.values.text_values import NOT_A_DECIMAL, OUTSIDE_YEARS
from pgbridge.protocol.values.value_array import IN_HEX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import Column

    from pgbridge.bridge.publication.published_table import Entry
    from pgbridge.bridge.targets.target import TargetColumn
    from pgbridge.protocol.bulk.columns import RowMessages
    from pgbridge.protocol.values.types import ColumnType
    from pgbridge.protocol.values.value_array import Bools, Bytes, Ints


class RowFilter(Protocol):
    """A condition on a row. Equal ones have equal verdicts."""

    def __hash__(self) -> int: ...

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that it looks at."""

    def to_spark(self, resolve: Callable[[str], Column]) -> Column:
        """The condition over the columns that `resolve` gives by name; NULL where PostgreSQL has NULL."""


@dataclass(frozen=True, slots=True)
class RowFilters:
    """A table's filters by action; None where all rows pass.

    Attributes:
        on_server: Makes the same filters for a server, which computes them for the rows with a value that Spark has no
            equal of (`beyond_spark`); None where there is no server to ask.
    """

    insert: RowFilter | None = None
    update: RowFilter | None = None
    delete: RowFilter | None = None
    on_server: Callable[[], ServerFilters] | None = field(default=None, compare=False)

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that any of them looks at."""
        return frozenset().union(*(f.columns for f in (self.insert, self.update, self.delete) if f is not None))

    def __bool__(self) -> bool:
        return any(f is not None for f in (self.insert, self.update, self.delete))


class Verdicts(Protocol):
    """Computes a table's row filters over decoded rows."""

    def passes(self, filters: RowFilters, rows: pa.Table, positions: Mapping[str, int]) -> tuple[Bools, Bools]:
        """Which rows pass their action's filter.

        Args:
            rows: Decoded rows (`RowMessages.decode` with "show"), with unchanged values resolved (`from_old_tuples`).
            positions: The position of each column that the filters look at, by name.

        Returns:
            Whether the old row passes, and whether the new row does; true for a row that there is not, that has no
            filter, or whose UPDATE has no old tuple.

        Raises:
            VerdictError: A filter raises an error for a row; `row` is the first such row's index.
        """


class FilterCompiler(Protocol):
    """Makes the row filters of an entry of the publications."""

    def compile(self, entry: Entry) -> RowFilters | ServerFilters:
        """The filters of an entry, by action.

        Raises:
            ConfigError: A filter cannot be computed exactly as PostgreSQL computes it.
        """

    def columns_of(self, text: str) -> frozenset[str]:
        """Names of the columns that a filter's text may look at, as exactly as they are known."""


class VerdictSource(Protocol):
    """Computes row filters."""

    def verdicts(self, row_filter: ServerFilter, types: Sequence[int], rows: Sequence[Tuple]) -> Bools:
        """Which rows pass a filter.

        Args:
            types: The type oids of its columns.
            rows: The values of its columns.

        Raises:
            VerdictError: The filter raises an error for a row; `row` is its index.
        """


class _Image(NamedTuple):
    """A message's old or new row.

    Attributes:
        row: The message's position among the filtered ones.
        values: The values of the columns that filters look at.
        passes: Takes the verdict, at `row`.
    """

    row: int
    values: Tuple
    passes: Bools


@dataclass(frozen=True, slots=True)
class ServerFilters:
    """A table's filters by action, None where all rows pass; and the server that computes them."""

    server: VerdictSource
    insert: ServerFilter | None = None
    update: ServerFilter | None = None
    delete: ServerFilter | None = None

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that any of them looks at."""
        return frozenset().union(*(f.columns for f in (self.insert, self.update, self.delete) if f is not None))

    def passing(self, messages: RowMessages, relation: Relation, rows: Ints) -> tuple[Ints, Bytes]:
        """Filter messages of one relation.

        Args:
            relation: Their definition; it has all columns that the filters look at.
            rows: Indices of the messages to filter.

        Returns:
            Indices of the messages that pass, and the operation that each becomes: `INSERT`, `UPDATE` or `DELETE`.

        Raises:
            VerdictError: A filter raises an error for a row; `row` is the message's index.
        """
        if not len(rows):
            return rows, messages.tags[rows]
        names = sorted(self.columns)
        positions = {column.name: i for i, column in enumerate(relation.columns)}
        olds, news = messages.raw(relation, [positions[name] for name in names], rows)
        tags = messages.tags[rows]
        has_old = np.fromiter((old is not None for old in olds), np.bool_, len(rows))
        # an UPDATE without an old tuple has not changed the columns that a filter may look at
        new_passes, old_passes = np.ones(len(rows), np.bool_), np.ones(len(rows), np.bool_)
        images_of: dict[ServerFilter, list[_Image]] = {}
        by_tag = {
            tag: images_of.setdefault(row_filter, [])
            for tag, row_filter in ((INSERT, self.insert), (UPDATE, self.update), (DELETE, self.delete))
            if row_filter is not None
        }
        for i, (tag, old, new) in enumerate(zip(tags.tolist(), olds, news, strict=True)):
            images = by_tag.get(tag)
            if images is None:
                continue
            if old is not None:
                images.append(_Image(i, old, old_passes))
            if new is not None:
                images.append(_Image(i, _with_unchanged(new, old), new_passes))
        try:
            self._ask(images_of, relation, names)
        except VerdictError as error:
            raise VerdictError(int(rows[error.row]), error.reason) from error
        kept, operations = what_becomes(tags, has_old, old_passes, new_passes)
        return rows[kept], operations[kept]

    def _ask(
        self, images_of: Mapping[ServerFilter, Sequence[_Image]], relation: Relation, names: Sequence[str]
    ) -> None:
        """Ask the server for verdicts on the images of each filter, and mark which pass.

        Raises:
            VerdictError: A filter raises an error for a row; `row` is the first such message's position.
        """
        failed: VerdictError | None = None
        type_oids = {column.name: column.type_oid for column in relation.columns}
        for row_filter, images in images_of.items():
            if not images:
                continue
            places = [names.index(name) for name in row_filter.columns]
            types = [type_oids[name] for name in row_filter.columns]
            values = [image.values for image in images]
            if places != list(range(len(names))):
                values = [tuple(image[k] for k in places) for image in values]
            try:
                verdicts = self.server.verdicts(row_filter, types, values)
            except VerdictError as error:
                row = images[error.row].row
                failed = VerdictError(row, error.reason) if failed is None or row < failed.row else failed
                continue
            for image, verdict in zip(images, verdicts.tolist(), strict=True):
                image.passes[image.row] = verdict
        if failed is not None:
            raise failed


def what_becomes(tags: Bytes, has_old: Bools, old_passes: Bools, new_passes: Bools) -> tuple[Bools, Bytes]:
    """Return which changes pass, and the operation that each becomes: `INSERT`, `UPDATE` or `DELETE`."""
    both = has_old & (tags == UPDATE)
    becomes = np.where(new_passes, np.where(old_passes, UPDATE, INSERT), DELETE)
    kept = np.where(tags == DELETE, old_passes, new_passes | (both & old_passes))
    return kept, np.where(both, becomes, tags).astype(np.uint8)


def _with_unchanged(new: Tuple, old: Tuple | None) -> Tuple:
    """The new row, with its unchanged TOAST values taken from the old row."""
    if old is None or all(value.kind is not ValueKind.UNCHANGED_TOAST for value in new):
        return new
    pairs = zip(new, old, strict=True)
    return tuple(previous if value.kind is ValueKind.UNCHANGED_TOAST else value for value, previous in pairs)


_LATE: Final = r"^-?infinity$|^\d{1,5}-|^1\d{5}-|^2[0-8]\d{4}-|^29[0-3]\d{3}-|^294[01]\d\d-|^2942[0-3]\d-|^29424[0-6]-"
"""Timestamps that 64 bits of microseconds since 1970 hold; those end in the year 294247."""


def beyond_spark(table: pa.Table, types: Sequence[ColumnType], filtered: Collection[int]) -> Bools:
    """Mark rows with a value that a filter looks at, and that Spark cannot compute with.

    A value that its column cannot hold is computed with as it is if it is a text, a date or a timestamp
    (`lake.changes.verdicts.exact`). A numeric NaN, an array of two dimensions, or a text that is no UTF-8, is nothing
    in Spark.

    Args:
        table: Decoded rows, with `unheld_<i>` and `oldunheld_<i>`.
        types: The columns' published types.
        filtered: Positions of the columns that the filters look at.
    """
    marked = np.zeros(len(table), np.bool_)
    for name in table.column_names:
        kind, _, i = name.partition("_")
        if kind not in {"unheld", "oldunheld"} or int(i) not in filtered:
            continue
        arrow, texts = types[int(i)].arrow, table[name]
        if pa.types.is_date(arrow):
            continue
        beyond = pc.is_valid(texts)
        if pa.types.is_string(arrow):
            beyond = pc.fill_null(pc.starts_with(texts, IN_HEX), fill_value=False)
        if pa.types.is_timestamp(arrow):
            beyond = pc.fill_null(pc.invert(pc.match_substring_regex(texts, _LATE)), fill_value=False)
        marked |= beyond.to_numpy()
    return marked


def with_new_operations(changes: pa.Table, operations: Bytes) -> pa.Table:
    """Give changes, as `TableChanges.changes`, the operations that they have after filtering."""
    sent = changes["op"].to_numpy()
    if np.array_equal(sent, operations):
        return changes
    at = changes.column_names.index("op")
    changed = changes.set_column(at, "op", pa.array(operations.astype(np.int16)))
    inserted = (sent == UPDATE) & (operations == INSERT)
    if inserted.any():
        old = np.where(inserted, NO_OLD, changes["old"].to_numpy()).astype(np.int16)
        changed = changed.set_column(changed.column_names.index("old"), "old", pa.array(old))
    return changed


def with_lost_values(changes: pa.Table) -> tuple[pa.Table, int]:
    """Have no value of an INSERT unchanged: what the stream does not carry is NULL, as in `slot_store_data`.

    A row filter makes an UPDATE an INSERT, the server's own one (`pgoutput_row_filter`) or one that is computed here.

    Args:
        changes: As `TableChanges.changes`, with the operations after filtering, and with unchanged values resolved.

    Returns:
        The changes; and in how many rows there is such a value.
    """
    marked = [name for name in changes.column_names if name.startswith("unchanged_")]
    if not marked:
        return changes, 0
    inserted = changes["op"].to_numpy() == INSERT
    lost = np.zeros(len(inserted), np.bool_)
    for name in marked:
        marks = pc.fill_null(changes[name], fill_value=False).to_numpy()
        if (inserted & marks).any():
            lost |= inserted & marks
            changes = changes.set_column(changes.column_names.index(name), name, pa.array(marks & ~inserted))
    return changes, int(lost.sum())


MARKS: Final = {"new": "unheld", "old": "oldunheld"}
"""The prefix of the columns with the texts, by the prefix of the columns with the values."""

_SHOWN_CHARACTERS: Final = 200


def judged(
    changes: pa.Table,
    columns: Sequence[TargetColumn],
    key: Collection[int],
    unrepresentable: Literal["error", "null", "show"],
) -> pa.Table:
    """Return changes that have passed, with the operations that they became, without the texts.

    Args:
        columns: Their columns.
        key: Positions of the columns that identify rows; empty if all do.
        unrepresentable: Whether such a value is an error or NULL; in the key it is always an error. "show": the texts
            stay, and nothing is an error.

    Raises:
        UnrepresentableValue: A value may not be NULL; `row` is the first such change's index.
    """
    texts = [name for name in changes.column_names if name.startswith(tuple(f"{mark}_" for mark in MARKS.values()))]
    if not texts or unrepresentable == "show":
        return changes
    operations = changes["op"].to_numpy()
    concerned = {
        "unheld": np.isin(operations, (INSERT, UPDATE)),
        "oldunheld": np.isin(operations, (UPDATE, DELETE)) & (changes["old"].to_numpy() != NO_OLD),
    }
    refused: list[tuple[int, int, str]] = []  # the change, the column, and the text
    for name in texts:
        kind, _, index = name.partition("_")
        i = int(index)
        finds = i in key or not key  # an old value counts only where rows are looked for by it
        if (kind == "unheld" or finds) and (unrepresentable == "error" or i in key):
            at = np.flatnonzero(concerned[kind] & pc.is_valid(changes[name]).to_numpy())
            refused += [(int(row), i, changes[name][row].as_py()) for row in at[:1]]
    if refused:
        row, i, text = min(refused)
        raise UnrepresentableValue(columns[i].name, text[:_SHOWN_CHARACTERS], reason_of(columns[i].type.arrow), row)
    return changes.drop_columns(texts)


def reason_of(arrow: pa.DataType) -> str:
    """Why a column of a type cannot hold a value."""
    if pa.types.is_decimal(arrow):
        return NOT_A_DECIMAL
    if pa.types.is_date(arrow) or pa.types.is_timestamp(arrow):
        return OUTSIDE_YEARS
    return "the column cannot hold it or one of its elements"
