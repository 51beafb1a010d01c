"""Verifies a subscription: the source under an exported snapshot against Delta after a batch, as of one LSN.

A temporary slot exports a snapshot with its LSN P. Delta is compared as of the origin's LSN E. While a daemon runs, E
is waited for until it is not before P; the stream from P to E says which keys are touched in between and how their rows
end. Without a daemon E mostly lies before P; then what the subscription's slot would send is peeked at, and the keys in
it are left out: Delta does not have these changes yet. Neither pauses anything.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bridge.apply.delta.delta_table import existing_schema, read_target_schema
from bridge.apply.delta.point_in_time import TableAt, version_at
from bridge.errors import BridgeError, TargetError, VerifyError
from bridge.sync.copy_reader import key_of
from bridge.track.catalog_rows import FOLLOWS_STREAM
from bridge.track.refresh import sync_name
from bridge.verify.canonical_record import row_hash
from bridge.verify.comparison import Difference, Shown, differences, differing
from bridge.verify.repair import repair
from bridge.verify.source import Source
from bridge.verify.tables import BUCKET_BITS, FINE_BITS, VerifiedColumn, VerifiedTable
from bridge.verify.target import TargetVersion, hashing_session
from bridge.verify.window import TableWindow, Window
from protocol.values.types import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from bridge.config import Subscription
    from bridge.published import Published
    from bridge.track.catalog import Catalog
    from bridge.track.catalog_rows import RelRow
    from bridge.verify.source import Buckets, Pace
    from protocol.lsn import Lsn

_LOOK_S: Final = 0.25
_ROWS_AT_ONCE: Final = 300_000
"""So many rows in buckets that differ are compared one by one; more say that much of the table differs."""


@dataclass(slots=True)
class Verdict:
    """The result for one table.

    Attributes:
        relation: `namespace.name`.
        path: Its Delta table.
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


@dataclass(slots=True)
class Verification:
    """One verification of a subscription's tables.

    Attributes:
        spark: A session of its own.
        catalog: The subscription's state.
        subscription: The subscription.
        published: What is published now.
        running: Whether a daemon applies the stream meanwhile.
        pace: Limits the rate of reading the source.
        patience_s: How long to wait for transactions that are open at the start, and then until the daemon has applied
            what the snapshot has.
        shown: How many differences of a table are shown.
        repaired: Repair what differs; no daemon may run.
        progress: Called with a table's name, and how many bytes of it were read, of how many.
    """

    spark: SparkSession
    catalog: Catalog
    subscription: Subscription
    published: Published
    running: Callable[[], bool]
    pace: Pace
    patience_s: float
    shown: int
    repaired: bool = False
    progress: Callable[[str, float, float], None] = lambda *_: None

    def run(self, wanted: Callable[[str], bool]) -> tuple[Lsn, list[Verdict]]:
        """Verify the tables that are wanted, by their qualified names.

        Returns:
            The LSN that Delta is compared at, and a verdict for each table.

        Raises:
            VerifyError: Nothing can be verified.
            PublisherError: The server refuses.
        """
        name = f"{self.subscription.name}_verify"
        with Source(
            self.subscription.connection, application_name=name, pace=self.pace, patience_s=self.patience_s
        ) as source:
            after_lsn, end_lsn, app_id, rels = self._delta_lsn(source.lsn)
            chosen = [rel for rel in rels if wanted(rel.qualified_name)]
            tables: list[VerifiedTable] = []
            verdicts: list[Verdict] = []
            for rel in chosen:
                try:
                    tables.append(self._table(source, rel, end_lsn))
                except VerifyError as error:
                    verdicts.append(Verdict(rel.qualified_name, rel.path, why=str(error)))
            unread = source.hold(table.published for table in tables)
            caveat = self._caveat(source)
            window = self._window(source, after_lsn, end_lsn, tables)
            for table in tables:
                verdict = Verdict(table.relation, table.path, left_out_columns=table.left_out, caveat=caveat)
                verdict.why = unread.get(table.published.relid, "") or window.unclear
                verdicts.append(self._verdict(verdict, source, table, window, after_lsn, end_lsn, app_id))
        return end_lsn, sorted(verdicts, key=lambda verdict: verdict.relation)

    def _delta_lsn(self, snapshot_lsn: Lsn) -> tuple[Lsn, Lsn, str, list[RelRow]]:
        """Return the snapshot's LSN, Delta's, the application id and the tables; waits for a daemon that runs."""
        name, until_s = self.subscription.name, time.monotonic() + self.patience_s
        while True:
            with self.catalog.transaction():  # one moment for all of it
                row, lsn, rels = (
                    self.catalog.subscription(name),
                    self.catalog.remote_lsn(name),
                    [*self.catalog.rels(name), *self.catalog.rels(sync_name(name))],
                )
            if row is None or lsn is None:
                raise VerifyError(f'subscription "{name}" has not begun, so it has no tables')
            if lsn >= snapshot_lsn or not self.running():
                return snapshot_lsn, lsn, row.txn_app_id, rels
            if time.monotonic() > until_s:
                raise VerifyError(
                    f'subscription "{name}" has applied the stream up to {lsn}, not yet to the snapshot at '
                    f"{snapshot_lsn}: it was waited for {self.patience_s:g} s",
                    hint="see pgbridge status; verify again once the lag is small, or with a greater --wait",
                )
            time.sleep(_LOOK_S)

    def _table(self, source: Source, rel: RelRow, end_lsn: Lsn) -> VerifiedTable:
        mode = self.subscription.mode_of(rel.qualified_name)
        if mode == "changelog":
            raise VerifyError("it has a changelog, not the table's rows")
        if rel.state not in FOLLOWS_STREAM or rel.lsn > end_lsn:
            raise VerifyError("it is being copied")
        published = self.published.tables.get((rel.namespace, rel.name))
        if published is None:
            raise VerifyError("it is not published any more, or under another name")
        try:
            found = read_target_schema(self.spark, rel.path, mode)
            if found is None:
                existing_schema(self.spark, rel.path)  # says so, and what to do
        except BridgeError as error:
            raise VerifyError(str(error)) from error
        fields = {field.name: field for field in found or ()}
        types = self.published.types([(column.type_oid, column.typmod) for column in published.columns])
        columns = []
        for column, type_ in zip(published.columns, types, strict=True):
            field = fields.get(column.name)
            if field is None or field.arrow is None:
                raise VerifyError(f'its Delta table has no column "{column.name}" that holds the published one')
            columns.append(VerifiedColumn(column.name, type_, field.arrow, field.place))
        return VerifiedTable(
            published,
            rel.path,
            tuple(one for one in columns if one.place is not Place.VARIANT),
            tuple(key_of(published)),
            source.declarations(published.relid),
            mode,
            tuple(one.name for one in columns if one.place is Place.VARIANT),
            row_hash(source.version),
        )

    def _caveat(self, source: Source) -> str:
        if self.subscription.origin != "any":
            return f'origin = "{self.subscription.origin}" leaves out changes of other nodes'
        if self.subscription.publication_definitions is not None:
            return "publication_definitions may leave out changes"
        if source.leaves_out_changes(self.subscription.publications):
            return "a publication leaves out kinds of changes"
        return ""

    def _window(self, source: Source, after_lsn: Lsn, end_lsn: Lsn, tables: Sequence[VerifiedTable]) -> Window:
        keys = {(table.published.namespace, table.published.name): table.key for table in tables}
        names, options = self.subscription.publications, {}
        if self.subscription.origin != "any":
            options["origin"] = self.subscription.origin
        if end_lsn >= after_lsn:
            window = Window(keys, after_lsn, end_lsn)
            window.read(source.changes(end_lsn, names, options))
        else:
            window = Window(keys, end_lsn, after_lsn)
            window.read(source.waiting(self.subscription.slot_name, after_lsn, names, options))
        return window

    def _verdict(
        self,
        verdict: Verdict,
        source: Source,
        table: VerifiedTable,
        window: Window,
        after_lsn: Lsn,
        end_lsn: Lsn,
        app_id: str,
    ) -> Verdict:
        started_s = time.monotonic()
        touched = window.tables.get((table.published.namespace, table.published.name), TableWindow())
        verdict.why = verdict.why or touched.unclear
        if self.subscription.publication_definitions is not None:
            # what the stream says of rows has not passed the definitions' filters, and may be of partitions
            if touched.inserted or touched.removed or (table.published.relkind == "p" and window.others):
                verdict.why = "it changed meanwhile"
            touched = TableWindow(touched.columns, dict.fromkeys(touched.rows))
        if verdict.why:
            return verdict
        at = TableAt(table.published.namespace, table.published.name, table.path, recorded=None, later=False)
        try:
            version = version_at(self.spark, at, end_lsn)
        except TargetError as error:
            verdict.why = error.message
            return verdict
        target = TargetVersion(hashing_session(self.spark), table, version)
        _Comparison(self, source, table, touched, target, verdict).run(
            ahead=end_lsn >= after_lsn and self.subscription.publication_definitions is None
        )
        if self.repaired and verdict.differences:
            try:
                if verdict.caveat:
                    raise VerifyError(verdict.caveat)
                repair(
                    source,
                    target,
                    verdict.differences,
                    subscription=self.subscription,
                    published=self.published,
                    app_id=app_id,
                    lsn=end_lsn,
                )
                verdict.repaired = True
            except BridgeError as error:
                verdict.unrepaired = error.message
        verdict.seconds = time.monotonic() - started_s
        return verdict


@dataclass(slots=True)
class _Comparison:
    """The comparison of one table."""

    verification: Verification
    source: Source
    table: VerifiedTable
    window: TableWindow
    target: TargetVersion
    verdict: Verdict

    def run(self, *, ahead: bool) -> None:
        """Compare; `ahead`: Delta has the window's changes, and the snapshot does not."""
        table, verdict = self.table, self.verdict
        # Delta that is behind has none of these rows yet: only their keys are needed
        rows = self.window.rows if ahead else dict.fromkeys(self.window.rows)
        ended = self.source.ended(table, self.window, rows) if rows else {}
        touched = {key for key, _ in ended.values()}
        came = Counter(self.source.hashes(table, self.window.columns, self.window.inserted))
        went = Counter(self.source.hashes(table, self.window.columns, self.window.removed))
        if not ahead:
            came, went = went, came
            verdict.left_out = len(touched)
        extent = self.source.extent(table)
        total = float(extent.table_bytes)
        done = 0.0

        def read(more: float) -> None:
            nonlocal done
            done += more
            self.verification.progress(table.relation, done, total)

        def both(within: Collection[int] = (), bits: int = BUCKET_BITS) -> tuple[Buckets, Buckets]:
            with ThreadPoolExecutor(1, "verify") as pool:  # the server and Spark work at the same time
                hashed = pool.submit(self.target.buckets, touched, within, bits)
                there = self.source.buckets(table, extent, touched, read, within, bits)
                return self._moved(there, came, went, within, bits), hashed.result()

        expected, actual = both()
        verdict.rows = sum(count for count, _ in expected.values())
        buckets, bits = differing(expected, actual), BUCKET_BITS
        if sum(_rows(buckets, expected, actual)) > _ROWS_AT_ONCE:
            done, bits = 0.0, FINE_BITS
            expected, actual = both(buckets, bits)
            buckets = differing(expected, actual)
        looked_into = _first(buckets, expected, actual)
        verdict.partly = len(looked_into) < len(buckets)
        if looked_into:
            found = self.source.rows(table, extent, looked_into, touched, bits)
            found.update(self._only(came, looked_into, bits))
            found.subtract(self._only(went, looked_into, bits))
            there = self.target.rows(looked_into, touched, bits)
            verdict.differences += differences(+found, there, keyed=table.keyed)
        if ahead and touched:
            wanted = Counter((key, hashed) for key, hashed in ended.values() if hashed is not None)
            verdict.rows += sum(wanted.values())
            verdict.differences += differences(wanted, self.target.of_keys(touched), keyed=table.keyed)
        if verdict.differences:
            verdict.shown = self._shown(verdict.differences[: self.verification.shown])

    def _only(
        self, rows: Counter[tuple[str, int]], buckets: Collection[int], bits: int = BUCKET_BITS
    ) -> Counter[tuple[str, int]]:
        wanted = set(buckets)
        return Counter({one: count for one, count in rows.items() if self.table.bucket_of(one[1], bits) in wanted})

    def _moved(
        self,
        buckets: Buckets,
        came: Counter[tuple[str, int]],
        went: Counter[tuple[str, int]],
        within: Collection[int],
        bits: int,
    ) -> Buckets:
        """Return the buckets with rows that came and without those that went."""
        found = dict(buckets)
        for rows, sign in ((came, 1), (went, -1)):
            for (_, hashed), number in (self._only(rows, within) if within else rows).items():
                bucket = self.table.bucket_of(hashed, bits)
                count, total = found.get(bucket, (0, 0))
                found[bucket] = count + sign * number, total + sign * number * hashed
        return {bucket: one for bucket, one in found.items() if one != (0, 0)}

    def _shown(self, found: Sequence[Difference]) -> list[Shown]:
        keys = {one.key for one in found}
        there = dict(self.source.texts(self.table, keys))
        here = dict(self.target.texts(keys))
        names = [one.name for one in self.table.columns]
        key_names = {one.name for one in self.table.identifying}
        shown = []
        for one in found:
            source, target = there.get(one.key), here.get(one.key)
            values = source or target or [(None, None)] * len(names)
            key = {name: text for name, (_, text) in zip(names, values, strict=True) if name in key_names}
            columns = {}
            if one.outcome == "changed" and source is not None and target is not None:
                columns = {
                    name: (was_shown, is_shown)
                    for name, (was, was_shown), (is_, is_shown) in zip(names, source, target, strict=True)
                    if was != is_ and name not in key_names
                }
            shown.append(Shown(one.outcome, key, columns))
        return shown


def _rows(buckets: Iterable[int], expected: Buckets, actual: Buckets) -> Iterator[int]:
    """Yield how many rows each bucket has, on the side that has more."""
    nothing = (0, 0)
    return (max(expected.get(bucket, nothing)[0], actual.get(bucket, nothing)[0]) for bucket in buckets)


def _first(buckets: Sequence[int], expected: Buckets, actual: Buckets) -> Sequence[int]:
    """Return as many buckets as may be looked into, row by row; at least one."""
    sums = itertools.accumulate(_rows(buckets, expected, actual))
    return buckets[: max(1, sum(rows <= _ROWS_AT_ONCE for rows in sums))]


def document_of(name: str, lsn: Lsn, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The result as `--json` prints it."""
    return {
        "subscription": name,
        "lsn": str(lsn),
        "tables": [
            {
                "relation": one.relation,
                "path": one.path,
                "rows": one.rows,
                "equal": None if one.why else not one.differences and not one.partly,
                "could_not": one.why or None,
                "left_out": one.left_out,
                "left_out_columns": list(one.left_out_columns),
                "partly": one.partly,
                "repaired": one.repaired,
                "unrepaired": one.unrepaired or None,
                "caveat": one.caveat or None,
                "differences": _counts(one.differences),
                "shown": [_shown_document(shown) for shown in one.shown],
                "seconds": round(one.seconds, 2),
            }
            for one in verdicts
        ],
    }


def _counts(found: Sequence[Difference]) -> Mapping[str, int]:
    counts = Counter[str]()
    for one in found:
        counts[one.outcome] += one.rows
    return dict(sorted(counts.items()))


def _shown_document(shown: Shown) -> dict[str, Any]:
    columns = {name: {"source": source, "delta": delta} for name, (source, delta) in shown.columns.items()}
    return {"outcome": shown.outcome, "key": dict(shown.key), "columns": columns}
