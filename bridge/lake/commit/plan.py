"""Plans how a net effect gets into a keyed table: values that say what to commit, and a decision without I/O.

`commits` gives the ways that may do, the one with the least work first. A way that finds other rows in the table than
it relies on commits nothing, and the next one is tried (see `bridge.lake.commit.execute`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pgbridge.bridge.effects.row_places import can_be_key
from pgbridge.bridge.lake.commit.key_condition import key_condition
from pgbridge.bridge.lake.commit.merge import Clauses
from pgbridge.bridge.targets.location import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from pgbridge.bridge.effects.net_effect import NetEffect
    from pgbridge.bridge.lake.commit.conflicts import KeyedTarget
    from pgbridge.bridge.lake.table_facts import TableFacts

Work = Literal["tiny", "small", "keys", "large", "copy"]
"""How much a commit computes. Small: neither the source nor what is shuffled of the target is large. Tiny: source and
target have at most some thousand rows. Keys: as small, and the target's rows are found by a `key_condition`. Copy: many
rows come from one file, which tasks share."""

SMALL_ROWS: Final = 50_000
"""Up to this many rows are small."""

BROADCAST_ROWS: Final = 500_000
"""Up to this many keys of a batch are broadcast to the target's rows; beyond, Spark sorts both sides."""

_BROADCAST_BYTES: Final = 128 << 20
_BROADCAST_ROW_BYTES: Final = 4 << 20
"""Rows that are larger, on average, are not broadcast: Spark would hold several copies of all of them."""

LARGE_BYTES: Final = 128 << 20
"""Below this size deletion vectors save little: with a million rows in 48 MB a commit takes as long either way."""

_PLACES_BYTES: Final = 2 << 20
"""The same if the places of rows are kept: to write a million rows of 4 MB anew takes 2 s of CPU time, 130 by their
places 0.4."""

_SMALL_BYTES: Final = 64 << 20
"""A table up to this size is not large, even if all of it is shuffled."""

_FILES: Final = 4
"""With more files than this, Delta is told the keys' ranges. Their constants make Spark compile the query each time,
which takes longer than to read a few files."""

MOST_FILES: Final = 2
"""A MERGE can skip untouched files, so larger tables, or those of more files, use MERGE."""

MOST_KEYS: Final = 5_000
MOST_KEY_BYTES: Final = 512 << 10
"""Larger batches use MERGE. Delta's log has the condition, too, which is about twice as long as the keys."""

_TINY_ROWS: Final = 2_500
"""More rows than this, of the source or the target, are not tiny."""
_TINY_BYTES: Final = 256 << 10
"""A target whose files are larger is not tiny."""
_ROW_BYTES: Final = 200  # on the server's disk, for want of a better guess


@dataclass(frozen=True, slots=True)
class Append:
    """Append rows that begin in the batch; the table must not have one of their keys."""

    work: Work


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace all rows of a small table by what the effects make of them; rows that begin must not be there.

    Attributes:
        tiny: The table and the effects are tiny: its rows may be kept.
    """

    tiny: bool


@dataclass(frozen=True, slots=True)
class ReplaceAt:
    """Delete rows by their places, which are kept, and append what they became."""


@dataclass(frozen=True, slots=True)
class ReplaceWhere:
    """Delete the rows that meet a condition, and write what they became: each row that effects are on, and no other.

    Attributes:
        condition: It is met by the rows with the effects' keys.
    """

    condition: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Run a MERGE.

    Attributes:
        ranges: Delta is told the keys' ranges, so that it skips files.
    """

    clauses: Clauses
    work: Work
    ranges: bool


Commit: TypeAlias = Append | Replace | ReplaceAt | ReplaceWhere | Merge


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a commit whose outcome is known.

    Attributes:
        state: "made"; "left out" by Delta, because the table has the batch already (where that is not told apart, it is
            "made"); or "refused": the table has other rows than the commit relies on, and nothing is committed.
        met: If effects did not meet the rows that they expect: the version of the table whose rows they met.
    """

    state: Literal["made", "left out", "refused"]
    met: int | None = None


@dataclass(frozen=True, slots=True)
class Abilities:
    """What can be done where Spark and the table are.

    Attributes:
        transactions: A transaction of Delta's can be begun here.
        places: Data files can be read here, so that the places of rows can be kept.
        conditions: A long condition goes to Spark once, and does not come back with each plan.
    """

    transactions: bool
    places: bool
    conditions: bool


def wants_vectors(facts: TableFacts, *, places: bool) -> bool:
    """Whether a table shall have deletion vectors before rows of it change.

    Without them Delta writes each touched file anew: with random keys, a thousand changes touch every file of a table.
    With them a commit marks the rows as deleted. That takes Delta more steps, which small tables need not pay for,
    except where their rows' places are kept.
    """
    if places and facts.may_have_vectors and facts.size_bytes >= _PLACES_BYTES:
        return True
    return facts.vectors_undecided and facts.size_bytes >= LARGE_BYTES


def commits(
    effect: NetEffect, keyed: KeyedTarget, facts: Callable[[], TableFacts], abilities: Abilities
) -> Iterator[Commit]:
    """Yield the ways to commit effects, the last of which is an append or a MERGE.

    Args:
        effect: At least one effect; clear.
        facts: Asked for only if rows of the table may change.
    """
    clauses = Clauses.of(effect, overwrite=keyed.overwrite)
    rows = len(effect.table)
    if clauses.raises and not (clauses.deletes or clauses.updates):
        yield Append(work_of_append(rows))  # whoever streams from a table that only grows goes on
        return
    table = facts()
    if abilities.places and table.vectors and go_by_places(effect, keyed):
        yield ReplaceAt()
    if abilities.conditions and table.vectors and (condition := _condition(effect, keyed)) is not None:
        yield ReplaceWhere(condition)
    tiny = is_tiny(rows, table.size_bytes)
    if abilities.transactions and replaceable(table) and _is_simple(effect, overwrite=keyed.overwrite):
        yield Replace(tiny)
    # with an INSERT clause, the target's touched files are shuffled, too
    small = rows <= SMALL_ROWS and not (clauses.inserts and table.size_bytes > _SMALL_BYTES)
    yield Merge(clauses, "tiny" if tiny else "small" if small else "large", ranges=table.files > _FILES)


def _condition(effect: NetEffect, keyed: KeyedTarget) -> str | None:
    """The condition that the key is that of an effect; None if there is none, or none that is short enough."""
    if len(keyed.key) != 1 or len(effect.table) > MOST_KEYS:
        return None
    keys = effect.table[f"match_{keyed.key[0]}"].drop_null()
    return key_condition(quoted(keyed.key_names[0]), keys) if keys.nbytes <= MOST_KEY_BYTES else None


def go_by_places(effect: NetEffect, keyed: KeyedTarget) -> bool:
    """Whether effects can be committed by the places of rows, in a table with deletion vectors."""
    keys = len(keyed.key) == 1 and can_be_key(keyed.columns[keyed.key[0]].type.arrow)
    whole = not any(name.startswith("unchanged_") for name in effect.table.column_names)
    beside = keyed.hides_metadata or keyed.keeps_beside
    return keys and whole and not beside and _is_simple(effect, overwrite=keyed.overwrite)


def replaceable(facts: TableFacts) -> bool:
    """Whether it takes less to write the table anew than to find the files to change."""
    return facts.plain and facts.files <= MOST_FILES and facts.size_bytes <= _SMALL_BYTES


def _is_simple(effect: NetEffect, *, overwrite: bool) -> bool:
    """Whether they are few, a row that is missing changes nothing, and one that is there must not be if it begins."""
    shape = effect.shape
    overwrites = overwrite and (shape.new or shape.brief)
    return fits_broadcast(effect.table, SMALL_ROWS) and not (shape.leaves or shape.reborn or overwrites)


def fits_broadcast(rows: pa.Table, most: int = BROADCAST_ROWS) -> bool:
    """Whether Spark can hold all of the rows in memory, several times."""
    return len(rows) <= most and bool(rows.nbytes <= min(_BROADCAST_BYTES, _BROADCAST_ROW_BYTES * len(rows)))


def is_tiny(rows: int, table_bytes: int) -> bool:
    """Whether so many effects on a table of this size are tiny."""
    return rows <= _TINY_ROWS and table_bytes <= _TINY_BYTES


def work_of_append(rows: int) -> Work:
    """How much it is to append so many rows."""
    return "tiny" if rows <= _TINY_ROWS else "small" if rows <= SMALL_ROWS else "large"


def work_of_copy(table_bytes: int) -> Work:
    """How much it is to copy a table of this size on the server's disk."""
    work = work_of_append(table_bytes // _ROW_BYTES)
    return "copy" if work == "large" else work
