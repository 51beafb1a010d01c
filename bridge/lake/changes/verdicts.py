"""Computes row filters in Spark, which gets the columns that they look at, and gives back booleans.

A value that its column cannot hold comes as PostgreSQL's text (`batch.unrepresentable`). `exact` gives a filter the
value itself, so that the filter decides as PostgreSQL does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.batch.unrepresentable import MARKS, reason_of
from bridge.effects.events import DELETE, INSERT, NO_OLD, UPDATE
from bridge.lake.raise_error import error_object
from bridge.lake.schema import spark_type
from bridge.lake.source import as_frame
from bridge.rowfilter.on_server.server_filter import VerdictError
from bridge.rowfilter.types.literals import END_OF_TIME, FOREVER
from bridge.spark.hints import summary
from bridge.spark.outcome import SPARK_ERRORS, is_lost
from protocol.errors import UnrepresentableValue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridge.batch.row_filters import RowFilter, RowFilters
    from protocol.values.value_array import Bools

_ROW: Final = "row"
_UNHELD: Final = "pgbridge_unheld"
_SHOWN_CHARACTERS: Final = 200
_FORM: Final = r"^(\d{4,7})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?$"
_DAY_USECS: Final = 86_400_000_000
_LAST_DAY: Final = END_OF_TIME // _DAY_USECS
_IN_FILTER: Final = (
    "a row filter uses this value and cannot be evaluated: remove the column from the filter, or skip the transaction"
)


class SparkVerdicts:
    """Computes translated row filters (`bridge.batch.row_filters.Verdicts`)."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def passes(self, filters: RowFilters, rows: pa.Table, positions: Mapping[str, int]) -> tuple[Bools, Bools]:
        """As `Verdicts.passes`."""
        kinds = [kind for pair in MARKS.items() for kind in pair]
        names = [f"{kind}_{i}" for i in positions.values() for kind in kinds]
        looked_at = rows.select(["op", "old", *(name for name in names if name in rows.column_names)])
        for at, name in enumerate(("op", "old")):
            looked_at = looked_at.set_column(at, name, looked_at[name].cast(pa.int16()))
        looked_at = looked_at.append_column(_ROW, pa.array(np.arange(len(rows))))
        try:
            return self._passes(filters, looked_at, positions)
        except SPARK_ERRORS as error:
            if is_lost(error):
                raise
            raise self._first_error(filters, looked_at, positions, error) from error

    def _passes(self, filters: RowFilters, rows: pa.Table, positions: Mapping[str, int]) -> tuple[Bools, Bools]:
        def value(kind: str, name: str) -> Column:
            i = positions[name]
            text = f"{MARKS[kind]}_{i}"
            column = F.col(f"{kind}_{i}")
            return column if text not in rows.column_names else exact(name, column, F.col(text), rows[f"new_{i}"].type)

        def true(row_filter: RowFilter | None, kind: str) -> Column:
            if row_filter is None:
                return F.lit(True)
            return F.coalesce(row_filter.to_spark(lambda name: value(kind, name)), F.lit(False))

        operation, passes = F.col("op"), F.lit(True)
        new = F.when(operation == INSERT, true(filters.insert, "new"))
        new = new.when(operation == UPDATE, true(filters.update, "new")).otherwise(passes)
        old = passes
        if any(name.startswith("old_") for name in rows.column_names):
            with_old = F.col("old") != NO_OLD
            old = F.when(operation == DELETE, true(filters.delete, "old"))
            old = old.when((operation == UPDATE) & with_old, true(filters.update, "old")).otherwise(passes)
        frame = as_frame(self._spark, rows)
        verdicts = frame.select(_ROW, old.alias("old_passes"), new.alias("new_passes")).toArrow()
        order = np.argsort(verdicts[_ROW].to_numpy())
        return verdicts["old_passes"].to_numpy()[order], verdicts["new_passes"].to_numpy()[order]

    def _first_error(
        self, filters: RowFilters, rows: pa.Table, positions: Mapping[str, int], error: Exception
    ) -> VerdictError:
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
            return VerdictError(0, f"it could not be computed for {len(rows):,} rows: {summary(error)}")
        return _verdict_error(passing, last)

    def _error_of(self, filters: RowFilters, rows: pa.Table, positions: Mapping[str, int]) -> Exception | None:
        try:
            self._passes(filters, rows, positions)
        except SPARK_ERRORS as error:
            if is_lost(error):
                raise
            return error
        return None


def _verdict_error(row: int, error: Exception) -> VerdictError:
    unheld = error_object(error, _UNHELD)
    if unheld is None:
        return VerdictError(row, summary(error))
    value = UnrepresentableValue(unheld[_UNHELD], unheld["value"], unheld["reason"])
    return VerdictError(row, str(value), column=value.column, hint=_IN_FILTER)


def exact(name: str, value: Column, text: Column, arrow: pa.DataType) -> Column:
    """A column's value for a filter, also if it is a text, date or timestamp that the column cannot hold.

    Infinities are those of `rowfilter.types.literals`. A value of another type, or a timestamp beyond 64 bits of
    microseconds from 1970, raises an error when the filter evaluates it.

    Args:
        value: The value, of the type `arrow`; NULL if the column cannot hold it.
        text: PostgreSQL's text of such a value; NULL for other values.
    """
    if pa.types.is_string(arrow):
        return F.coalesce(value, text)
    type_ = spark_type(arrow)
    told = {_UNHELD: F.lit(name), "value": F.left(text, F.lit(_SHOWN_CHARACTERS)), "reason": F.lit(reason_of(arrow))}
    failure = F.raise_error(F.to_json(F.struct(*(part.alias(key) for key, part in told.items())))).cast(type_)
    if pa.types.is_date(arrow):
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
