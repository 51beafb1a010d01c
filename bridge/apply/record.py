"""Records in the catalog that a batch is durable, or skipped: the origin's LSN moves, whatever its sink is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge import faults
from bridge.apply import skipped_transactions
from bridge.track.catalog_rows import AppliedBatch, PreparedRow
from bridge.track.spool import SpoolFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bridge.apply.batch.batch import Batch
    from bridge.track.catalog import Catalog
    from protocol.lsn import Lsn


def finish_batch(
    catalog: Catalog, subscription: str, batch: Batch, clear_skip_lsn: Lsn | None, *, planned: bool = False
) -> None:
    """Move the origin to the batch's end, drop its intent, and remove the spool files that it has used.

    Args:
        catalog: The catalog.
        subscription: The subscription's name.
        batch: The batch.
        clear_skip_lsn: The skip LSN to clear.
        planned: The targets follow what the batch has planned of columns and names, so that it counts.
    """
    prepared = [
        PreparedRow(t.spooled.path.name, t.gid, t.xid, t.end_lsn)
        for t in batch.prepared
        if isinstance(t.spooled, SpoolFile) and t.gid is not None
    ]
    ended = [t.spooled.path.name for t in batch.ended if isinstance(t.spooled, SpoolFile)]
    catalog.finish_batch(
        subscription,
        batch.end_lsn,
        prepared,
        ended,
        clear_skip_lsn=clear_skip_lsn,
        columns=batch.columns if planned else {},
        relids=batch.relids if planned else {},
        applied=_applied(catalog, subscription, batch) if planned else None,
    )
    for spool in batch.spools:
        spool.discard()


def _applied(catalog: Catalog, subscription: str, batch: Batch) -> AppliedBatch:
    row = catalog.subscription(subscription)
    assert row is not None  # noqa: S101 - the worker has registered it
    tables = {(t.target.namespace, t.target.name, t.target.path): None for t in batch.tables}
    return AppliedBatch(
        row.batch_app_id,
        batch.start_lsn,
        batch.first_commit_time_us,
        batch.commit_time_us,
        batch.transactions,
        tuple(tables),
    )


def skip_batch(
    catalog: Catalog,
    subscription: str,
    batch: Batch,
    skip_lsn: Lsn,
    folder: Path,
    *,
    keep: Callable[[Path], None] = lambda _: None,
) -> Path:
    """Write a transaction's changes to files, and record it as skipped.

    Args:
        catalog: The catalog.
        subscription: The subscription's name.
        batch: The transaction alone.
        skip_lsn: Its finish LSN.
        folder: Where skipped transactions are kept.
        keep: Called with the transaction's folder, to keep there what a replay needs.

    Returns:
        The folder with its changes.

    Raises:
        StateError: The files cannot be written; the transaction is not skipped.
    """
    path = skipped_transactions.write(batch, folder, subscription)
    keep(path)
    faults.reach("skipped_written")
    finish_batch(catalog, subscription, batch, skip_lsn)
    return path
