"""Give the columns of a Relation message, which has only their names, their attribute numbers.

A column keeps its attribute number (`pg_attribute.attnum`) when it is renamed or changes its type, and a dropped
column's number is never used again. So numbers tell a rename from a DROP COLUMN with an ADD COLUMN. The message does
not carry them. Two sources are known: the columns before the message, and the publisher's present catalog, which is
ahead of the message if the stream lags. A column that is settled (`Attribute.settled`) was in the table just as it is
now, or was dropped already. Any other may have been anything. Between the two:

* pgoutput writes columns in the order of their numbers (`logicalrep_write_attrs`). So numbers rise along the message,
  and a column between two known ones is not new.
* Of all rising assignments, the one with the highest score is used. A name that matches the known columns or the
  catalog scores, and so does a type. A column that was there before and exists now is not missing, unless a column list
  leaves it out.

An assignment counts as a rename if one of these holds:

* the catalog has the new name under the old number;
* the order of columns allows nothing else;
* the old name is not in the message, and its number is still in use (the column was renamed twice);
* the old column is dropped by now, and the type is the same. A new number would be possible too, but fewer numbers
  leave more room for later columns.

If a column was dropped and another of the same name and type was added, the message may look as before: the catalog
decides. `Match.doubtful` marks columns for which another assignment is possible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pgbridge.bridge.catalog.catalog_rows import ColumnRow
    from pgbridge.bridge.publication.tables import Attribute
    from pgbridge.protocol.codec.messages import Column

_NAME, _NAME_NOW, _TYPE = 1000, 1050, 100
"""Scores of a matching name (known before; in the catalog) and of a matching type. A name outweighs all types."""
_OTHER_NAME, _DROPPED_SINCE, _UNLIKELY, _IMPOSSIBLE = 200, 50, -600, -5000
"""Scores of a known column with another name: it exists; it is dropped by now; its type differs too; the catalog has
no such number."""
_SINCE, _UNSEEN, _MISSED, _NOT_LISTED = 100, 1, 4000, 500
"""Score of a new column that was renamed or dropped since; cost of skipping a column that was dropped before it was
seen; cost of skipping a column that exists before and after, and of one that need not be published."""
_CERTAIN = 10000
"""Score of a column that is settled."""


@dataclass(frozen=True, slots=True)
class Match:
    """A column of the message with its attribute number.

    Attributes:
        attnum: Its number; above the catalog's numbers if the catalog has no trace of the column.
        known: The column as it was known before; None for a new one.
        attribute: The column in the catalog; None if it has been dropped.
        doubtful: Whether it may be another column, of the same name or type, that has been dropped; or whether it may
            have been there before, left out by a column list.
    """

    column: Column
    attnum: int
    known: ColumnRow | None
    attribute: Attribute | None
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Alignment:
    """All columns of the message, and the known columns that it does not have."""

    matches: tuple[Match, ...]
    absent: tuple[ColumnRow, ...]


def align(known: Sequence[ColumnRow], columns: Sequence[Column], attributes: Sequence[Attribute]) -> Alignment | None:
    """Give each column of a message its attribute number.

    Args:
        known: The columns before the message.
        attributes: The publisher's present catalog; empty if the table has been dropped.

    Returns:
        None if no rising numbers are possible: the known columns are another table's.
    """
    known_by_attnum = {row.attnum: row for row in known}
    by_attnum = {attribute.attnum: attribute for attribute in attributes}
    last = max((*known_by_attnum, *by_attnum, 0))
    fresh = range(last + 1, last + 1 + len(columns))  # for columns that were added and dropped since, without a trace
    numbers = sorted(number for number in {*known_by_attnum, *by_attnum, *fresh} if number > 0)
    chosen = _best(columns, numbers, known_by_attnum, by_attnum, _certain(known_by_attnum, by_attnum))
    if chosen is None:
        return None
    # a list that is gone by now, or a column that was generated, may have left columns out
    others = _best(columns, numbers, known_by_attnum, by_attnum, frozenset()) or chosen
    absent: list[ColumnRow] = []
    for row in known:
        if row.attnum not in chosen:
            absent.append(_renumbered(row, by_attnum, {*known_by_attnum, *chosen, *(other.attnum for other in absent)}))
    names = frozenset(column.name for column in columns)
    settled = {attribute.attnum for attribute in attributes if attribute.settled}
    left = [row for row in known if row.state == "live" and row.attnum not in {*chosen, *settled}]
    matches = (
        _match(column, number, known_by_attnum, by_attnum, left, names, unseen)
        for column, number, unseen in zip(columns, chosen, _unseen(chosen, known_by_attnum, by_attnum), strict=True)
    )
    # a list that has left columns out was altered since, or no other column could appear
    listed = any(row.state == "hidden" and not _is_generated(by_attnum.get(row.attnum)) for row in known)
    return Alignment(
        tuple(
            replace(match, doubtful=match.doubtful or (listed and match.known is None) or match.attnum != other)
            for match, other in zip(matches, others, strict=True)
        ),
        tuple(absent),
    )


def _is_generated(attribute: Attribute | None) -> bool:
    return attribute is not None and attribute.generated != ""


def of_partition(
    rows: Iterable[ColumnRow], attributes: Sequence[Attribute], own: Sequence[Attribute]
) -> tuple[ColumnRow, ...]:
    """A root's known columns under the numbers that they have in a partition, where names are the root's.

    Args:
        rows: The root's columns as they are known.
        attributes: Those that it has in the publisher's catalog.
        own: The partition's there.

    Returns:
        The columns whose names of now both have, and those that are gone; none if one of the two tables does not exist
        any more. Of others the catalog does not tell: the stream may be behind it.
    """
    if not attributes or not own:
        return ()
    now = {attribute.attnum: attribute.name for attribute in attributes}
    numbers = {attribute.name: attribute.attnum for attribute in own if attribute.name is not None}
    own_rows: list[ColumnRow] = []
    for row in rows:
        name = now.get(row.attnum)
        if row.state == "gone":
            own_rows.append(without_number(row, (*numbers.values(), *(each.attnum for each in own_rows))))
        elif name is not None and name in numbers:
            own_rows.append(replace(row, attnum=numbers[name]))
    return tuple(own_rows)


def without_number(row: ColumnRow, others: Iterable[int]) -> ColumnRow:
    """Return a column whose number is another's under a negative number that none of the others has."""
    return replace(row, attnum=min(-1, min(others, default=0) - 1))


def _best(
    columns: Sequence[Column],
    numbers: Sequence[int],
    known: Mapping[int, ColumnRow],
    attributes: Mapping[int, Attribute],
    certain: Collection[int],
) -> list[int] | None:
    """Return the rising numbers with the highest score; on a tie the highest, or the lowest of those not in use.

    `certain` are from `_certain`.
    """
    names = frozenset(column.name for column in columns)
    lost = float("-inf")
    scores = [[0.0] + [lost] * len(columns)]
    taken: list[list[bool]] = [[False] * (len(columns) + 1)]
    for number in numbers:
        before, row, marks = scores[-1], [], []
        for i in range(len(columns) + 1):
            without = before[i] - _missed(number, known, attributes, certain, more=i < len(columns))
            with_ = before[i - 1] + _score(columns[i - 1], number, known, attributes, names) if i else lost
            row.append(max(without, with_))
            known_somewhere = number in known or number in attributes
            marks.append(with_ > lost and (with_ > without or (with_ == without and known_somewhere)))
        scores.append(row)
        taken.append(marks)
    if scores[-1][-1] == lost:
        return None
    chain: list[int] = []
    i = len(columns)
    for at in range(len(numbers), 0, -1):
        if i and taken[at][i]:
            chain.append(numbers[at - 1])
            i -= 1
    return chain[::-1]


def _certain(known: Mapping[int, ColumnRow], attributes: Mapping[int, Attribute]) -> set[int]:
    """The numbers of columns that exist, are published, and are not taken for others'.

    One that was first seen when the catalog was ahead may be another's, of a number that was dropped just below it (see
    `_renumbered`).
    """
    dropped = _dropped_unseen(known, attributes)
    certain: set[int] = set()
    for number, attribute in attributes.items():
        below = max((other for other in known if other < number), default=0)
        is_another = number in known and any(below < other < number for other in dropped)
        if attribute.name is not None and not (attribute.unlisted or attribute.generated or is_another):
            certain.add(number)
    return certain


def _missed(
    number: int,
    known: Mapping[int, ColumnRow],
    attributes: Mapping[int, Attribute],
    certain: Collection[int],
    *,
    more: bool,
) -> int:
    """Return the cost of the message lacking this column.

    If the message has `more` columns, with higher numbers, this one existed, too: it was dropped before it was seen, or
    it is not published.
    """
    row, attribute = known.get(number), attributes.get(number)
    exists = attribute is not None and attribute.name is not None
    missed = _MISSED if number in certain else _NOT_LISTED
    if row is not None and row.state == "live":
        return missed if exists else 0 if attributes else _OTHER_NAME // 2
    if row is None and more and attribute is not None:
        return missed if exists else _UNSEEN
    return 0


def _score(
    column: Column,
    number: int,
    known: Mapping[int, ColumnRow],
    attributes: Mapping[int, Attribute],
    names: frozenset[str],
) -> int:
    """Return how well a column of the message matches a number."""
    row, attribute = known.get(number), attributes.get(number)
    was = row if row is not None and row.state != "gone" else None
    exists = attribute is not None and attribute.name is not None
    settled = attribute is not None and attribute.settled
    if not exists and (settled or (row is not None and row.state == "gone")):
        return 2 * _IMPOSSIBLE  # a dropped column never returns
    if settled:
        return _CERTAIN if _same_name(column, attribute) and _same_type(column, attribute) else _IMPOSSIBLE
    score = _NAME * _same_name(column, was) + _TYPE * (_same_type(column, was) + _same_type(column, attribute))
    score += _NAME_NOW * _same_name(column, attribute)
    if score >= _NAME:
        return score
    if was is not None and was.state == "live":
        return score + (_OTHER_NAME if exists or not attributes else _DROPPED_SINCE if score else _UNLIKELY)
    if attribute is None:
        return _IMPOSSIBLE if attributes else 0  # the catalog has every number that was ever used
    unlikely = row is not None or (exists and (attribute.name in names or not score))
    # renamed or dropped since; on a tie the first, because numbers are assigned in order
    return _UNLIKELY if unlikely else _SINCE


def _same_name(column: Column, other: ColumnRow | Attribute | None) -> bool:
    return other is not None and other.name == column.name


def _same_type(column: Column, other: ColumnRow | Attribute | None) -> bool:
    if other is None or other.name is None:  # a dropped column has no type
        return False
    return (other.type_oid, other.typmod) == (column.type_oid, column.typmod)


def _match(
    column: Column,
    number: int,
    known: Mapping[int, ColumnRow],
    attributes: Mapping[int, Attribute],
    left: Sequence[ColumnRow],
    names: frozenset[str],
    unseen: bool,
) -> Match:
    """Match a column with its number.

    `left` are live columns that the message lacks and that may have been dropped since it; `names` the message's names;
    `unseen` is from `_unseen`.
    """
    row, attribute = known.get(number), attributes.get(number)
    exists = attribute is not None and attribute.name is not None
    type_ = (column.type_oid, column.typmod)
    doubtful = False
    if attribute is not None and attribute.settled:
        pass
    elif attribute is not None and (row is None or row.state == "gone"):
        # it was added after the other was dropped; or it is the other, which is dropped later
        same = next((other for other in left if other.name == column.name), None)
        decided = same is None or (same.type_oid, same.typmod) != type_ == (attribute.type_oid, attribute.typmod)
        doubtful = not decided or (exists and unseen)
    elif row is not None and row.state == "live" and row.name != column.name and not exists:
        # it was renamed, then dropped; or it is another, added in its place, then renamed
        others = (
            a for a in attributes.values() if a.attnum not in known and a.name is not None and a.name not in names
        )
        doubtful = any((a.type_oid, a.typmod) == type_ for a in others)
    return Match(column, number, row, attribute if exists else None, doubtful)


def _unseen(chosen: Sequence[int], known: Mapping[int, ColumnRow], attributes: Mapping[int, Attribute]) -> list[bool]:
    """Whether each number may be another column's, of the same name, that came unseen and was dropped since."""
    dropped = _dropped_unseen(known, attributes)
    return [any(last < number < own for number in dropped) for last, own in zip([0, *chosen], chosen, strict=False)]


def _dropped_unseen(known: Mapping[int, ColumnRow], attributes: Mapping[int, Attribute]) -> list[int]:
    """The numbers of columns that the catalog alone knows, as dropped: perhaps after the message."""
    return [a.attnum for a in attributes.values() if a.name is None and not a.settled and a.attnum not in known]


def _renumbered(row: ColumnRow, attributes: Mapping[int, Attribute], others: set[int]) -> ColumnRow:
    """Correct the number of a column that the message lacks, if that number is in use in the catalog.

    The column was first seen when the catalog was already ahead: the column had been dropped there, and another one of
    its name been added. So it got the later column's number. Its own is that of a dropped column that was never seen.
    Not so if that number is settled: then it is the column's own, which is not published now.
    `others` are the numbers of other columns.
    """
    attribute = attributes.get(row.attnum)
    if row.state != "live" or attribute is None or attribute.name is None or attribute.settled:
        return row
    below = max((number for number in others if number < row.attnum), default=0)
    dropped = [number for number in attributes if below < number < row.attnum and attributes[number].name is None]
    if dropped:
        return replace(row, attnum=dropped[0])
    return row if attribute.name == row.name else without_number(row, others)
