"""Compares the hashes of both sides: which buckets differ, and which rows of them are missing, extra or changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridge.verify.source import Buckets

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


def differing(source: Buckets, target: Buckets) -> list[int]:
    """The buckets that are not the same on both sides, in order."""
    return sorted(bucket for bucket in source.keys() | target.keys() if source.get(bucket) != target.get(bucket))


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
    found: list[Difference] = []
    for key in sorted(lost.keys() | more.keys()):
        changed = min(lost.get(key, 0), more.get(key, 0)) if keyed else 0
        counts: tuple[tuple[Outcome, int], ...] = (
            ("changed", changed),
            ("missing", lost.get(key, 0) - changed),
            ("extra", more.get(key, 0) - changed),
        )
        found += [Difference(outcome, key, rows) for outcome, rows in counts if rows]
    return found
