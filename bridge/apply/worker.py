"""Applies batches: one Delta commit a table, all tables of a batch in parallel, then the catalog, then the server.

The order is what exactly-once rests on: the intent is recorded before the first commit, every commit is stamped
with the batch's end, and the origin moves only when all of them are there. A batch that a crash cut short is
formed again with the same boundaries, and Delta leaves out what it already has.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Literal

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from bridge import faults
from bridge.apply import delta, messages
from bridge.apply.conflicts import conflict_of
from bridge.apply.table import apply_table
from bridge.errors import ApplyContext, ApplyError
from bridge.track.catalog import BatchIntent, PreparedRow
from bridge.track.spool import SpoolFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from bridge.apply.batch import Batch
    from bridge.apply.conflicts import Conflicts
    from bridge.track.catalog import Catalog
    from protocol.messages import LogicalMessage
    from protocol.transactions import Transaction

_TABLES_AT_ONCE = 4
"""Commits under way at once: most of a small one is waiting for Spark's scheduler and the storage."""

_MESSAGE_CHARACTERS = 600
_RAISED = re.compile(r"^[A-Za-z_][\w.]*: (.+)", re.MULTILINE)  # the line under a Python traceback


class BatchApplier:
    """Applies one subscription's batches, one at a time.

    Args:
        spark: A session of the subscription's own (see `delta.stamped`).
        catalog: Where intents and the origin are.
        subscription: The subscription's name.
        origin_name: For error contexts.
        txn_app_id: Delta's application id for the commits.
        deliver: Called with a batch's logical messages when its changes are in Delta, and before the batch is done:
            after a crash in between they come again.
        messages_path: The Delta table for logical messages; None for none.
        lost: Called with a relation and a number of rows for which a value is NULL that the stream does not carry.
        conflict: Whether a row that is in the way stops the batch, or is overwritten (see `apply_table`).
        conflicts: Called with a table's conflicts that did not stop the batch, after its commit.
    """

    def __init__(  # noqa: PLR0913 - whom it tells of what, and one policy
        self,
        spark: SparkSession,
        catalog: Catalog,
        *,
        subscription: str,
        origin_name: str,
        txn_app_id: str,
        deliver: Callable[[Sequence[tuple[Transaction, LogicalMessage]]], None] = lambda _: None,
        messages_path: str | None = None,
        lost: Callable[[str, int], None] = lambda *_: None,
        conflict: Literal["error", "apply_remote"] = "error",
        conflicts: Callable[[Conflicts], None] = lambda _: None,
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._subscription = subscription
        self._origin_name = origin_name
        self._txn_app_id = txn_app_id
        self._deliver = deliver
        self._messages_path = messages_path
        self._lost = lost
        self._conflict = conflict
        self._conflicts = conflicts

    def apply(self, batch: Batch) -> None:
        """Make the batch durable in its targets and in the catalog.

        After it returns, the origin's LSN is the batch's `end_lsn`. After it raised, the intent stands: the same
        batch has to be applied again.

        Raises:
            ApplyError: A table could not be committed. Whether others were does not matter: Delta knows.
        """
        self._catalog.begin_batch(self._subscription, BatchIntent(batch.start_lsn, batch.end_lsn))
        faults.reach("batch_begun")
        stamp = delta.CommitStamp(self._txn_app_id, batch.start_lsn, batch.end_lsn)
        parts: dict[str, Callable[[], None]] = {}
        for changes in batch.tables:
            name = changes.target.qualified_name
            parts[name] = partial(
                apply_table,
                self._spark,
                changes,
                conflict=self._conflict,
                lost=partial(self._lost, name),
                conflicts=self._conflicts,
            )
        if batch.messages and self._messages_path:
            rows = messages.as_table(self._subscription, batch.messages)
            parts[messages.NAME] = partial(messages.append, self._spark, rows, self._messages_path)
        if parts:
            with delta.stamped(self._spark, stamp), ThreadPoolExecutor(_TABLES_AT_ONCE, "apply") as pool:
                commits = [pool.submit(self._commit, batch, name, part) for name, part in parts.items()]
            for commit in commits:
                commit.result()
        faults.reach("batch_committed")
        if batch.messages:
            self._deliver(batch.messages)
        prepared = [
            PreparedRow(t.moved.path.name, t.gid, t.xid, t.end_lsn)
            for t in batch.prepared
            if isinstance(t.moved, SpoolFile) and t.gid is not None
        ]
        ended = [t.moved.path.name for t in batch.ended if isinstance(t.moved, SpoolFile)]
        self._catalog.finish_batch(self._subscription, batch.end_lsn, prepared, ended)
        for spool in batch.spools:
            spool.discard()

    def _commit(self, batch: Batch, relation: str, part: Callable[[], None]) -> None:
        try:
            part()
        except (PySparkException, Py4JError) as error:
            context = ApplyContext(self._origin_name, batch.finish_lsn, batch.xid, relation)
            raise ApplyError(str(conflict_of(error) or summary(error)), context) from error
        faults.reach("table_committed")


def summary(error: Exception) -> str:
    """What Spark says of an error, without its stack traces; of a Python worker's error, what was raised in it."""
    text = str(error).split("\n\tat ", maxsplit=1)[0].split("JVM stacktrace:", maxsplit=1)[0].strip()
    last_frame = text.rfind("\n  File ")
    if last_frame >= 0 and (raised := _RAISED.search(text, last_frame)):
        text = text[raised.start(1) :].strip()
    return text if len(text) <= _MESSAGE_CHARACTERS else text[:_MESSAGE_CHARACTERS] + " …"
