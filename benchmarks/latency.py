"""How long a commit takes to be durable in Delta, from samples of two LSNs: the publisher's and the bridge's.

Both are read by the same clock. What had committed when the publisher's WAL ended at an LSN is durable as soon as the
origin's LSN has passed it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Sample(NamedTuple):
    """An LSN and when it was read."""

    at_s: float
    lsn: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """The times from commit to durable of a part of a run.

    Attributes:
        seconds: One for each sample, in the order of the commits; infinite if it was not durable when watching ended,
            0 if it was when the sample was taken.
    """

    seconds: tuple[float, ...]

    def percentile(self, percent: float) -> float:
        """Return the least latency that so many percent do not exceed (nearest rank)."""
        ordered = sorted(self.seconds)
        return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def latencies(commits: Sequence[Sample], durable: Sequence[Sample]) -> Latencies:
    """Return the latency of each of the publisher's samples.

    Args:
        commits: The publisher's LSNs, in order.
        durable: The origin's LSNs, in order.
    """
    lsns = [sample.lsn for sample in durable]
    found = []
    for at_s, lsn in commits:
        place = bisect_left(lsns, lsn)
        found.append(max(0.0, durable[place].at_s - at_s) if place < len(durable) else math.inf)
    return Latencies(tuple(found))


def lag_s(at_s: float, commits: Sequence[Sample], durable: Sequence[Sample]) -> float:
    """Return the age, at a time, of the oldest commit that was not durable then; 0 if all were.

    Args:
        at_s: The time.
        commits: The publisher's LSNs, in order.
        durable: The origin's LSNs, in order.
    """
    known = bisect_right([sample.at_s for sample in durable], at_s)
    durable_lsn = durable[known - 1].lsn if known else 0
    place = bisect_right([sample.lsn for sample in commits], durable_lsn)
    return max(0.0, at_s - commits[place].at_s) if place < len(commits) else 0.0
