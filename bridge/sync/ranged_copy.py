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
from typing import TYPE_CHECKING

from bridge.catalog import copied_ranges
from bridge.lake.log.stamp import stamp_options
from bridge.lake.retry import retry_commit
from bridge.lake.schema import stored_rows
from bridge.lake.transaction import can_stage, transaction
from bridge.runtime import errors, faults
from bridge.sync.copy import MOST_CONNECTIONS, read_on_executors
from bridge.sync.key_order import condition_of, ranged_copy
from protocol.lsn import INVALID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.apply.context import Context
    from bridge.catalog.catalog_rows import ColumnRow
    from bridge.catalog.copied_ranges import CopiedRange, RangedCopy
    from bridge.lake.log.local_tables import LocalTables
    from bridge.lake.log.stamp import CommitStamp
    from bridge.lake.transaction import Transaction
    from bridge.publication.published_table import PublishedTable
    from bridge.receive.publisher import Publisher
    from bridge.receive.slot import Snapshot
    from bridge.sync.copy import TableCopy
    from protocol.lsn import Lsn


def ranges_of(
    context: Context, copy: TableCopy, table: PublishedTable, publisher: Publisher, columns: Sequence[ColumnRow]
) -> RangedCopy | None:
    """The ranges by which a table is copied, which the catalog has afterwards; None if it is copied at once.

    Args:
        columns: The published table's.
    """
    name, key, path, spec = context.name, (copy.rel.namespace, copy.rel.name), copy.rel.path, copy.spec
    if copy.mode != "mirror" or copy.columns_too or not can_stage(context.spark, path):
        return None
    known = copied_ranges.read(context.catalog, name, key)
    between = context.catalog.remote_lsn(name) or INVALID, copy.snapshot.consistent_point
    with transaction(context.spark, path) as begun:
        delta = begun.layout
        counting = {each.number for each in known.ranges if _counts(each, between, begun)} if known else set()
    what = [spec.select, spec.row_filters, spec.columns, spec.unrepresentable, [astuple(column) for column in columns]]
    where = [copy.lock.filenodes, copy.snapshot.timeline, path, delta]
    source = hashlib.sha256(json.dumps([*what, *where]).encode()).hexdigest()
    if known is None or known.source != source:
        known = ranged_copy(publisher, table, spec.key, spec.schema, copy.lock, copy.layout, source)
        if known is None:
            return None
        copied_ranges.begin(context.catalog, name, key, known)
        counting.clear()
    ranges = [each if each.number in counting else replace(each, lsn=None, files=()) for each in known.ranges]
    return replace(known, ranges=tuple(ranges))


def _counts(each: CopiedRange, between: tuple[Lsn, Lsn], begun: Transaction) -> bool:
    """Whether a range need not be read again: the stream has all changes after it, and its files are there.

    Args:
        between: The LSNs at which the stream begins, and of the snapshot.
    """
    first, last = between
    return each.lsn is not None and first <= each.lsn <= last and all(map(begun.has_file, each.files))


def copy_ranges(context: Context, copy: TableCopy, ranges: RangedCopy, local: LocalTables) -> Snapshot:
    """Read the ranges that are missing.

    Returns:
        The snapshot, as of the first one that a range was read under: the table has all from before that.

    Raises:
        SyncError: The subscription is to stop.
        PySparkException: Spark cannot read a range.
    """
    rel, spark, catalog = copy.rel, context.spark, context.catalog
    if len(ranges.missing) < len(ranges.ranges):
        counts = {"ranges": len(ranges.ranges), "missing": len(ranges.missing)}
        context.log.info("table copy goes on", relation=rel.qualified_name, **counts)
    failed = threading.Event()

    def read(each: CopiedRange) -> None:
        if failed.is_set() or context.stopping():
            raise errors.SyncError(f'the copy of table "{rel.qualified_name}" was cut short')
        try:
            spec = replace(copy.spec, ranges=[condition_of(ranges, each.number)])
            rows = stored_rows(read_on_executors(spark, spec), copy.variants)
            with transaction(spark, rel.path, {"maxRecordsPerFile": str(copy.lock.rows_per_file)}) as begun:
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
    return replace(copy.snapshot, consistent_point=min(copied_ranges.lsns(catalog, context.name, rel)))


def commit_ranges(context: Context, copy: TableCopy, stamp: CommitStamp) -> None:
    """Replace all rows by those of all ranges.

    Raises:
        SyncError: Files of a range are gone; it is read again at the next try.
        TargetBusy: Other writers were in the way.
        PySparkException: Spark cannot commit.
    """
    rel = copy.rel
    known = copied_ranges.read(context.catalog, context.name, (rel.namespace, rel.name))
    files = [file for each in known.ranges for file in each.files] if known is not None else []

    def commit() -> None:
        with transaction(context.spark, rel.path, stamp_options(stamp)) as begun:
            if not all(map(begun.has_file, files)):
                raise errors.SyncError(
                    f'files of the copy of table "{rel.qualified_name}" were removed before it was done',
                    hint=f"a VACUUM of {rel.path} has to keep files for longer than the copy takes",
                )
            begun.overwrite_by(files, stamp)

    retry_commit(commit, rel.path, context.log)
