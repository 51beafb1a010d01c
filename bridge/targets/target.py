"""The Delta table of a subscribed table: location, columns, layout, and the Delta types for PostgreSQL's values.

PostgreSQL's subscriber reads a value's text as the type of its own column. The bridge does the same where no value is
lost: a Delta table that existed before the subscription may have columns that are wider than the published ones.

`cluster_by` and `partition_by` name columns that lay out a table's files. Delta would refuse some of them, too, but
only when the table is created, and in its own words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT, Layout, correct_name
from pgbridge.bridge.targets.filled import Filled, Filling, check_filled
from pgbridge.bridge.targets.location import quoted, sql_name
from pgbridge.bridge.targets.properties import INDEXED
from pgbridge.protocol.values.types import ColumnType, Kind, Place, decimal_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_INTEGERS: Final = (pa.int16(), pa.int32(), pa.int64())
_DIGITS: Final = {pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_REAL_DIGITS: Final = 10  # nine name every real
_EXACT_DIGITS: Final = 200  # more than any real, or halfway point between two, has
_FLOATS_OF_INTEGERS: Final = {
    pa.int16(): {pa.float32(), pa.float64()},
    pa.int32(): {pa.float64()},
}


def holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether a column of type `wide` holds every value of type `narrow`, each as a different value."""
    if wide.equals(narrow):
        return True
    if pa.types.is_list(wide) and pa.types.is_list(narrow):
        return holds(wide.value_type, narrow.value_type)
    if pa.types.is_decimal(wide):
        digits, scale = _DIGITS.get(narrow), 0
        if pa.types.is_decimal(narrow):
            digits, scale = narrow.precision - narrow.scale, narrow.scale
        return digits is not None and wide.scale >= scale and wide.precision - wide.scale >= digits
    if wide in _INTEGERS and narrow in _INTEGERS:
        return _INTEGERS.index(wide) > _INTEGERS.index(narrow)
    if wide in _FLOATS_OF_INTEGERS.get(narrow, ()):
        return True
    return (narrow, wide) in {(pa.float32(), pa.float64()), (pa.date32(), pa.timestamp("us"))}


def widened(values: pa.ChunkedArray, wide: pa.DataType) -> pa.ChunkedArray:
    """Cast values to a wider type that holds them.

    A real becomes the double of its text: 0.1, although the real itself is 0.100000001490116.
    """
    return pa.chunked_array([_widened(chunk, wide) for chunk in values.chunks], wide)


def _widened(values: pa.Array, wide: pa.DataType) -> pa.Array:
    if pa.types.is_list(wide):
        offsets = np.zeros(len(values) + 1, np.int32)
        np.cumsum(pc.fill_null(pc.list_value_length(values), 0), out=offsets[1:])
        items = _widened(pc.list_flatten(values), wide.value_type)
        return pa.ListArray.from_arrays(pa.array(offsets), items, mask=values.is_null())
    return _doubles(values) if (values.type, wide) == (pa.float32(), pa.float64()) else values.cast(wide)


def _doubles(reals: pa.Array) -> pa.Array:
    """Doubles of the texts that `float4out` writes: the shortest text that reads as the real; of several, the nearest.

    Arrow may write a text that is halfway between two reals. The server does not, so such texts are computed here.
    """
    doubles = reals.cast(pa.string()).cast(pa.float64())
    exact = reals.to_numpy(zero_copy_only=False).astype(np.float32)
    numbers = doubles.to_numpy(zero_copy_only=False).copy()
    halfway = np.zeros(len(numbers), np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):
        for towards in (np.inf, -np.inf):
            neighbour = np.nextafter(exact, np.float32(towards)).astype(np.float64)
            halfway |= numbers == (exact.astype(np.float64) + neighbour) / 2
    halfway &= np.isfinite(numbers)
    if not halfway.any():
        return doubles
    with localcontext(prec=_EXACT_DIGITS):
        for index in np.flatnonzero(halfway).tolist():
            numbers[index] = _shortest(exact[index])
    return pa.array(numbers, mask=np.asarray(reals.is_null()))


def _shortest(real: np.float32) -> float:
    value = Decimal(float(real))
    low, high = ((value + Decimal(float(np.nextafter(real, np.float32(towards))))) / 2 for towards in (-np.inf, np.inf))
    for digits in range(1, _REAL_DIGITS):
        unit = Decimal(1).scaleb(value.adjusted() - digits + 1)
        texts = [value.quantize(unit, rounding) for rounding in (ROUND_FLOOR, ROUND_CEILING)]
        inside = [text for text in texts if low < text < high]
        if inside:
            return float(min(inside, key=lambda text: abs(text - value)))
    return float(value)


def published_type(type_: ColumnType) -> pa.DataType:
    """The Arrow type of a published column's values, whatever their type in the target is."""
    if type_.kind is Kind.ARRAY and type_.element is not None:
        return pa.list_(published_type(type_.element))
    if type_.kind is Kind.DECIMAL:
        return decimal_of(type_.typmod)
    return type_.kind.arrow


_SQL_TYPES: Final = {
    pa.bool_(): "boolean", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint", pa.float32(): "float",
    pa.float64(): "double", pa.string(): "string", pa.binary(): "binary", pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz", pa.timestamp("us", "UTC"): "timestamp",
}  # fmt: skip


def sql_type(arrow: pa.DataType) -> str:
    """The type of a Delta column for values of an Arrow type, in Spark SQL."""
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_list(arrow):
        return f"array<{sql_type(arrow.value_type)}>"
    return _SQL_TYPES[arrow]


class TargetField(NamedTuple):
    """A column of a Delta table.

    Attributes:
        arrow: The type of its values; None for a Delta type that is not the type of any published column.
        sql_type: The type in Spark SQL, for messages.
        filled: What it has in rows that are written without it.
    """

    name: str
    arrow: pa.DataType | None
    sql_type: str
    place: Place = Place.COLUMN
    filled: Filled = "null"
    check: str = ""

    def filled_as(self, filling: Filling | None) -> TargetField:
        """The field of a table whose definition says how it is filled."""
        return self if filling is None else self._replace(filled=filling.how, check=filling.check)

    def fitted(self, type_: ColumnType) -> ColumnType | None:
        """A published column's type with the Arrow type and the place of this one; None if it does not hold it."""
        if self.arrow is None or not holds(self.arrow, type_.parsed_for(self.arrow).arrow):
            return None
        if self.place is Place.VARIANT and not type_.is_jsonb:
            return None
        return replace(type_, arrow=self.arrow, place=self.place)


TargetSchema = tuple[TargetField, ...]
"""The columns of a Delta table, in their order."""

Mode = Literal["mirror", "changelog", "history", "soft_deletes", "handler"]
"""The use of a table's changes: rows that equal the published table's, a row for each change, a row for each version
of a row, the last version of each row, also of deleted ones; or they are handed to a function."""


VALIDITY: Final = (
    ("valid_from_lsn", pa.int64()),
    ("valid_to_lsn", pa.int64()),
    ("valid_from", pa.timestamp("us", "UTC")),
    ("valid_to", pa.timestamp("us", "UTC")),
)
"""The columns that a history has beside the row: from which commit on, inclusive, until which one, exclusive, as LSNs
and as times; NULL for a version that is still valid. `valid_from` is NULL for a row of the initial copy."""

LAST_VERSION: Final = (
    ("row_changed_lsn", pa.int64()),
    ("row_deleted_lsn", pa.int64()),
    ("row_changed_at", pa.timestamp("us", "UTC")),
    ("row_deleted_at", pa.timestamp("us", "UTC")),
)
"""The same for the last version of a row, which soft deletes keep: the commits by which it came and was deleted.
`row_deleted_at` is NULL also for a row that a copy afresh has not met any more."""

ADDED: Final[dict[Mode, tuple[tuple[str, pa.DataType], ...]]] = {"history": VALIDITY, "soft_deletes": LAST_VERSION}
"""The columns that a mode adds to those of the published table."""


def added_names(mode: Mode) -> tuple[str, ...]:
    """The columns that a mode adds to those of the published table; none for a mirror."""
    return tuple(name for name, _ in ADDED.get(mode, ()))


def target_field(name: str, arrow: pa.DataType) -> TargetField:
    """Make a column for values of an Arrow type."""
    return TargetField(name, arrow, sql_type(arrow))


def variant_field(name: str) -> TargetField:
    """Make a column of VARIANT; its values travel as the text of JSON."""
    return TargetField(name, pa.string(), "variant", Place.VARIANT)


def target_schema(fields: Iterable[tuple[str, pa.DataType]]) -> TargetSchema:
    """Make columns from their names and Arrow types."""
    return tuple(target_field(name, arrow) for name, arrow in fields)


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A replicated column, with the type of its values in the target."""

    name: str
    type: ColumnType


def new_type(type_: ColumnType, parsed: Collection[str]) -> ColumnType:
    """A published column's type as a column that is made for it has it.

    Args:
        parsed: The labels of the kinds that do not become strings: of "jsonb", "vector" and "geometry".
    """
    if type_.kind.label not in parsed:
        return type_
    if type_.is_jsonb:
        return replace(type_, place=Place.VARIANT)
    return type_ if type_.kind.parsed is None else type_.parsed_for(type_.kind.parsed)


def unpublished_column(field: TargetField, arrow: pa.DataType) -> TargetColumn:
    """A column that only the target has, as a column of changes."""
    return TargetColumn(field.name, ColumnType(0, -1, arrow, binary=False, kind=Kind.OPAQUE, place=field.place))


@dataclass(frozen=True, slots=True)
class Target:
    """The Delta table of a published table.

    Attributes:
        path: The Delta table's location (`bridge.targets.location`): a path, or a table of a catalog.
        schema: The Delta table's columns. In a changelog those of its images, in a history those of the published row;
            for a handler, which has no Delta table, the published table's when the stream began.
    """

    namespace: str
    name: str
    path: str
    schema: TargetSchema
    mode: Mode = "mirror"

    @property
    def every_change(self) -> bool:
        """Whether every change is kept, in order, with its position in the stream and both images."""
        return self.mode != "mirror"

    @property
    def versioned(self) -> bool:
        """Whether its rows have the LSNs of the commits from which on and until which they are valid."""
        return self.mode in {"history", "soft_deletes"}

    @property
    def qualified_name(self) -> str:
        """`namespace.name`, unquoted, as in messages."""
        return f"{self.namespace}.{self.name}"

    def keeps_beside(self, columns: Sequence[TargetColumn]) -> bool:
        """Whether there are columns beside these whose values stay with their row, and whose definition says the first.

        A generated column follows from the others.
        """
        names = {column.name for column in columns}
        return any(field.filled != "generated" and field.name not in names for field in self.schema)

    def check_filled(self, columns: Collection[str], *, keyed: bool) -> None:
        """As `bridge.targets.filled.check_filled`."""
        filled = {field.name: Filling(field.filled, field.check) for field in self.schema}
        check_filled(self.path, filled, columns, keyed=keyed)

    def check(self, columns: Sequence[TargetColumn]) -> tuple[TargetColumn, ...]:
        """Return the columns of a Relation message, in any order, in the Delta table's types, which may be wider.

        Raises:
            TargetError: A column is missing, or its type does not hold all values of the published type.
        """
        fields = {field.name: field for field in self.schema}
        missing = [column.name for column in columns if column.name not in fields]
        if missing:
            listed = ", ".join(f'"{name}"' for name in missing)
            plural = "s" if len(missing) > 1 else ""
            lacking = (column for column in columns if column.name in missing)
            added = ", ".join(f"{quoted(column.name)} {sql_type(column.type.arrow)}" for column in lacking)
            raise TargetError(
                f'logical replication target relation "{self.qualified_name}" is missing '
                f"replicated column{plural}: {listed}",
                hint=f"run in Spark: ALTER TABLE {sql_name(self.path)} ADD COLUMNS ({added})",
            )
        fitting = []
        for column in columns:
            fitted = fields[column.name].fitted(column.type)
            if fitted is None:
                raise TargetError(
                    f'column "{column.name}" of target "{self.qualified_name}" is '
                    f"{fields[column.name].sql_type}, but the published values are {sql_type(column.type.arrow)}",
                    hint=f"the Delta table at {self.path} must have the type of the published column, or a wider one",
                )
            fitting.append(replace(column, type=fitted))
        return tuple(fitting)


def unrepresentable_hint(*, in_key: bool) -> str:
    """The hint for a value that its column cannot hold."""
    if in_key:
        return (
            "rows are found by this column, so such a value cannot become NULL: exclude the row with a row filter, "
            "or give the table a replica identity without the column"
        )
    return 'set unrepresentable = "null" to store NULL for such values'


_INDEXED_COLUMNS: Final = 32
"""Delta collects statistics of so many columns by default, and clusters by no other."""


def check_layout(relation: str, layout: Layout, schema: TargetSchema) -> None:
    """Check that a new Delta table can have a layout.

    Raises:
        TargetError: A column does not exist, or is of a type that Delta does not allow there.
    """
    if layout == NO_LAYOUT:
        return
    columns = {field.name: field for field in schema}
    message = f'the Delta table of "{relation}" cannot be laid out by {layout.option}: '
    for name in layout.columns:
        field = columns.get(name)
        if field is None:
            raise TargetError(
                f'{message}it has no column "{name}"',
                hint=f'correct the table "{relation}" of the configuration: {correct_name(name, columns)}',
            )
        if not _allowed(field, layout):
            raise TargetError(
                f'{message}its column "{name}" is {field.sql_type}',
                hint=f"name a column of numbers, text, dates or timestamps{_BESIDES[layout.option]}",
            )
    if layout.partition_by and len(layout.partition_by) == len(columns):
        raise TargetError(
            f"{message}every column would be a partition column, and the files would have none",
            hint="partition by fewer columns",
        )


def kept_layout(layout: Layout, columns: Sequence[TargetColumn], others: Collection[str] = ()) -> Layout:
    """Return what is left of a table's layout once a copy replaces its columns; `others` keep their types."""
    fields = {column.name: TargetField(column.name, column.type.arrow, "", column.type.place) for column in columns}

    def left(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name in others or (name in fields and _allowed(fields[name], layout)))

    partitions = left(layout.partition_by)
    return Layout(left(layout.cluster_by), () if set(partitions) == {*fields, *others} else partitions)


_BESIDES: Final = {"cluster_by": "", "partition_by": " (no floating-point numbers), or a boolean one"}


def _allowed(field: TargetField, layout: Layout) -> bool:
    """Whether Delta clusters by the column; or whether it keeps each of its values as that of a partition.

    Clustering needs the least and the greatest value, which Delta collects. A partition's value passes through its
    text, which is no place for a floating-point number.
    """
    type_ = field.arrow
    if type_ is None or field.place is Place.VARIANT:
        return False
    tests = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_string, pa.types.is_date, pa.types.is_timestamp)
    own = pa.types.is_floating if layout.cluster_by else pa.types.is_boolean
    return own(type_) or any(test(type_) for test in tests)


def layout_properties(layout: Layout, leaves: list[str], given: str | None = None) -> dict[str, str]:
    """The properties that a new Delta table needs for a layout.

    Args:
        leaves: The columns, of a struct its own.
        given: For how many columns the user has Delta collect statistics; -1 for all, None for Delta's default.
    """
    indexed = max((leaves.index(name) + 1 for name in layout.cluster_by), default=0)
    enough = given == "-1" or indexed <= int(given or _INDEXED_COLUMNS)
    return {} if enough else {INDEXED: str(indexed)}
