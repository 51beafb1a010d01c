"""Compares the hashes of both sides, which buckets and rows of them differ; and says what that means for a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


Buckets = dict[int, tuple[int, ...]]
"""By bucket, the number of rows, the sum of their hashes, and the sums of the numbers in their keys, modulo 2^64."""

_NOTHING: Final = (0, 0)
_MODULUS: Final = 1 << 64  # of Spark's sums of bigint, without ANSI mode

Outcome = Literal["missing", "extra", "changed"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs.

    Attributes:
        outcome: It is missing in Delta; Delta has it and the source does not; or both have it, with other values.
        key: The hash of its key; for a table without keys, of its row.
        rows: How many such rows there are.
    """

    outcome: Outcome
    key: str
    rows: int = 1


@dataclass(slots=True)
class Shown:
    """A difference for people: the key, and what it has in the columns that differ.

    Attributes:
        outcome: See `Difference`.
        key: The key's values by column; all values of a row without a key.
        columns: By column, the source's value and Delta's; only of a changed row.
    """

    outcome: Outcome
    key: Mapping[str, str | None]
    columns: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)


def bucket_sums(count: int, hashes: int, *numbers: int) -> tuple[int, ...]:
    """Return a bucket's entry in `Buckets`."""
    return count, hashes, *(number % _MODULUS for number in numbers)


def differing(source: Buckets, target: Buckets) -> list[int]:
    """The buckets that are not the same on both sides, in order."""
    return sorted(bucket for bucket in source.keys() | target.keys() if source.get(bucket) != target.get(bucket))


def rows_in(buckets: Iterable[int], source: Buckets, target: Buckets) -> Iterator[int]:
    """Yield how many rows each bucket has, on the side that has more."""
    return (max(source.get(bucket, _NOTHING)[0], target.get(bucket, _NOTHING)[0]) for bucket in buckets)


def lone_keys(buckets: Iterable[int], source: Buckets, target: Buckets) -> list[tuple[int, ...]]:
    """The keys of the rows that differ, if each is the only one in its bucket; otherwise some are not theirs."""
    keys: set[tuple[int, ...]] = set()
    for bucket in buckets:
        count, _, *numbers = _less(source.get(bucket, _NOTHING), target.get(bucket, _NOTHING))
        if abs(count) == 1:
            keys.add(tuple(_signed(count * number) for number in numbers))
    return sorted(keys)


def explained(
    buckets: Iterable[int],
    source: Buckets,
    target: Buckets,
    in_source: Counter[tuple[str, int]],
    there: Counter[tuple[str, int]],
    bucket_of: Callable[[int], int],
) -> bool:
    """Whether some rows are the reason why buckets differ, and the whole reason.

    Args:
        target: Delta's.
        in_source: How many rows the source has of each, by the hashes of its key and of itself.
        there: The same of Delta.
        bucket_of: Tells a hash's bucket.
    """
    left = defaultdict(
        lambda: [0, 0],
        {bucket: list(_less(source.get(bucket, _NOTHING), target.get(bucket, _NOTHING))[:2]) for bucket in buckets},
    )
    for rows, sign in ((in_source, -1), (there, 1)):
        for (_, hashed), number in rows.items():
            sums = left[bucket_of(hashed)]
            sums[0] += sign * number
            sums[1] += sign * number * hashed
    return not any(map(any, left.values()))


def _less(minuend: tuple[int, ...], subtrahend: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip_longest(minuend, subtrahend, fillvalue=0))


def _signed(number: int) -> int:
    """Return the bigint that a number is, modulo 2^64."""
    return (number + _MODULUS // 2) % _MODULUS - _MODULUS // 2


def counts(rows_that_differ: Iterable[Difference]) -> dict[str, int]:
    """How many rows there are of each outcome."""
    rows = Counter[str]()
    for difference in rows_that_differ:
        rows[difference.outcome] += difference.rows
    return dict(sorted(rows.items()))


def said(rows: Mapping[str, int], *, partly: bool) -> str:
    """The same in words; `partly` if they are not all."""
    each = ", ".join(f"{number:,} {outcome}" for outcome, number in rows.items())
    return "at least " * partly + (each or "some rows")


def differences(source: Counter[tuple[str, int]], target: Counter[tuple[str, int]], *, keyed: bool) -> list[Difference]:
    """The rows that are not the same on both sides, by the hashes of their keys and of themselves.

    Args:
        source: How many rows the source has of each.
        target: The same of Delta.
        keyed: A row of another hash with the same key is a changed one; without keys there are no changed ones.
    """
    missing, extra = source - target, target - source
    lost: dict[str, int] = defaultdict(int)
    more: dict[str, int] = defaultdict(int)
    for counted, by_key in ((missing, lost), (extra, more)):
        for (key, _), rows in counted.items():
            by_key[key] += rows
    differing_rows: list[Difference] = []
    for key in sorted(lost.keys() | more.keys()):
        changed = min(lost.get(key, 0), more.get(key, 0)) if keyed else 0
        counts: tuple[tuple[Outcome, int], ...] = (
            ("changed", changed),
            ("missing", lost.get(key, 0) - changed),
            ("extra", more.get(key, 0) - changed),
        )
        differing_rows += [Difference(outcome, key, rows) for outcome, rows in counts if rows]
    return differing_rows


@dataclass(slots=True)
class Verdict:
    """The result for one table.

    Attributes:
        relation: `namespace.name`.
        rows: How many rows the source has, without those that are left out.
        differences: The rows that differ.
        shown: Some of them, for people.
        left_out: How many keys were not compared, because Delta does not have their last changes yet.
        partly: More buckets differ than were looked into: `differences` are not all.
        why: Why the table could not be verified; empty if it was.
        seconds: How long it took.
        repaired: The rows that differed were repaired; with `partly`, those of `differences`.
        unrepaired: Why they were not; empty if they were, or if it was not asked for.
        caveat: Why there may be differences that the configuration wants.
        left_out_columns: Columns that were not compared, because they are VARIANT.
        changelog: It has a changelog, which cannot be verified by its nature; `why` says so.
        version: The Delta table's version that was compared; None if none was.
    """

    relation: str
    path: str
    rows: int = 0
    differences: list[Difference] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    left_out: int = 0
    partly: bool = False
    why: str = ""
    seconds: float = 0.0
    repaired: bool = False
    left_out_columns: tuple[str, ...] = ()
    unrepaired: str = ""
    caveat: str = ""
    changelog: bool = False
    version: int | None = None

    @property
    def is_equal(self) -> bool:
        """Whether all of the table was compared, and nothing differs, or does not any more."""
        whole = not (self.why or self.left_out or self.partly or self.caveat or self.left_out_columns)
        return whole and (self.repaired or not self.differences)
