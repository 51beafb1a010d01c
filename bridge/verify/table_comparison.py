"""Compares one table: sums by bucket first, then single rows of buckets that differ.

A row that is all that differs in its bucket is known by the difference of the sums, if its key is of integers: it is
read by its key, on both sides. Otherwise the rows of the buckets that differ are read, which takes as long as the sums.
"""

from __future__ import annotations

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from pgbridge.bridge.verify.comparison import (
    Buckets,
    Difference,
    Shown,
    differences,
    differing,
    explained,
    lone_keys,
    rows_in,
)
from pgbridge.bridge.verify.tables import BUCKET_BITS, FINE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pgbridge.bridge.verify.comparison import Verdict
    from pgbridge.bridge.verify.source_table import SourceTable
    from pgbridge.bridge.verify.target import TargetVersion
    from pgbridge.bridge.verify.window import TableWindow, Texts

_Found = TypeVar("_Found")

_ROWS_AT_ONCE: Final = 300_000
"""The most rows, in buckets that differ, that are compared one by one. More mean that much of the table differs."""


@dataclass(slots=True)
class TableComparison:
    """The comparison of one table.

    Attributes:
        source: The table under the source's snapshot.
        window: Its changes between the two sides' LSNs.
        target: The Delta table's version.
        verdict: Gets what is found.
        shown: How many differences are shown.
        progress: See `Verification`.
    """

    source: SourceTable
    window: TableWindow
    target: TargetVersion
    verdict: Verdict
    shown: int
    progress: Callable[[str, float, float], None]

    def run(self, *, ahead: bool) -> None:
        """Compare; `ahead`: Delta has the window's changes, and the snapshot does not."""
        table, verdict = self.source.table, self.verdict
        # Delta that is behind has none of these rows yet: only their keys are needed
        rows = self.window.rows if ahead else dict.fromkeys(self.window.rows)
        ended = self.source.ended(self.window, rows) if rows else {}
        touched = {key_hash: key for key, (key_hash, _) in ended.items()}
        came = Counter(self.source.hashes(self.window.columns, self.window.inserted))
        went = Counter(self.source.hashes(self.window.columns, self.window.removed))
        if not ahead:
            came, went = went, came
            verdict.left_out = len(touched)
        extent = self.source.extent()
        total = float(extent.table_bytes)
        done = 0.0

        def read(more: float) -> None:
            nonlocal done
            done += more
            self.progress(table.relation, done, total)

        def both(within: Collection[int] = (), bits: int = BUCKET_BITS) -> tuple[Buckets, Buckets]:
            in_source, there = self._both(
                lambda: self.source.buckets(extent, touched, read, within, bits),
                lambda: self.target.buckets(touched, within, bits),
            )
            return self._moved(in_source, came, went, within, bits), there

        expected, actual = both()
        verdict.rows = sum(count for count, *_ in expected.values())
        buckets, bits = differing(expected, actual), BUCKET_BITS
        keys: Sequence[tuple[int, ...]] | None = lone_keys(buckets, expected, actual) if table.numbers else []
        if keys and self._located(buckets, expected, actual, keys, touched):
            buckets = []
        elif buckets:
            keys = None
        if sum(rows_in(buckets, expected, actual)) > _ROWS_AT_ONCE:
            done, bits = 0.0, FINE_BITS
            expected, actual = both(buckets, bits)
            buckets = differing(expected, actual)
        looked_into = _first(buckets, expected, actual)
        verdict.partly = len(looked_into) < len(buckets)
        if looked_into:
            in_source, there = self._both(
                lambda: self.source.rows(extent, looked_into, touched, bits),
                lambda: self.target.rows(looked_into, touched, bits),
            )
            in_source.update(self._only(came, looked_into, bits))
            in_source.subtract(self._only(went, looked_into, bits))
            verdict.differences += differences(+in_source, there, keyed=table.keyed)
        if ahead and touched:
            wanted = Counter((key, hashed) for key, hashed in ended.values() if hashed is not None)
            verdict.rows += sum(wanted.values())
            verdict.differences += differences(wanted, self.target.of_keys(touched), keyed=table.keyed)
        if verdict.differences:
            verdict.shown = self._shown(verdict.differences[: self.shown], keys, touched)

    @staticmethod
    def _both(source: Callable[[], _Found], target: Callable[[], _Found]) -> tuple[_Found, _Found]:
        """Ask both sides at the same time."""
        with ThreadPoolExecutor(1, "verify") as pool:
            there = pool.submit(target)
            return source(), there.result()

    def _located(
        self,
        buckets: Sequence[int],
        expected: Buckets,
        actual: Buckets,
        keys: Sequence[tuple[int, ...]],
        touched: Collection[str],
    ) -> bool:
        """Whether the rows with some keys are all that differs; they are read by their keys."""
        in_source, there = (
            Counter({row: count for row, count in rows.items() if row[0] not in touched})
            for rows in self._both(lambda: self.source.with_keys(keys), lambda: self.target.with_keys(keys))
        )
        if not explained(buckets, expected, actual, in_source, there, self.source.table.bucket_of):
            return False
        self.verdict.differences += differences(in_source, there, keyed=self.source.table.keyed)
        return True

    def _only(
        self, rows: Counter[tuple[str, int]], buckets: Collection[int], bits: int = BUCKET_BITS
    ) -> Counter[tuple[str, int]]:
        wanted = set(buckets)
        return Counter(
            {row: count for row, count in rows.items() if self.source.table.bucket_of(row[1], bits) in wanted}
        )

    def _moved(
        self,
        buckets: Buckets,
        came: Counter[tuple[str, int]],
        went: Counter[tuple[str, int]],
        within: Collection[int],
        bits: int,
    ) -> Buckets:
        """Return the buckets with rows that came and without those that went."""
        moved = dict(buckets)
        for rows, sign in ((came, 1), (went, -1)):
            for (_, hashed), number in (self._only(rows, within) if within else rows).items():
                bucket = self.source.table.bucket_of(hashed, bits)
                count, total, *numbers = moved.get(bucket, (0, 0))
                moved[bucket] = count + sign * number, total + sign * number * hashed, *numbers
        return {bucket: sums for bucket, sums in moved.items() if any(sums)}

    def _shown(
        self, differing: Sequence[Difference], numbers: Sequence[tuple[int, ...]] | None, touched: Mapping[str, Texts]
    ) -> list[Shown]:
        """Return the differences as they are shown.

        Args:
            numbers: Keys among which untouched rows are that differ; None if that is not known.
            touched: Touched keys, by their hashes: what the source has there is what the stream says.
        """
        keys = [difference.key for difference in differing]
        ended = [touched[key] for key in keys if key in touched]
        untouched = [key for key in keys if key not in touched]
        among = self._among(numbers, ended)
        streamed = {key: row for key in ended if (row := self.window.rows[key]) is not None}
        there, here = self._both(
            lambda: dict(self.source.texts(untouched, numbers or ())) if untouched else {},
            lambda: dict(self.target.texts(keys, among)),
        )
        there.update(self.source.ended_texts(self.window, streamed))
        names = [column.name for column in self.source.table.columns]
        key_names = {column.name for column in self.source.table.identifying}
        shown = []
        for difference in differing:
            source, target = there.get(difference.key), here.get(difference.key)
            values = source or target or [(None, None)] * len(names)
            key = {name: text for name, (_, text) in zip(names, values, strict=True) if name in key_names}
            columns = {}
            if difference.outcome == "changed" and source is not None and target is not None:
                columns = {
                    name: (was_shown, is_shown)
                    for name, (was, was_shown), (is_, is_shown) in zip(names, source, target, strict=True)
                    if was != is_ and name not in key_names
                }
            shown.append(Shown(difference.outcome, key, columns))
        return shown

    def _among(self, numbers: Sequence[tuple[int, ...]] | None, ended: Sequence[Texts]) -> Sequence[tuple[int, ...]]:
        """Keys of `VerifiedTable.numbers` among which all rows are; none if that is not known."""
        table = self.source.table
        if numbers is None or not table.numbers:
            return ()
        at = [table.key.index(column.name) for column in table.numbers]
        return [*numbers, *(tuple(int(key[i] or 0) for i in at) for key in ended)]


def _first(buckets: Sequence[int], expected: Buckets, actual: Buckets) -> Sequence[int]:
    """Return as many buckets as may be looked into, row by row; at least one."""
    sums = itertools.accumulate(rows_in(buckets, expected, actual))
    return buckets[: max(1, sum(rows <= _ROWS_AT_ONCE for rows in sums))]
