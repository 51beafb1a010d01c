"""Handles values that a column's type cannot hold, in tables with row filters: only rows that pass need to be held.

Values are decoded before the filters are evaluated. A value that its column cannot hold is NULL in the changes, and
PostgreSQL's text of it is in `unheld_<i>` for the new row, in `oldunheld_<i>` for the old row. `exact` gives a filter
the value itself, so that the filter decides as PostgreSQL does. `held` then applies the option `unrepresentable` to the
rows that passed: NULL, or an error, which `unheld_of` reads back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql import types as spark_types

from bridge.effects.events import DELETE, INSERT, NO_OLD, UPDATE
from bridge.lake.raise_error import error_object
from bridge.rowfilter.types.literals import END_OF_TIME, FOREVER
from bridge.targets.target import unrepresentable_hint
from protocol.errors import UnrepresentableValue
from protocol.values.text_values import NOT_A_DECIMAL, OUTSIDE_YEARS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import Column, DataFrame

    from bridge.targets.target import TargetColumn

MARKS: Final = {"new": "unheld", "old": "oldunheld"}
"""The prefix of the columns with the texts, by the prefix of the columns with the values."""

_MARK: Final = "pgbridge_unheld"
_SHOWN_CHARACTERS: Final = 200
_FORM: Final = r"^(\d{4,7})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?$"
_DAY_USECS: Final = 86_400_000_000
_LAST_DAY: Final = END_OF_TIME // _DAY_USECS
_IN_FILTER: Final = (
    "a row filter uses this value and cannot be evaluated: remove the column from the filter, or skip the transaction"
)


@dataclass(frozen=True, slots=True)
class Unheld:
    """A value that made a commit fail."""

    column: str
    message: str
    hint: str


def unheld_of(error: BaseException) -> Unheld | None:
    """Read the value that made a commit fail from the error; None for another error."""
    found = error_object(error, _MARK)
    if found is None:
        return None
    value = UnrepresentableValue(found[_MARK], found["value"], found["reason"])
    hint = _IN_FILTER if found["use"] == "filter" else unrepresentable_hint(in_key=found["use"] == "key")
    return Unheld(value.column, str(value), hint)


def exact(name: str, value: Column, text: Column, type_: spark_types.DataType) -> Column:
    """A column's value for a filter, also if it is a text, date or timestamp that the column cannot hold.

    Infinities are those of `rowfilter.types.literals`. A value of another type, or a timestamp beyond 64 bits of
    microseconds from 1970, raises an error when the filter evaluates it.

    Args:
        value: The value; NULL if the column cannot hold it.
        text: PostgreSQL's text of such a value; NULL for other values.
    """
    if isinstance(type_, spark_types.StringType):
        return F.coalesce(value, text)
    failure = _raising(name, text, type_, "filter").cast(type_)
    if isinstance(type_, spark_types.DateType):
        days = F.when(text == "infinity", FOREVER).when(text == "-infinity", -FOREVER - 1).otherwise(_days(text))
        there = F.when(days.isNotNull(), F.date_from_unix_date(days)).otherwise(failure)
    elif isinstance(type_, spark_types.TimestampType | spark_types.TimestampNTZType):
        within = F.when(F.abs(_days(text)) < _LAST_DAY, _days(text) * F.lit(_DAY_USECS) + _of_day(text))
        forever, ever = (F.lit(str(end)).cast("bigint") for end in (END_OF_TIME, -END_OF_TIME - 1))
        usecs = F.when(text == "infinity", forever).when(text == "-infinity", ever).otherwise(within)
        there = F.when(usecs.isNotNull(), F.timestamp_micros(usecs).cast(type_)).otherwise(failure)
    else:
        there = failure
    return F.when(text.isNull(), value).otherwise(there)


def held(
    frame: DataFrame, columns: Sequence[TargetColumn], key: Collection[int], unrepresentable: Literal["error", "null"]
) -> DataFrame:
    """Drop the texts from changes that have passed; evaluating the result raises if such a value may not be NULL.

    Args:
        key: Positions of the columns that identify rows; empty if all do.
        unrepresentable: Whether such a value is an error or NULL; in the key it is always an error.
    """
    op, old = F.col("op"), F.col("old")
    concerned = {
        "unheld": op.isin(INSERT, UPDATE),
        "oldunheld": op.isin(UPDATE, DELETE) & (old != NO_OLD),
    }
    checks, texts = [], []
    for name in frame.columns:
        kind, _, index = name.partition("_")
        if kind not in concerned:
            continue
        texts.append(name)
        i = int(index)
        found_by = i in key or not key
        if (kind == "unheld" or found_by) and (unrepresentable == "error" or i in key):
            use = "key" if i in key else "column"
            type_ = frame.schema[f"new_{i}"].dataType
            failure = _raising(columns[i].name, F.col(name), type_, use).cast("boolean")
            checks.append(F.when(concerned[kind] & F.col(name).isNotNull(), failure))
    if not texts:
        return frame
    if checks:
        frame = frame.filter(F.coalesce(*checks, F.lit(True)))
    return frame.drop(*texts)


def _raising(name: str, text: Column, type_: spark_types.DataType, use: str) -> Column:
    reason = "the column cannot hold it or one of its elements"
    if isinstance(type_, spark_types.DecimalType):
        reason = NOT_A_DECIMAL
    elif isinstance(type_, spark_types.DateType | spark_types.TimestampType | spark_types.TimestampNTZType):
        reason = OUTSIDE_YEARS
    told = {_MARK: F.lit(name), "value": F.left(text, F.lit(_SHOWN_CHARACTERS)), "reason": F.lit(reason)}
    told["use"] = F.lit(use)
    return F.raise_error(F.to_json(F.struct(*(value.alias(key) for key, value in told.items()))))


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
