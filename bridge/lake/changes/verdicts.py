"""Row filters: made for a routing entry (`pgoutput_row_filter_init`), in Spark or on a server, and computed in Spark.

Spark gets the columns that the filters look at, and gives back booleans. A value that its column cannot hold comes as
PostgreSQL's text (`batch.row_filters`). `exact` gives a filter the value itself, so that the filter decides as
PostgreSQL does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, Literal, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, SparkSession, functions as F

from pgbridge.bridge.batch.row_filters import MARKS, RowFilter, RowFilters, ServerFilters, VerdictSource, reason_of
from pgbridge.bridge.effects.events import DELETE, INSERT, NO_OLD, UPDATE
from pgbridge.bridge.lake import commit_errors, source
from pgbridge.bridge.lake.schema import spark_type
from pgbridge.bridge.publication.replica_identity import column_names
from pgbridge.bridge.rowfilter import row_filter, server_filter
from pgbridge.bridge.rowfilter.types.literals import END_OF_TIME, FOREVER
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, is_lost, summary
from pgbridge.bridge.spark.session import companion
from pgbridge.bridge.sqltext.refusal import OF_POSTGRESQL
from pgbridge.protocol.errors import UnrepresentableValue
from pgbridge.protocol.values.value_array import IN_HEX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pgbridge.bridge.publication.publication import Action
    from pgbridge.bridge.publication.published_table import Entry
    from pgbridge.bridge.publication.tables import Collation as CatalogCollation
    from pgbridge.protocol.values.types import ColumnType
    from pgbridge.protocol.values.value_array import Bools, Ints

    Types = Callable[[Sequence[tuple[int, int]]], list[ColumnType]]

_ROW_ACTIONS: Final[tuple[Action, ...]] = ("insert", "update", "delete")


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Row filters of several publications, combined by OR."""

    filters: tuple[row_filter.RowFilter, ...]

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that they use."""
        return frozenset().union(*(filter_.columns for filter_ in self.filters))

    def to_spark(self, resolve: Callable[[str], Column]) -> Column:
        """The condition; NULL if none is true and one is NULL."""
        first, *others = (filter_.to_spark(resolve) for filter_ in self.filters)
        for other in others:
            first |= other
        return first


class FilterServer(VerdictSource, Protocol):
    """A PostgreSQL server that computes row filters which are not translated."""

    def accept(
        self, expression: str, columns: Mapping[str, server_filter.ServerColumn], table: tuple[str, str]
    ) -> server_filter.ServerFilter:
        """Have the server parse an expression.

        Raises:
            RowFilterError: A publication would refuse the expression.
        """


_NO_COLUMN: Final = re.compile('column ".*" does not exist', re.DOTALL)


class EntryFilterCompiler:
    """Makes the filters of entries.

    Args:
        types: Resolves (type oid, typmod).
        server: Computes all filters of a table if one of them is not translated; None to refuse such a filter.
        encoding: The encoding of the publisher's database.
        beyond_spark: Computes translated filters for the rows with a value that Spark has no equal of.
    """

    def __init__(
        self,
        types: Types,
        server: FilterServer | None,
        encoding: str = "UTF8",
        beyond_spark: FilterServer | None = None,
    ) -> None:
        self._types = types
        self._server = server
        self._encoding = encoding
        self._beyond_spark = beyond_spark
        self._used_columns: dict[str, frozenset[str]] = {}  # by the expression, of filters that the server computes

    def compile(self, entry: Entry) -> RowFilters | ServerFilters:
        """Return an entry's filters, by action.

        Raises:
            RowFilterError: A filter cannot be computed exactly as PostgreSQL does.
        """
        try:
            return self._translated(entry)
        except row_filter.RowFilterError as error:
            if self._server is not None:
                return self._served(entry, self._server)
            if error.reason in OF_POSTGRESQL or _NO_COLUMN.fullmatch(error.reason):
                raise  # a server would refuse it, too
            hint = 'filter_server = "publisher" has the PostgreSQL server compute it'
            raise row_filter.RowFilterError(error.expression, error.at, error.reason, hint=hint) from None

    def columns_of(self, text: str) -> frozenset[str]:
        """Names of the columns that a filter uses; of an unparsed one, all names in it."""
        return self._used_columns.get(text) or column_names(text)

    def _served(self, entry: Entry, server: FilterServer) -> ServerFilters:
        target = entry.target
        columns = {
            column.name: server_filter.ServerColumn(
                column.name, column.type_oid, column.collation.name if column.collation else None
            )
            for column in target.columns
        }

        def of(texts: Sequence[str]) -> server_filter.ServerFilter | None:
            table = (target.namespace, target.name)
            taken = [server.accept(text, columns, table) for text in texts]
            for filter_ in taken:
                self._used_columns[filter_.expression] = self._used_columns.get(filter_.expression, frozenset()).union(
                    filter_.columns
                )
            return server_filter.any_of(taken) if taken else None

        filters = entry.filters
        insert, update, delete = (of(filters.get(action, ())) for action in _ROW_ACTIONS)
        return ServerFilters(server, insert, update, delete)

    def _translated(self, entry: Entry) -> RowFilters:
        target = entry.target
        types = self._types([(column.type_oid, column.typmod) for column in target.columns])
        columns = {
            column.name: row_filter.FilterColumn(type_, _collation(column.collation))
            for column, type_ in zip(target.columns, types, strict=True)
        }

        def of(texts: Sequence[str]) -> AnyOf | None:
            if not texts:
                return None
            table = (target.namespace, target.name)
            return AnyOf(
                tuple(row_filter.translate(text, columns, table=table, encoding=self._encoding) for text in texts)
            )

        filters = entry.filters
        insert, update, delete = (of(filters.get(action, ())) for action in _ROW_ACTIONS)
        server = self._beyond_spark
        return RowFilters(insert, update, delete, None if server is None else partial(self._served, entry, server))


def _collation(collation: CatalogCollation | None) -> row_filter.Collation | None:
    if collation is None:
        return None
    schema, _, name = collation.name.partition(".")
    return row_filter.Collation(
        name,
        bytewise=collation.bytewise,
        deterministic=collation.deterministic,
        ascii_case=collation.ctype in {"C", "POSIX"} and collation.provider in {"b", "c"},
        default=name == "default",
        user_defined=schema != "pg_catalog",
    )


_ROW: Final = "row"
_UNHELD: Final = "pgbridge_unheld"
_SHOWN_CHARACTERS: Final = 200
_FORM: Final = r"^(\d{4,7})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?$"
_DAY_USECS: Final = 86_400_000_000
_LAST_DAY: Final = END_OF_TIME // _DAY_USECS
_IN_FILTER: Final = (
    "a row filter uses this value and cannot be evaluated: remove the column from the filter, or skip the transaction"
)


_SETTINGS: Final = {
    # By default Spark turns up to 48 MB of Arrow into rows of its plan, and computes with them while it optimizes the
    # plan, without compiled code. Measured for blocks of 50 000 rows: 150 ms instead of 55; of 300 rows it is faster.
    "spark.sql.execution.arrow.localRelationThreshold": str(256 << 10),
    # Compiled code computes what occurs twice at a row's start, also behind an AND or a CASE that would leave it out.
    "spark.sql.subexpressionElimination.enabled": "false",
}
_FILTERS_AT_ONCE: Final = 128


class SparkVerdicts:
    """Computes translated row filters (`bridge.batch.row_filters.Verdicts`)."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # To make a filter's column takes hundreds of calls of the JVM, longer than to compute it for a block.
        self._column = lru_cache(_FILTERS_AT_ONCE)(_passes)

    def passes(self, filters: RowFilters, rows: pa.Table, positions: Mapping[str, int]) -> tuple[Bools, Bools]:
        """As `Verdicts.passes`."""
        try:
            return self._verdicts(filters, rows, positions)
        except SPARK_ERRORS as error:
            if is_lost(error):
                raise
            raise self._first_error(filters, rows, positions, error) from error

    def _verdicts(self, filters: RowFilters, rows: pa.Table, positions: Mapping[str, int]) -> tuple[Bools, Bools]:
        operations, with_old = rows["op"].to_numpy(), rows["old"].to_numpy() != NO_OLD
        old_passes, new_passes = np.ones(len(rows), np.bool_), np.ones(len(rows), np.bool_)
        of = {INSERT: filters.insert, UPDATE: filters.update, DELETE: filters.delete}
        # Mostly all actions have the same filter. It sees old and new rows as rows of one table, and is compiled once.
        for condition in dict.fromkeys(of.values()):
            filtered = np.isin(operations, [operation for operation, other in of.items() if other == condition])
            olds = np.flatnonzero(filtered & (operations != INSERT) & with_old)
            news = np.flatnonzero(filtered & (operations != DELETE))
            if condition is None or not len(olds) + len(news):
                continue
            names = tuple((name, positions[name]) for name in sorted(condition.columns))
            images = [_images(rows, "old", names, olds, 0), _images(rows, "new", names, news, len(olds))]
            true = self._true(condition, pa.concat_tables(filter(len, images), promote_options="default"), names)
            old_passes[olds], new_passes[news] = np.split(true, [len(olds)])
        return old_passes, new_passes

    def _true(self, condition: RowFilter, images: pa.Table, positions: tuple[tuple[str, int], ...]) -> Bools:
        """Whether a filter is true for each of some rows."""
        column = self._column(condition, images.schema, positions)
        session = companion(self._spark, "verdicts", _SETTINGS)  # made here: most subscriptions have no such filter
        verdicts = source.as_frame(session, images).select(_ROW, column).toArrow()
        true: Bools = verdicts["passes"].to_numpy()[np.argsort(verdicts[_ROW].to_numpy())]
        return true

    def _first_error(
        self, filters: RowFilters, rows: pa.Table, positions: Mapping[str, int], error: Exception
    ) -> server_filter.VerdictError:
        """Find the first row that a filter raises an error for; the first of all if no row raises it alone."""
        passing, failing = 0, len(rows)  # rows[:passing] have verdicts, rows[:failing] have not
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if (raised := self._error_of(filters, rows.slice(passing, middle - passing), positions)) is None:
                passing = middle
            else:
                failing, error = middle, raised
        last = self._error_of(filters, rows.slice(passing, 1), positions)
        if last is None:  # of many rows, say: whoever divides the batch begins with its first transaction
            return server_filter.VerdictError(0, f"it could not be computed for {len(rows):,} rows: {summary(error)}")
        return _verdict_error(passing, last)

    def _error_of(self, filters: RowFilters, rows: pa.Table, positions: Mapping[str, int]) -> Exception | None:
        try:
            self._verdicts(filters, rows, positions)
        except SPARK_ERRORS as error:
            if is_lost(error):
                raise
            return error
        return None


def _images(
    rows: pa.Table, kind: Literal["old", "new"], positions: tuple[tuple[str, int], ...], at: Ints, first: int
) -> pa.Table:
    """The old or new rows at some places: `value_<i>` for each column, `text_<i>` of what it cannot hold, and `row`.

    Args:
        first: Rows are counted from here.
    """
    named = {
        f"{prefix}_{i}": f"{of}_{i}" for _, i in positions for prefix, of in (("value", kind), ("text", MARKS[kind]))
    }
    columns = {name: rows[of] for name, of in named.items() if len(at) and of in rows.column_names}
    if len(at) < len(rows):
        columns = {name: column.take(pa.array(at)) for name, column in columns.items()}
    return pa.table({_ROW: pa.array(np.arange(first, first + len(at)))} | columns)


def _passes(condition: RowFilter, schema: pa.Schema, positions: tuple[tuple[str, int], ...]) -> Column:
    """Whether a filter is true, over rows of `_images`; false for NULL."""
    position_of = dict(positions)

    def value(name: str) -> Column:
        i = position_of[name]
        column, text = F.col(f"value_{i}"), f"text_{i}"
        return exact(name, column, F.col(text), schema.field(f"value_{i}").type) if text in schema.names else column

    return F.coalesce(condition.to_spark(value), F.lit(False)).alias("passes")


def _verdict_error(row: int, error: Exception) -> server_filter.VerdictError:
    unheld = commit_errors.error_object(error, _UNHELD)
    if unheld is None:
        return server_filter.VerdictError(row, summary(error))
    value = UnrepresentableValue(unheld[_UNHELD], unheld["value"], unheld["reason"])
    return server_filter.VerdictError(row, str(value), column=value.column, hint=_IN_FILTER)


def exact(name: str, value: Column, text: Column, arrow: pa.DataType) -> Column:
    """A column's value for a filter, also if it is a text, date or timestamp that the column cannot hold.

    Infinities are those of `rowfilter.types.literals`. A value of another type, a text that is no UTF-8, or a timestamp
    beyond 64 bits of microseconds from 1970, raises an error when the filter evaluates it.

    Args:
        value: The value, of the type `arrow`; NULL if the column cannot hold it.
        text: PostgreSQL's text of such a value; NULL for other values.
    """
    type_ = spark_type(arrow)
    told = {_UNHELD: F.lit(name), "value": F.left(text, F.lit(_SHOWN_CHARACTERS)), "reason": F.lit(reason_of(arrow))}
    failure = F.raise_error(F.to_json(F.struct(*(part.alias(key) for key, part in told.items())))).cast(type_)
    if pa.types.is_string(arrow):
        there = F.when(text.startswith(IN_HEX), failure).otherwise(text)
    elif pa.types.is_date(arrow):
        days = F.when(text == "infinity", FOREVER).when(text == "-infinity", -FOREVER - 1).otherwise(_days(text))
        there = F.when(days.isNotNull(), F.date_from_unix_date(days)).otherwise(failure)
    elif pa.types.is_timestamp(arrow):
        within = F.when(F.abs(_days(text)) < _LAST_DAY, _days(text) * F.lit(_DAY_USECS) + _of_day(text))
        forever, ever = (F.lit(str(end)).cast("bigint") for end in (END_OF_TIME, -END_OF_TIME - 1))
        usecs = F.when(text == "infinity", forever).when(text == "-infinity", ever).otherwise(within)
        there = F.when(usecs.isNotNull(), F.timestamp_micros(usecs).cast(type_)).otherwise(failure)
    else:
        there = failure
    return F.when(text.isNull(), value).otherwise(there)


def _part(text: Column, group: int) -> Column:
    """A group of `_FORM`; NULL if the text does not match or does not have the group."""
    return F.nullif(F.regexp_extract(text, _FORM, group), F.lit(""))


def _days(text: Column) -> Column:
    """Days since 1970-01-01 (int); 1 BC is year 0."""
    year, month, day = (_part(text, group).cast("int") for group in (1, 2, 3))
    counted = F.when(_part(text, 8).isNull(), year).otherwise(1 - year)
    return F.unix_date(F.make_date(counted, month, day))


def _of_day(text: Column) -> Column:
    """Microseconds since midnight (bigint); 0 for a text without a time."""
    hour, minute, second = (F.coalesce(_part(text, group).cast("bigint"), F.lit(0)) for group in (4, 5, 6))
    fraction = F.coalesce(F.rpad(_part(text, 7), 6, "0").cast("bigint"), F.lit(0))
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
