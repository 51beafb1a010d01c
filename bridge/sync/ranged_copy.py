"""Copies a large table by ranges of its key, so that a copy that is cut short goes on.

The rows of a range become data files in the Delta table's folder. No version of the table has them before one commit
replaces all its rows by those of all ranges, so readers never see a part of a copy. An attempt that follows reads the
ranges that are missing under its own snapshot; which changes of the stream each range lacks, `bridge.batch.range_cut`
knows. The ranges of an earlier attempt do not count if something else would be copied now, or if the stream that
follows begins after their snapshot.
"""

from __future__ import annotations

import hashlib
import json
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pgbridge.bridge.catalog import copied_ranges
from pgbridge.bridge.lake.log.stamp import stamp_options
from pgbridge.bridge.lake.retry import retry_commit
from pgbridge.bridge.lake.schema import stored_rows
from pgbridge.bridge.lake.transaction import can_stage, transaction
from pgbridge.bridge.runtime import errors, faults
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT
from pgbridge.bridge.sync.copy import MOST_CONNECTIONS, in_target, read_on_executors
from pgbridge.bridge.sync.key_order import condition_of, is_large, ranged_copy
from pgbridge.protocol.lsn import INVALID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbridge.bridge.apply.context import Context
    from pgbridge.bridge.catalog.catalog_rows import ColumnRow
    from pgbridge.bridge.catalog.copied_ranges import CopiedRange, RangedCopy
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.lake.log.local_tables import LocalTables
    from pgbridge.bridge.lake.log.stamp import CommitStamp
    from pgbridge.bridge.lake.transaction import Transaction
    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.receive.publisher import Publisher
    from pgbridge.bridge.sync.copy import TableCopy
    from pgbridge.protocol.lsn import Lsn


_ROW_ACTIONS: Final = ("insert", "update", "delete")
_IDENTITY: Final = "delta.identity."
"""Begins the names of the properties that Delta keeps an IDENTITY column's numbers in."""


class RangedTable(NamedTuple):
    """A table that is copied by ranges.

    Attributes:
        copy: Its ranges, with those that earlier attempts have read.
        layout: The Delta table's metadata when the attempt began (`Transaction.layout`): files depend on it.
    """

    copy: RangedCopy
    layout: str

    def check(self, begun: Transaction) -> None:
        """Raise a SyncError if somebody has changed the Delta table's metadata since."""
        if begun.layout != self.layout:
            raise errors.SyncError("the Delta table was altered while rows were copied to it")


def ranged_table(
    context: Context, copy: TableCopy, table: PublishedTable, publisher: Publisher, columns: Sequence[ColumnRow]
) -> RangedTable | None:
    """How a table is copied by ranges, which the catalog has afterwards; None, and no ranges, if it is copied at once.

    Args:
        columns: The published table's.

    Raises:
        PublisherError: The server cannot be asked.
    """
    name, key = context.name, (copy.rel.namespace, copy.rel.name)
    large = table.relkind == "r" and is_large(copy.lock)
    if large and _can_stage(context, copy) and _has_every_change(context.subscription, publisher):
        ranged = _ranged_table(context, copy, table, publisher, columns)
    else:
        ranged = None
    if ranged is None and copied_ranges.read(context.catalog, name, key) is not None:
        with context.catalog.transaction() as db:
            copied_ranges.forget(db, name, [key])
    return ranged


def _can_stage(context: Context, copy: TableCopy) -> bool:
    """Whether the Delta table takes files that were written beforehand."""
    plain = copy.mode == "mirror" and copy.layout == NO_LAYOUT and not copy.columns_too
    return plain and can_stage(context.spark, copy.rel.path)


def _has_every_change(subscription: Subscription, publisher: Publisher) -> bool:
    """Whether the stream has every change of rows."""
    if subscription.publication_definitions is not None or subscription.origin != "any":
        return False
    publications = publisher.rows("publications", {"publications": list(subscription.publications)})
    return all(row[f"pub{action}"] for row in publications for action in _ROW_ACTIONS)


def _ranged_table(
    context: Context, copy: TableCopy, table: PublishedTable, publisher: Publisher, columns: Sequence[ColumnRow]
) -> RangedTable | None:
    name, key, path, spec = context.name, (copy.rel.namespace, copy.rel.name), copy.rel.path, copy.spec
    known = copied_ranges.read(context.catalog, name, key)
    between = context.catalog.remote_lsn(name) or INVALID, copy.snapshot.consistent_point
    with transaction(context.spark, path) as begun:
        layout = begun.layout
        counting = {each.number for each in known.ranges if _counts(each, between, begun)} if known else set()
    if _IDENTITY in layout:  # each range would begin with the same number
        return None
    masks = {column: mask.description for column, mask in spec.masks.items()}
    what = [
        spec.select,
        spec.row_filters,
        spec.columns,
        spec.key,
        spec.unrepresentable,
        [*map(astuple, columns)],
        masks,
    ]
    # a table that was out of the publications for a while has changes that the stream lacks
    state = publisher.publication_state(context.subscription.publications, table.relid)
    where = [copy.lock.filenodes, copy.snapshot.timeline, path, layout, state]
    source = hashlib.sha256(json.dumps([*what, *where]).encode()).hexdigest()
    if known is None or known.source != source:
        known = ranged_copy(publisher, table, spec.key, spec.schema, copy.lock, source)
        if known is None:
            return None
        copied_ranges.begin(context.catalog, name, key, known)
        counting.clear()
    ranges = [each if each.number in counting else replace(each, lsn=None, files=()) for each in known.ranges]
    return RangedTable(replace(known, ranges=tuple(ranges)), layout)


def _counts(each: CopiedRange, between: tuple[Lsn, Lsn], begun: Transaction) -> bool:
    """Whether a range need not be read again: the stream has all changes after it, and its files are there.

    Args:
        between: The LSNs at which the stream begins, and of the snapshot.
    """
    first, last = between
    return each.lsn is not None and first <= each.lsn <= last and all(map(begun.has_file, each.files))


def copy_ranges(context: Context, copy: TableCopy, ranged: RangedTable, local: LocalTables) -> None:
    """Read the ranges that are missing; afterwards the catalog has all of them.

    Raises:
        SyncError: The subscription is to stop; or somebody has altered the Delta table.
        PySparkException: Spark cannot read a range.
    """
    rel, spark, catalog, ranges = copy.rel, context.spark, context.catalog, ranged.copy
    if len(ranges.missing) < len(ranges.ranges):
        counts = {"ranges": len(ranges.ranges), "missing": len(ranges.missing)}
        context.log.info("table copy goes on", relation=rel.qualified_name, **counts)
    failed = threading.Event()

    def read(each: CopiedRange) -> None:
        if failed.is_set() or context.stopping():
            raise errors.SyncError(f'the copy of table "{rel.qualified_name}" was cut short')
        try:
            spec = replace(copy.spec, ranges=[condition_of(ranges, each.number)])
            rows = stored_rows(in_target(read_on_executors(spark, spec), spec), copy.variants)
            with transaction(spark, rel.path, {"maxRecordsPerFile": str(copy.lock.rows_per_file)}) as begun:
                ranged.check(begun)
                files = begun.stage(rows)
            local.flush_files(rel.path, files)
            lsn = copy.snapshot.consistent_point
            copied_ranges.done(catalog, context.name, (rel.namespace, rel.name), each.number, lsn, files)
        except BaseException:
            failed.set()
            raise
        faults.reach("range_copied")

    at_once = min(MOST_CONNECTIONS, int(spark.sparkContext.defaultParallelism))
    with ThreadPoolExecutor(at_once, "range") as pool:
        reading = [pool.submit(read, each) for each in ranges.missing]
        wait(reading, return_when=FIRST_EXCEPTION)
    told = [error for each in reading if (error := each.exception()) is not None]
    if told:
        raise next((error for error in told if not isinstance(error, errors.SyncError)), told[0])


def commit_ranges(context: Context, copy: TableCopy, ranged: RangedTable, stamp: CommitStamp) -> None:
    """Replace all rows by those of all ranges.

    Raises:
        SyncError: Files of a range are gone, or somebody has altered the Delta table; the next try goes on, or starts
            again.
        StateError: The catalog does not have all ranges any more.
        TargetBusy: Other writers were in the way.
        PySparkException: Spark cannot commit.
    """
    rel = copy.rel
    known = copied_ranges.read(context.catalog, context.name, (rel.namespace, rel.name))
    if known is None or known.missing:
        raise errors.StateError(f'the ranges of table "{rel.qualified_name}" were forgotten while it was copied')
    files = [file for each in known.ranges for file in each.files]

    def commit() -> None:
        with transaction(context.spark, rel.path, stamp_options(stamp)) as begun:
            ranged.check(begun)
            if not all(map(begun.has_file, files)):
                raise errors.SyncError(
                    f'files of the copy of table "{rel.qualified_name}" were removed before it was done',
                    hint=f"a VACUUM of {rel.path} has to keep files for longer than the copy takes",
                )
            begun.overwrite_by(files, stamp)

    retry_commit(commit, rel.path, context.log)
