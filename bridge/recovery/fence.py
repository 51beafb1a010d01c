"""Keeps what a former owner of a subscription has in hand out of its tables, by empty commits with the stamps of that.

It may be a batch, what the batch alters, a copy, or the deletion of messages. The former owner may be stopped in the
middle of it, for however long. It begins nothing else: for that it would need another epoch, and so the manifest.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.lake.commit import messages
from pgbridge.bridge.lake.commit.restore import UndoneBatch, fence_table
from pgbridge.bridge.lake.log.commit_info import ANY_LSN
from pgbridge.bridge.lake.log.stamp import COPY_NUMBER_BITS, EPOCH_BITS, TABLES_AT_ONCE
from pgbridge.bridge.lake.table_position import history_of
from pgbridge.bridge.runtime import errors
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from pgbridge.bridge.catalog.catalog_rows import RelRow, SubscriptionRow
    from pgbridge.bridge.catalog.manifest import Manifest

AT_FIRST: Final = 8
"""Commits of a table that are read at first: the slot is mostly one or two batches behind."""


def keep_out(
    spark: SparkSession, known: Manifest, owners: Sequence[str], generation: int, warehouse: str
) -> dict[str, int]:
    """Keep it out of all tables, whatever becomes of them.

    Args:
        known: The manifest, as it is after the claim.
        owners: The subscription, and its tablesync worker.
        generation: That of the claim.

    Returns:
        By owner, the highest epoch that was used, or that an earlier generation could have used.

    Raises:
        TakenOver: A later recovery has committed to a table: this one stood still after its claim.
        TargetBusy: Other writers were in the way.
        PySparkException: Spark cannot commit.
    """
    epochs = {}
    main = known.subscription(owners[0])
    copies = f"{main.txn_app_id}/copy" if main is not None else None
    for number, owner in enumerate(owners):
        row, (origin, _) = known.subscription(owner), known.origin(owner) or (INVALID, None)
        if row is None or row.incarnation is None:
            continue
        fence = partial(_fence, spark, row, origin, generation, copies)
        with ThreadPoolExecutor(TABLES_AT_ONCE, "fence") as pool:
            epoch = max([row.epoch, *pool.map(fence, known.rels(owner))])
        if number == 0:  # the subscription's own stream has the messages
            batch = UndoneBatch(f"{row.txn_app_id}/{epoch}", origin, ANY_LSN).fence
            fence_table(spark, messages.path_in(warehouse), batch, replace(batch, undo_number=int(ANY_LSN)))
        epochs[owner] = max(epoch, generation << EPOCH_BITS)
    return epochs


def _fence(
    spark: SparkSession, row: SubscriptionRow, origin: Lsn, generation: int, copies_app_id: str | None, rel: RelRow
) -> int:
    """Keep it out of one table; returns the epoch of the batch."""
    family = f"{row.txn_app_id}/"
    history = history_of(spark, rel.path, AT_FIRST)
    history.beyond(max(origin, rel.whole_lsn))
    epoch = max(row.epoch, history.least_epoch(family))
    if epoch >= generation << EPOCH_BITS:
        raise errors.TakenOver(
            f"{rel.path} has commits of a later recovery than this one, which stood still after its claim",
            hint="end this one",
        )
    batch = UndoneBatch(f"{family}{epoch}", origin, ANY_LSN).fence
    # copies have another application id, and a version with the generation
    copies = replace(
        batch,
        txn_app_id=f"{family}copy",
        copies_app_id=copies_app_id,
        copy_number=generation << COPY_NUMBER_BITS,
    )
    fence_table(spark, rel.path, batch, replace(batch, alters=True), copies)
    return epoch
