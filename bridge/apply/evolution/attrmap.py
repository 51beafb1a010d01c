"""Which column is which: attribute numbers for the columns of a Relation message, which has only names.

A column keeps its attribute number (`pg_attribute.attnum`) through renames and changes of type, and a number is never
given out again: so numbers tell a rename from a DROP COLUMN with an ADD COLUMN. The message does not carry them. What
is known of them is from before (the columns as they were known last) and from after (the publisher's catalog, which
is as of now, and ahead of the message when the stream lags). Between the two stands this:

* pgoutput writes the columns in the order of their numbers (`logicalrep_write_attrs`), so that numbers rise along the
  message, and what has a place between two columns that are known is no new one;
* of all assignments that rise, the one is taken that explains most: a name as it was known, or as it is now, or both;
  a type likewise; and a column that exists now and was there before is not missing from the message.

A rename is believed when the catalog has the new name under the old number, when the order leaves nothing else, or
when the old name is gone from the message and its number is still in use (renamed twice), or is dropped by now and the
type is the same: of two ways to read the message, the one that needs fewer numbers can be followed by more. Where a
column was dropped and one of the same name and type added, the message may look as it did before: the catalog decides.
`Match.doubtful` says where the message can be read otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bridge.publication.tables import Attribute
    from bridge.track.rows import ColumnRow
    from protocol.messages import Column

_NAME, _NAME_NOW, _TYPE = 1000, 1050, 100
"""A name counts for more than types; a name that the catalog has now for a bit more than one that it had."""
_OTHER_NAME, _DROPPED_SINCE, _UNLIKELY, _IMPOSSIBLE = 200, 50, -600, -5000
"""A known one has another name: and is there, or is dropped by now; the type changed too; the catalog lacks it."""
_SINCE, _UNSEEN, _MISSED = 100, 1, 500
"""Of columns that the message may have, or lacks: a new one that was renamed or dropped since; one that was dropped
before it was ever seen; one that is there before and after."""


@dataclass(frozen=True, slots=True)
class Match:
    """A column of the message.

    Attributes:
        column: As the message has it.
        attnum: Its number; one that the catalog does not have where nothing of it is left there.
        known: What was known of it before; None for one that is new.
        now: What the catalog has of it now; None where it is not there any more.
        doubtful: It may be another column, of the same name or type, which is dropped by now.
    """

    column: Column
    attnum: int
    known: ColumnRow | None
    now: Attribute | None
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Alignment:
    """All columns of the message, and those known that it does not have."""

    matches: tuple[Match, ...]
    absent: tuple[ColumnRow, ...]


def align(known: Sequence[ColumnRow], columns: Sequence[Column], now: Sequence[Attribute]) -> Alignment | None:
    """Give each column of a message its attribute number.

    Args:
        known: The columns as they were known before the message.
        columns: Of the message.
        now: The publisher's catalog; empty where the table is gone.

    Returns:
        None where no rising numbers can be given: what is known is of another table.
    """
    by_number = {row.attnum: row for row in known}
    current = {attribute.attnum: attribute for attribute in now}
    last = max((*by_number, *current, 0))
    fresh = range(last + 1, last + 1 + len(columns))  # for columns that came and went: nothing is left of them
    numbers = sorted(number for number in {*by_number, *current, *fresh} if number > 0)
    chosen = _best(columns, numbers, by_number, current)
    if chosen is None:
        return None
    absent: list[ColumnRow] = []
    for row in known:
        if row.attnum not in chosen:
            absent.append(_relabelled(row, current, {*by_number, *chosen, *(other.attnum for other in absent)}))
    names = frozenset(column.name for column in columns)
    left = [row for row in known if row.state == "live" and row.attnum not in chosen]
    matches = (
        _match(column, number, by_number, current, left, names) for column, number in zip(columns, chosen, strict=True)
    )
    return Alignment(tuple(matches), tuple(absent))


def without_number(row: ColumnRow, others: Iterable[int]) -> ColumnRow:
    """A column that the table had, and whose number is another's: a negative one keeps it known."""
    return replace(row, attnum=min(-1, min(others, default=0) - 1))


def _best(
    columns: Sequence[Column], numbers: Sequence[int], known: Mapping[int, ColumnRow], now: Mapping[int, Attribute]
) -> list[int] | None:
    """The rising numbers with the highest score; of equal ones the highest numbers, of fresh ones the lowest."""
    names = frozenset(column.name for column in columns)
    lost = float("-inf")
    scores = [[0.0] + [lost] * len(columns)]
    taken: list[list[bool]] = [[False] * (len(columns) + 1)]
    for number in numbers:
        before, row, marks = scores[-1], [], []
        for i in range(len(columns) + 1):
            without = before[i] - _missed(number, known, now, more=i < len(columns))
            with_ = before[i - 1] + _score(columns[i - 1], number, known, now, names) if i else lost
            row.append(max(without, with_))
            known_somewhere = number in known or number in now
            marks.append(with_ > lost and (with_ > without or (with_ == without and known_somewhere)))
        scores.append(row)
        taken.append(marks)
    if scores[-1][-1] == lost:
        return None
    found: list[int] = []
    i = len(columns)
    for at in range(len(numbers), 0, -1):
        if i and taken[at][i]:
            found.append(numbers[at - 1])
            i -= 1
    return found[::-1]


def _missed(number: int, known: Mapping[int, ColumnRow], now: Mapping[int, Attribute], *, more: bool) -> int:
    """What it takes to believe that the message lacks this column; `more`: it has one with a higher number.

    Then this column was there, too: it has gone again, and was never seen, or is not published.
    """
    row = known.get(number)
    exists = number in now and now[number].name is not None
    if row is not None and row.state == "live":
        return _MISSED if exists else 0 if now else _OTHER_NAME // 2
    if row is None and more and number in now:
        return _MISSED if exists else _UNSEEN
    return 0


def _score(
    column: Column,
    number: int,
    known: Mapping[int, ColumnRow],
    now: Mapping[int, Attribute],
    names: frozenset[str],
) -> int:
    """How well a column of the message goes with a number."""
    row, attribute = known.get(number), now.get(number)
    was = row if row is not None and row.state != "gone" else None
    exists = attribute is not None and attribute.name is not None
    type_ = (column.type_oid, column.typmod)
    score = 0
    if was is not None and was.name == column.name:
        score += _NAME
    if attribute is not None and attribute.name == column.name:
        score += _NAME_NOW
    if was is not None and (was.type_oid, was.typmod) == type_:
        score += _TYPE
    if attribute is not None and exists and (attribute.type_oid, attribute.typmod) == type_:
        score += _TYPE
    if score >= _NAME:
        return score
    if was is not None and was.state == "live":
        return score + (_OTHER_NAME if exists or not now else _DROPPED_SINCE if score else _UNLIKELY)
    if row is not None and row.state == "gone" and not exists:
        return 2 * _IMPOSSIBLE  # a column that is dropped does not come again
    if attribute is None:
        return _IMPOSSIBLE if now else 0  # it has all numbers that were ever given out
    if row is not None or (exists and (attribute.name in names or not score)):
        return _UNLIKELY
    # renamed since, or dropped since: of several the first, because numbers are given out in order
    return _SINCE


def _match(
    column: Column,
    number: int,
    known: Mapping[int, ColumnRow],
    now: Mapping[int, Attribute],
    left: Sequence[ColumnRow],
    names: frozenset[str],
) -> Match:
    """`left` are the columns that were there before, and are not any more; `names` those of the message."""
    row, attribute = known.get(number), now.get(number)
    exists = attribute is not None and attribute.name is not None
    type_ = (column.type_oid, column.typmod)
    doubtful = False
    if row is None and attribute is not None:
        # it was added when the other was dropped; or it is that one, and will be dropped
        same = next((other for other in left if other.name == column.name), None)
        decided = same is None or (same.type_oid, same.typmod) != type_ == (attribute.type_oid, attribute.typmod)
        doubtful = not decided
    elif row is not None and row.state == "live" and row.name != column.name and not exists:
        # renamed, and dropped by now; or one that was added in its place, and has another name by now
        others = (a for a in now.values() if a.attnum not in known and a.name is not None and a.name not in names)
        doubtful = any((a.type_oid, a.typmod) == type_ for a in others)
    return Match(column, number, row, attribute if exists else None, doubtful)


def _relabelled(row: ColumnRow, now: Mapping[int, Attribute], others: set[int]) -> ColumnRow:
    """A column that is gone from the message, under the number of one that is dropped where its own is in use.

    When it came, the catalog had one of its name that was added after it was dropped again: that one's number was
    taken for its own, and the one that is dropped, and was never seen, is its own. `others` are the numbers that are
    spoken for.
    """
    attribute = now.get(row.attnum)
    if row.state != "live" or attribute is None or attribute.name is None:
        return row
    below = max((number for number in others if number < row.attnum), default=0)
    dropped = [number for number in now if below < number < row.attnum and now[number].name is None]
    if dropped:
        return replace(row, attnum=dropped[0])
    return row if attribute.name == row.name else without_number(row, others)
