"""Values that a column's type cannot hold, of tables with row filters: only rows that pass have to be held.

The stream's values are decoded before it is known which rows pass, so such a value is NULL in the changes, and stands
as PostgreSQL's text beside it: in `unheld_<i>` for the new row's, in `oldunheld_<i>` for the old one's. A filter sees
the value itself (`exact`): its verdict is PostgreSQL's. Of what has passed, `held` makes what the subscription wants:
NULL, or an error that `unheld_of` finds again in whatever Spark makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql import types as spark_types

from bridge.apply.delta.raise_error import marked
from bridge.apply.effects.operations import DELETE, INSERT, NO_OLD, UPDATE
from bridge.apply.target.target import unrepresentable_hint
from bridge.rowfilter.types.literals import END_OF_TIME, FOREVER
from protocol.errors import UnrepresentableValue
from protocol.values.text_values import NOT_A_DECIMAL, OUTSIDE_YEARS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import Column, DataFrame

    from bridge.apply.target.target import TargetColumn

MARKS: Final = {"new": "unheld", "old": "oldunheld"}
"""The kinds of columns that have the text, by the kind that has the value."""

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
    """A value that made a commit fail.

    Attributes:
        column: The column's name.
        message: What is the matter with it.
        hint: What can be done.
    """

    column: str
    message: str
    hint: str


def unheld_of(error: BaseException) -> Unheld | None:
    """The value that made a commit fail; None when it was something else."""
    found = marked(error, _MARK)
    if found is None:
        return None
    value = UnrepresentableValue(found[_MARK], found["value"], found["reason"])
    hint = _IN_FILTER if found["use"] == "filter" else unrepresentable_hint(in_key=found["use"] == "key")
    return Unheld(value.column, str(value), hint)


def exact(name: str, value: Column, text: Column, type_: spark_types.DataType) -> Column:
    """A column's value as a filter sees it: also the dates and timestamps that a target does not hold.

    Infinities are those of `rowfilter.types.literals`. Other values than dates and timestamps, and timestamps that are
    further from 1970 than 64 bits of microseconds, raise an error as soon as they are looked at.

    Args:
        name: The column's name.
        value: The value, NULL where it cannot be held.
        text: PostgreSQL's text of it there, NULL elsewhere.
        type_: Of the value.
    """
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
    """Changes that have passed, without the texts: where such a value may not be NULL, computing them raises.

    Args:
        frame: The changes.
        columns: Those that they have values for.
        key: Positions of the columns by which rows are found; empty for all.
        unrepresentable: What becomes of such a value, but for a key's, which is an error.
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
    """One of the form's groups; NULL for a text of another form, or without it."""
    return F.nullif(F.regexp_extract(text, _FORM, group), F.lit(""))


def _days(text: Column) -> Column:
    """A date's days (int) since 1970; 1 BC is year 0."""
    year, month, day = (_part(text, group).cast("int") for group in (1, 2, 3))
    counted = F.when(_part(text, 8).isNull(), year).otherwise(1 - year)
    return F.unix_date(F.make_date(counted, month, day))


def _of_day(text: Column) -> Column:
    """A clock's microseconds; midnight where there is none."""
    hour, minute, second = (F.coalesce(_part(text, group).cast("bigint"), F.lit(0)) for group in (4, 5, 6))
    fraction = F.coalesce(F.rpad(_part(text, 7), 6, "0").cast("bigint"), F.lit(0))
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
