"""Records in the catalog that a batch is durable, or skipped: the origin's LSN moves, whatever its sink is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from pgbridge.bridge.catalog.catalog_rows import AppliedBatch, PreparedRow, RelRow
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.skipped import kept_transaction
from pgbridge.bridge.track.spool import SpoolFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pgbridge.bridge.batch.batch import Batch
    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.protocol.lsn import Lsn


def finish_batch(
    catalog: Catalog,
    subscription: str,
    batches: Sequence[Batch],
    clear_skip_lsn: Lsn | None,
    *,
    planned: bool = False,
    kept: Iterable[RelRow] = (),
) -> None:
    """Move the origin to the end of batches, drop the intent, and remove the spool files that they have used.

    Args:
        batches: The batch, after those that were held until now.
        planned: The targets follow what the batch has planned of columns and names, so that it counts.
        kept: Tables that had what they have of the batches from an earlier attempt.
    """
    last = batches[-1]
    prepared = [
        PreparedRow(t.spooled.path.name, t.gid, t.xid, t.end_lsn, tuple(sorted(t.spooled.relation_ids)))
        for batch in batches
        for t in batch.prepared
        if isinstance(t.spooled, SpoolFile) and t.gid is not None
    ]
    ended = [t.spooled.path.name for batch in batches for t in batch.ended if isinstance(t.spooled, SpoolFile)]
    catalog.finish_batch(
        subscription,
        last.end_lsn,
        prepared,
        ended,
        clear_skip_lsn=clear_skip_lsn,
        columns=last.columns if planned else {},
        relids=last.relids if planned else {},
        applied=_applied(catalog, subscription, batches, kept) if planned else None,
    )
    for batch in batches:
        for spool in batch.spools:
            spool.discard()


def hold_batch(catalog: Catalog, subscription: str, batch: Batch, clear_skip_lsn: Lsn | None) -> Batch:
    """Record that a batch is in its tables, and drop the intent; the origin stays, and spool files are kept.

    Returns the batch without its changes, for `finish_batch`.
    """
    committed = _committed(batch)
    catalog.hold_batch(
        subscription,
        batch.end_lsn,
        committed,
        clear_skip_lsn=clear_skip_lsn,
        columns=batch.columns,
        relids=batch.relids,
    )
    tables = [replace(changes, changes=pa.table({}), effect=None) for changes in batch.tables]
    return replace(batch, tables=tables, items=[])


def _committed(batch: Batch) -> list[str]:
    """The tables whose logs have the batch's end: also those that it only alters."""
    return [changes.target.path for changes in batch.tables if changes.commits or changes.alterations]


def _applied(catalog: Catalog, subscription: str, batches: Sequence[Batch], kept: Iterable[RelRow]) -> AppliedBatch:
    row = catalog.subscription(subscription)
    assert row is not None  # noqa: S101 - the worker has registered it
    named = [(rel.namespace, rel.name, rel.path) for rel in kept]
    targets = [changes.target for batch in batches for changes in batch.tables]
    named += [(target.namespace, target.name, target.path) for target in targets]
    times_us = [batch.first_commit_time_us for batch in batches if batch.first_commit_time_us]
    return AppliedBatch(
        row.batch_app_id,
        batches[0].start_lsn,
        min(times_us, default=0),
        batches[-1].commit_time_us,
        sum(batch.transactions for batch in batches),
        tuple(dict.fromkeys(named)),
        tuple(_committed(batches[-1])),
    )


def skip_batch(catalog: Catalog, subscription: str, batch: Batch, skip_lsn: Lsn, folder: Path) -> Path:
    """Keep a transaction in a file, and record it as skipped: nothing of it is applied.

    After it returns, the origin's LSN is the transaction's end, and the skip LSN is cleared.

    Args:
        batch: The transaction alone; it may be one whose changes could not be decoded.
        folder: Where skipped transactions are kept.

    Returns:
        The transaction's folder.

    Raises:
        StateError: The file cannot be written; the transaction is not skipped.
    """
    row = catalog.subscription(subscription)
    assert row is not None  # noqa: S101 - the worker has registered it
    rels = catalog.rels_by_name(subscription)
    path = kept_transaction.write(batch, folder, subscription, origin=row.txn_app_id, rels=rels)
    faults.reach("skipped_written")
    finish_batch(catalog, subscription, [batch], skip_lsn)
    return path
