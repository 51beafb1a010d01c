"""The Delta table of logical messages, `<warehouse>/pgbridge/messages`: what pg_logical_emit_message wrote.

A batch's messages are appended by one stamped commit, so each message is there exactly once, transactional or not. The
table may serve several subscriptions: the undo of a batch deletes the batch's own rows, by subscription and LSN, and
keeps what else was committed meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pgbridge.bridge.lake import commit_errors, own_table, source
from pgbridge.bridge.lake.table import schema_of
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.runtime.errors import TargetBusy
from pgbridge.bridge.targets.location import own_location, sql_name
from pgbridge.protocol.lsn import POSTGRES_EPOCH_US, Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from pgbridge.protocol.codec.messages import LogicalMessage
    from pgbridge.protocol.stream.transactions import Transaction

    _Message = tuple[Transaction, LogicalMessage]

NAME: Final = "pgbridge.messages"
"""Its name in messages, as if it were a published table."""

_AT_ONCE_BYTES = 16 << 20
_ROW_BYTES = 200  # a message's other columns

_SCHEMA = pa.schema(
    [
        ("subscription", pa.string()),
        ("lsn", pa.string()),  # the message's, as pg_logical_emit_message returned it
        ("position", pa.int64()),  # the same as a number, to sort by
        ("finish_lsn", pa.string()),  # the transaction's; NULL if the message is not transactional
        ("xid", pa.int64()),  # NULL if the message is not transactional
        ("committed_at", pa.timestamp("us", "UTC")),  # NULL if the message is not transactional
        ("transactional", pa.bool_()),
        ("prefix", pa.string()),
        ("content", pa.binary()),
    ]
)
_TABLE: Final = own_table.OwnTable(
    "logical messages", _SCHEMA, hint='set messages = "log", or configure another warehouse'
)


def path_in(warehouse: str) -> str:
    """The location of a warehouse's table of messages."""
    return own_location(warehouse, "messages")


def ensure(spark: SparkSession, path: str) -> None:
    """Create the table if it does not exist.

    Raises:
        TargetError: The table at the path has other columns.
    """
    _TABLE.ensure(spark, path)


def as_table(subscription: str, messages: Sequence[tuple[Transaction, LogicalMessage]]) -> pa.Table:
    """Messages as rows of the table, in order."""
    return pa.Table.from_pylist(
        [
            {
                "subscription": subscription,
                "lsn": str(message.lsn),
                "position": int(message.lsn),
                "finish_lsn": str(transaction.commit_lsn) if message.transactional else None,
                "xid": transaction.xid if message.transactional else None,
                "committed_at": transaction.commit_time_us + POSTGRES_EPOCH_US if message.transactional else None,
                "transactional": message.transactional,
                "prefix": message.prefix,
                "content": message.content,
            }
            for transaction, message in messages
        ],
        schema=_SCHEMA,
    )


def append(spark: SparkSession, subscription: str, messages: Callable[[], Iterable[_Message]], path: str) -> None:
    """Append a batch's messages by one commit; over 16 MiB go to Spark in parts. `messages` may be called twice."""
    parts = (as_table(subscription, part) for part in _parts(messages()))
    first, second = next(parts, None), next(parts, None)
    if first is None:
        return
    if second is None:
        frame = source.as_frame(spark, first)
    else:
        frames = [source.checkpointed_frame(spark, part) for part in (first, second)]
        del first, second
        frames.extend(source.checkpointed_frame(spark, part) for part in parts)
        frame = source.concatenated(frames)
    append_rows(frame, path)


def _parts(messages: Iterable[_Message]) -> Iterator[list[_Message]]:
    """Divide messages into lists of about 16 MiB."""
    part: list[_Message] = []
    size_bytes = 0
    for transaction, message in messages:
        part.append((transaction, message))
        size_bytes += len(message.prefix) + len(message.content) + _ROW_BYTES
        if size_bytes >= _AT_ONCE_BYTES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Selects a batch's rows of one subscription: messages whose transaction, or which themselves, end in its range."""

    path: str
    subscription: str
    start_lsn: Lsn
    end_lsn: Lsn

    @property
    def condition(self) -> str:
        """The SQL condition.

        A transaction's `finish_lsn` is the start of its commit record, so the first one's may equal the batch's start.
        A non-transactional message's LSN is the end of its record, and so the end of its place in the stream.
        """
        high, low = (f"conv(split_part(finish_lsn, '/', {part}), 16, 10)" for part in (1, 2))
        finish_lsn = f"CAST({high} AS BIGINT) * 4294967296 + CAST({low} AS BIGINT)"
        start, end = int(self.start_lsn), int(self.end_lsn)
        return (
            f"subscription = {commit_errors.literal(self.subscription)} AND CASE WHEN transactional "
            f"THEN {finish_lsn} >= {start} AND {finish_lsn} < {end} ELSE position > {start} AND position <= {end} END"
        )


def delete(spark: SparkSession, own: BatchRows) -> bool:
    """Delete a batch's rows; returns whether there were any. Without rows, or a table, there is no commit.

    Raises:
        TargetBusy: Delta has left the DELETE out by its stamp (`stamped`).
    """
    if schema_of(spark, own.path) is None:
        return False
    deleted = spark.sql(f"DELETE FROM {sql_name(own.path)} WHERE {own.condition}").collect()
    if not deleted:
        raise TargetBusy(f"{own.path}: messages could not be deleted, because the table's log has a later undo")
    return bool(deleted[0].num_affected_rows)
