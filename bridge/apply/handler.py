"""Hands batches to a function, in place of committing them to Delta tables.

The function may write anywhere. What it has written is not known here, so nothing is undone. Exactly once rests on the
batch's application id and version, which the function gives its commits to Delta:

    1. the catalog records the batch's intent;
    2. the function gets the batch. Delta leaves out a commit whose version, or a higher one, the table has already;
    3. the catalog advances the origin and drops the intent.

If the function raises an error, the batch is divided as for the mirror; its end becomes a fence, which no later batch
goes over (see `bridge.catalog.held`). So does the end of a batch that a crash cut short, whose transactions are
received again.
"""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from pgbridge.bridge.apply.record import finish_batch, skip_batch
from pgbridge.bridge.catalog import catalog_rows, held
from pgbridge.bridge.lake.commit.change_frame import change_frame
from pgbridge.bridge.lake.commit_errors import context_of, error_context
from pgbridge.bridge.runtime import errors, faults
from pgbridge.bridge.spark.outcome import is_lost, summary
from pgbridge.protocol.lsn import Lsn, utc

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from pgbridge.bridge.apply.context import Context
    from pgbridge.bridge.batch.batch import Batch
    from pgbridge.protocol.codec.messages import LogicalMessage
    from pgbridge.protocol.stream.transactions import Transaction


class _Tables(dict[str, "DataFrame"]):
    """By `schema.table`; a name that is not there is told with those that are."""

    def __missing__(self, table: str) -> DataFrame:
        raise KeyError(f'no changes of a table "{table}"; there are of {", ".join(self) or "none"}')


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Whole committed transactions, in commit order, as a handler gets them.

    Attributes:
        tables: A DataFrame for each table that has changes, by `schema.table`, in the documented change schema. Its
            rows are in no particular order: `commit_lsn` and `ordinal` have it. A row filter may leave it empty. It is
            valid until the handler returns.
        spark: The session that the DataFrames belong to.
        start_lsn: Where the batch begins: transactions that end after it.
        end_lsn: Where it ends: the end of its last transaction, inclusive.
        commit_time: When its last transaction was committed, by the server's clock.
        transactions: How many transactions it has.
        app_id: Delta's `txnAppId` for what the handler writes.
        version: Delta's `txnVersion`: `end_lsn`.
    """

    tables: Mapping[str, DataFrame]
    spark: SparkSession
    start_lsn: int
    end_lsn: int
    commit_time: dt.datetime
    transactions: int
    app_id: str
    version: int

    @property
    def delta_options(self) -> dict[str, str]:
        """Options of a writer to Delta, by which the batch is in a Delta table exactly once.

        Delta keeps one version for each table and application id, so a batch may be written to a Delta table once.
        """
        return {"txnAppId": self.app_id, "txnVersion": str(self.version)}


@dataclass(eq=False)
class HandlerApplier:
    """Hands one subscription's batches to a function, one at a time; the counterpart of `Applier`.

    Attributes:
        handler: Gets each batch that has changes. When it returns, all that it has written is durable.
        fence: Called with an LSN that no batch may go over.
    """

    context: Context
    handler: Callable[[ChangeBatch], object]
    _: KW_ONLY
    deliver: Callable[[Iterable[tuple[Transaction, LogicalMessage]]], None] = lambda _: None
    lost: Callable[[str, int], None] = lambda *_: None
    fence: Callable[[Lsn], None] = lambda _: None

    def apply(self, batch: Batch, *, clear_skip_lsn: Lsn | None = None) -> dict[str, float]:
        """Hand over the batch, and record it; see `Applier.apply`.

        After it returns, the origin's LSN is the batch's `end_lsn`. After an ApplyError the catalog has no intent, and
        the batch's end is a fence; after any other error the intent stands.

        Raises:
            ApplyError: The handler raised an error.
            OutcomeUnknown: The connection to Spark was lost.
        """
        begun_s = time.monotonic()
        self.context.catalog.begin_batch(self.context.name, catalog_rows.BatchIntent(batch.start_lsn, batch.end_lsn))
        faults.reach("batch_begun")
        try:
            self._hand_over(batch)
        except errors.OutcomeUnknown:
            raise
        except errors.ApplyError:
            # its transactions can be handed over in other batches, up to its end
            if (end_lsn := held.give_up_batch(self.context.catalog, self.context.name)) is not None:
                self.fence(end_lsn)
            raise
        handed_s = time.monotonic()
        faults.reach("batch_committed")
        if batch.with_messages:
            self.deliver(batch.messages())
        finish_batch(self.context.catalog, self.context.name, [batch], clear_skip_lsn)
        return {"commit": handed_s - begun_s, "flush": 0.0, "record": time.monotonic() - handed_s}

    def _hand_over(self, batch: Batch) -> None:
        options, spark, *_ = self.context
        frames = _Tables()
        for changes in batch.tables:
            name = changes.target.qualified_name
            with error_context(context_of(options.origin_name, batch, changes)):
                frames[name] = change_frame(spark, changes)
            if changes.lost:
                self.lost(name, changes.lost)
        if not frames:
            return
        row = self.context.catalog.subscription(self.context.name)
        assert row is not None  # noqa: S101 - the worker has registered it
        handed = ChangeBatch(
            MappingProxyType(frames),
            spark,
            int(batch.start_lsn),
            int(batch.end_lsn),
            utc(batch.commit_time_us),
            batch.transactions,
            row.batch_app_id,
            int(batch.end_lsn),
        )
        try:
            self.handler(handed)
        except Exception as error:
            context = errors.ApplyContext(options.origin_name, batch.finish_lsn, batch.xid)
            if is_lost(error):
                raise errors.OutcomeUnknown(f"the connection to Spark is lost: {summary(error)}", context) from error
            raise errors.ApplyError(f"the handler raised {type(error).__name__}: {summary(error)}", context) from error

    def skip(self, batch: Batch, skip_lsn: Lsn, folder: Path) -> Path:
        """Skip a transaction, as `Applier.skip` does."""
        return skip_batch(self.context.catalog, self.context.name, batch, skip_lsn, folder)

    holds = False

    def release(self, passed_lsn: Lsn, handed_over_lsn: Lsn) -> Lsn | None:
        """Do nothing: no batch is held."""
        del passed_lsn, handed_over_lsn
        return None

    def bring_back(self) -> bool:
        """Do nothing: what the handler has written is not known here."""
        return False
