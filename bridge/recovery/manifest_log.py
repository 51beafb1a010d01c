"""What the commits to the table of subscriptions say of the rows that they append, so that nobody has to query it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from pgbridge.bridge.lake.log.commit_info import KEEP_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pgbridge.bridge.lake.table_position import Entry

_ROWS: Final = "pgbridge_rows"
"""What a commit's userMetadata has in JSON: `Last` of each origin that it appends rows to."""

GENERATION_BITS: Final = 32
"""A number is the generation of the catalog, and a count within it."""


class Last(NamedTuple):
    """The last row of an origin.

    Attributes:
        number: Its number.
        slot_name: Its slot.
        claimed_by: Of the last claim; None if there was none, or it is not there any more.
    """

    number: int
    slot_name: str
    claimed_by: str | None = None

    @property
    def generation(self) -> int:
        """How many recoveries it comes after."""
        return self.number >> GENERATION_BITS


NO_ROW: Final = Last(0, "")


def user_metadata(rows: Mapping[str, Last]) -> str:
    """The userMetadata of a commit that appends these rows, by origin."""
    return json.dumps({_ROWS: rows})


def told_since(entries: Sequence[Entry], known: int | None) -> tuple[bool, list[dict[str, Last]]] | None:
    """What commits say of their rows, the earliest first: all since a version, and that they are; or all there are.

    Returns:
        None if one does not tell, or they do not go back so far. All of them count: who has not seen a claim may commit
        after it.
    """
    told: list[dict[str, Last]] = []
    for entry in entries:
        if entry.version == known:
            return True, told[::-1]
        rows = _rows_told(entry)
        if rows is None:
            return None
        told.append(rows)
        if entry.version == 0:  # a table without any row may be somebody else's
            return (False, told[::-1]) if any(told) else None
    return None


def folded(last: Mapping[str, Last], told: Iterable[Mapping[str, Last]]) -> dict[str, Last]:
    """The last rows with those of later commits: the greatest number counts, whichever commit came first."""
    rows_now = dict(last)
    for rows in told:
        for origin, row in rows.items():
            before = rows_now.get(origin, NO_ROW)
            # claims are in their order: Delta refuses an earlier one
            rows_now[origin] = max(row, before, key=_number)._replace(claimed_by=row.claimed_by or before.claimed_by)
    return rows_now


def _number(row: Last) -> int:
    return row.number


def _rows_told(entry: Entry) -> dict[str, Last] | None:
    """What a commit says of its rows; None if it does not tell: one of an earlier pgbridge, or another writer's."""
    try:
        rows = json.loads(entry.user_metadata or "{}").get(_ROWS)
        if rows is not None:
            return {origin: Last(*last) for origin, last in rows.items()}
    except (ValueError, TypeError, AttributeError):  # another writer's
        return None
    return {} if entry.operation in KEEP_ROWS else None
