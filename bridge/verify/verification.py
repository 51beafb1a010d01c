"""Verifies a subscription: the source under an exported snapshot against Delta after a batch, as of one LSN.

A temporary slot exports a snapshot with its LSN P. Delta is compared as of the origin's LSN E. While a daemon runs, E
is waited for until it is not before P; the stream from P to E says which keys are touched in between and how their rows
end. Without a daemon E mostly lies before P; then what the subscription's slot would send is peeked at, and the keys in
it are left out: Delta does not have these changes yet. Neither pauses anything.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.catalog import verified
from pgbridge.bridge.catalog.catalog_rows import RelRow, sync_name
from pgbridge.bridge.lake.table import existing_schema, read_target_schema
from pgbridge.bridge.runtime import log, remedies
from pgbridge.bridge.runtime.errors import BridgeError, TargetError, VerifyError
from pgbridge.bridge.snapshots.point_in_time import TableAt, version_at
from pgbridge.bridge.spark.session import told
from pgbridge.bridge.sync.copy_reader import key_of
from pgbridge.bridge.verify.comparison import Verdict
from pgbridge.bridge.verify.schedule import Compared, noted, takes_part
from pgbridge.bridge.verify.source import Source
from pgbridge.bridge.verify.source_table import SourceTable
from pgbridge.bridge.verify.table_comparison import TableComparison
from pgbridge.bridge.verify.tables import VerifiedColumn, VerifiedTable, row_hash
from pgbridge.bridge.verify.target import TargetVersion, hashing_session, repair
from pgbridge.bridge.verify.window import MOST_BYTES, TableWindow, Window
from pgbridge.protocol.values.types import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from pgbridge.bridge.apply.published import Published
    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.catalog.verified import VerifiedRow
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.sync.table_reading import Pace
    from pgbridge.bridge.verify.part import Part
    from pgbridge.protocol.lsn import Lsn

_LOOK_S: Final = 0.25


@dataclass(slots=True)
class Verification:
    """One verification of a subscription's tables.

    Attributes:
        spark: A session of its own.
        catalog: The subscription's state.
        published: What is published now.
        running: Whether a daemon applies the stream meanwhile.
        pace: Limits the rate of reading the source.
        patience_s: How long to wait for transactions that are open at the start, and then until the daemon has applied
            what the snapshot has.
        shown: How many differences of a table are shown.
        repaired: Repair what differs; no daemon may run.
        progress: Called with a table's name, and how many bytes of it were read, of how many.
        part: The rows that are compared, of the only table that is wanted; None for all.
        stopping: Whether to end, by an error.
        most_wal_bytes: How much WAL there may be between the two sides' LSNs: what it has of the tables is in memory.
        noted: Afterwards, what the catalog had of each table, and has now.
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
    part: Part | None = None
    stopping: Callable[[], bool] = lambda: False
    most_wal_bytes: float = math.inf
    noted: list[tuple[RelRow, VerifiedRow | None, VerifiedRow]] = field(default_factory=list)
    _source: Source | None = None

    def cut(self) -> None:
        """Have it end, by an error, from another thread; `stopping` says so from now on."""
        if (source := self._source) is not None:
            source.cut()

    def run(self, wanted: Callable[[str], bool]) -> tuple[Lsn, list[Verdict]]:
        """Verify the tables that are wanted, by their qualified names; the catalog has what was found.

        Returns:
            The LSN that Delta is compared at, and a verdict for each table.

        Raises:
            VerifyError: Nothing can be verified.
            PublisherError: The server refuses.
        """
        name = f"{self.subscription.name}_verify"
        with Source(
            self.subscription.connection,
            application_name=name,
            patience_s=self.patience_s,
            stopping=self.stopping,
        ) as source:
            self._source = source
            salts = {mask.salt for masks in self.subscription.masks.values() for mask in masks.values() if mask.salt}
            for salt in salts:  # a subscription has one
                source.use_salt(salt)
            after_lsn, end_lsn, app_id, rels, added = self._delta_lsn(source.lsn)
            chosen = [rel for rel in [*rels, *added] if wanted(rel.qualified_name)]
            tables: list[VerifiedTable] = []
            verdicts: list[Verdict] = []
            for rel in chosen:
                if self.subscription.mode_of(rel.qualified_name) == "changelog":
                    why = "it has a changelog, not the table's rows"
                    verdicts.append(Verdict(rel.qualified_name, rel.path, why=why, changelog=True))
                    continue
                if rel in added:  # its stream has an origin of its own
                    verdicts.append(Verdict(rel.qualified_name, rel.path, why="it is being added"))
                    continue
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
                self._check()
            compared = Compared(end_lsn, source.at_s, time.time(), self.part)
        self._note(
            [rel for rel in chosen if rel not in added], {verdict.relation: verdict for verdict in verdicts}, compared
        )
        return end_lsn, sorted(verdicts, key=lambda verdict: verdict.relation)

    def _note(self, rels: Sequence[RelRow], verdicts: Mapping[str, Verdict], compared: Compared) -> None:
        name = self.subscription.name
        with self.catalog.transaction():  # another verification may end at the same time
            before = verified.rows(self.catalog, name, rels)
            for rel in rels:
                if takes_part(self.subscription, rel):
                    row = noted(before.get(rel), rel, verdicts[rel.qualified_name], compared)
                    verified.put(self.catalog, name, row)
                    self.noted.append((rel, before.get(rel), row))

    def _check(self) -> None:
        if self.stopping():
            raise VerifyError("the verification was ended")

    def _delta_lsn(self, snapshot_lsn: Lsn) -> tuple[Lsn, Lsn, str, list[RelRow], list[RelRow]]:
        """Return the snapshot's LSN, Delta's, the application id, the tables, and those that are being added.

        It waits for a daemon that runs.
        """
        name, until_s = self.subscription.name, time.monotonic() + self.patience_s
        while True:
            self._check()
            with self.catalog.transaction():  # one moment for all of it
                row, lsn = self.catalog.subscription(name), self.catalog.remote_lsn(name)
                rels, added = self.catalog.rels(name), self.catalog.rels(sync_name(name))
            if row is None or lsn is None:
                raise VerifyError(f'subscription "{name}" has not begun, so it has no tables')
            if lsn >= snapshot_lsn or not self.running():
                return snapshot_lsn, lsn, row.txn_app_id, rels, added
            if time.monotonic() > until_s:
                raise VerifyError(
                    f'subscription "{name}" has applied the stream up to {lsn}, not yet to the snapshot at '
                    f"{snapshot_lsn}: it was waited for {self.patience_s:g} s",
                    hint=f"see {remedies.status()}; verify again once the lag is small, or with a greater --wait",
                )
            time.sleep(_LOOK_S)

    def _table(self, source: Source, rel: RelRow, end_lsn: Lsn) -> VerifiedTable:
        mode = self.subscription.mode_of(rel.qualified_name)
        if rel.waits is not None:
            raise VerifyError(f"it waits for its resync: {rel.waits}")
        if not rel.follows or rel.since_lsn > max(end_lsn, source.lsn):
            raise VerifyError("it is being copied")
        published = self.published.tables.get((rel.namespace, rel.name))
        if published is None:
            raise VerifyError("it is not published any more, or under another name")
        key = tuple(key_of(published))
        if rel.since_lsn > end_lsn and not key:  # of one with a key, what it may have beyond is left out
            raise VerifyError("it has some transactions that other tables lack: run the daemon until it has caught up")
        try:
            schema = read_target_schema(self.spark, rel.path, mode)
            if schema is None:
                existing_schema(self.spark, rel.path)  # says so, and what to do
        except BridgeError as error:
            raise VerifyError(str(error)) from error
        fields = {field.name: field for field in schema or ()}
        types = self.published.types([column.sent_type for column in published.columns])
        columns = []
        for column, type_ in zip(published.columns, types, strict=True):
            field = fields.get(column.target_name)
            fitted = field and field.fitted(type_)
            if fitted is None:
                raise VerifyError(f'its Delta table has no column "{column.name}" that holds the published one')
            columns.append(VerifiedColumn(column.name, type_, fitted.arrow, fitted.place, column.mask, column.renamed))
        compared = tuple(column for column in columns if column.place is not Place.VARIANT)
        if not compared:
            raise VerifyError("it has no column that can be compared")
        return VerifiedTable(
            published,
            rel.path,
            compared,
            key,
            source.declarations(published.relid),
            mode,
            tuple(column.name for column in columns if column.place is Place.VARIANT),
            row_hash(source.version),
            max(end_lsn, rel.since_lsn),
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
            if end_lsn - after_lsn > self.most_wal_bytes:
                raise VerifyError("the stream has brought too much since the snapshot")
            window = Window(keys, after_lsn, end_lsn, only_keys=self.subscription.publication_definitions is not None)
            window.read(source.changes(end_lsn, names, options))
        else:
            window = Window(keys, end_lsn, after_lsn, only_keys=True, most_bytes=MOST_BYTES)
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
        ahead = end_lsn >= after_lsn and self.subscription.publication_definitions is None
        lacks = touched.columns and not {column.name for column in table.columns} <= set(touched.columns)
        if lacks and (ahead or not table.keyed):
            verdict.why = verdict.why or "the stream lacks columns of it"
        if self.subscription.publication_definitions is not None:
            # what the stream says of rows has not passed the definitions' filters, and may be of partitions
            if touched.inserted or touched.removed or (table.published.relkind == "p" and window.others):
                verdict.why = "it changed meanwhile"
            touched = TableWindow(touched.columns, dict.fromkeys(touched.rows))
        if verdict.why:
            return verdict
        at = TableAt(table.published.namespace, table.published.name, table.path, recorded=None, later=False)
        if self.part is not None:
            touched = self.part.of(touched, table.key)
        try:
            # of a table that is damaged, the others are not
            with unexpected_told(self.subscription.name, relation=table.relation), told(self.spark):
                verdict.version = version_at(self.spark, at, table.lsn, replayed=True)
                target = TargetVersion(hashing_session(self.spark), table, verdict.version, self.part)
                rows = SourceTable(source, table, self.pace, self.part)
                with source.attempt():
                    TableComparison(rows, touched, target, verdict, self.shown, self.progress).run(ahead=ahead)
        except (VerifyError, TargetError) as error:
            return Verdict(table.relation, table.path, why=error.message, left_out_columns=table.left_out)
        if self.repaired and verdict.differences:
            self._repair(verdict, source, target, app_id)
        verdict.seconds = time.monotonic() - started_s
        return verdict

    def _repair(self, verdict: Verdict, source: Source, target: TargetVersion, app_id: str) -> None:
        try:
            if verdict.caveat:
                raise VerifyError(verdict.caveat)
            repair(
                self.spark,
                source,
                target,
                verdict.differences,
                subscription=self.subscription,
                published=self.published,
                app_id=app_id,
                lsn=target.table.lsn,
            )
            verdict.repaired = True
        except BridgeError as error:
            verdict.unrepaired = error.message


@contextmanager
def unexpected_told(subscription: str, **where: str) -> Iterator[None]:
    """Log an error that nobody has thought of, and turn it into one by which nothing is said of rows.

    Args:
        subscription: Its name.
        where: What else the log shall say.

    Raises:
        VerifyError: In place of an error that is no BridgeError.
    """
    try:
        yield
    except BridgeError:
        raise
    except Exception as error:
        log.get(subscription).error("an unexpected error ended a comparison", **where, exc_info=error)
        raise VerifyError(f"an unexpected error, {type(error).__name__}: {error}".partition("\n")[0]) from error
