"""Conflicts as rows of the Delta table `<warehouse>/pgbridge/conflicts`; PostgreSQL 20 has such a table, too.

A row is a key that was in conflict. It is appended after the batch, by a commit of its own: a daemon that is killed in
between leaves it out, as it leaves it out of the counters.

Source: `conflict_log_destination` in PostgreSQL's CREATE SUBSCRIPTION.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pgbridge.bridge.lake import own_table, retry, source, writes
from pgbridge.protocol.lsn import utc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pgbridge.bridge.effects.conflicts import Conflict, Conflicts
    from pgbridge.protocol.lsn import Lsn

_SCHEMA: Final = pa.schema(
    [
        ("subscription", pa.string()),
        ("relation", pa.string()),  # schema.table
        ("conflict_type", pa.string()),  # PostgreSQL's name
        ("key", pa.string()),  # JSON: the key's columns and their values as text, cut; NULL for further keys
        ("existing_row", pa.string()),  # of the Delta table, as the log has it; NULL if it was not looked for
        ("remote_row", pa.string()),  # of the publisher
        ("changes", pa.int64()),
        ("stopped", pa.bool_()),  # whether the conflict stopped the subscription
        ("remote_xid", pa.int64()),  # NULL if the batch has several transactions
        ("finish_lsn", pa.string()),  # of the batch's last transaction
        ("position", pa.int64()),  # the same as a number, to sort by
        ("last_commit_time", pa.timestamp("us", "UTC")),  # the same transaction's; NULL if it is not known
        ("recorded_at", pa.timestamp("us", "UTC")),  # by this machine's clock
    ]
)
_TABLE: Final = own_table.OwnTable(
    "conflicts", _SCHEMA, hint='set target.conflict_log_destination = "log", or move it away: it is made again'
)


def rows_of(
    subscription: str, conflicts: Conflicts, *, xid: int | None, finish_lsn: Lsn, commit_time_us: int
) -> list[dict[str, Any]]:
    """Return the rows of a table's conflicts in a batch; the sum of their `changes` is the number of changes.

    Args:
        xid: The transaction's; None for a batch of several.
        finish_lsn: The last transaction's.
        commit_time_us: The last transaction's: microseconds since 2000-01-01 UTC; 0 if it is not known.
    """
    in_common = {
        "subscription": subscription,
        "relation": conflicts.relation,
        "stopped": conflicts.stopped,
        "remote_xid": xid,
        "finish_lsn": str(finish_lsn),
        "position": int(finish_lsn),
        "last_commit_time": utc(commit_time_us) if commit_time_us else None,
        "recorded_at": dt.datetime.now(dt.UTC),
    }
    return [{**in_common, **row} for row in _keys(conflicts)]


def _keys(conflicts: Conflicts) -> Iterator[dict[str, Any]]:
    for name, changes in conflicts.counts.items():
        kept = conflicts.kept.get(name, ())
        for conflict in kept:
            yield {"conflict_type": name, "changes": 1, **_row(conflict)}
        if changes > len(kept):
            yield {"conflict_type": name, "changes": changes - len(kept)}


def _row(conflict: Conflict) -> dict[str, str | None]:
    key = json.dumps(dict(zip(conflict.columns, conflict.values, strict=True)), ensure_ascii=False)
    return {"key": key, "existing_row": conflict.existing, "remote_row": conflict.remote}


class ConflictRows(own_table.OwnRows):
    """The table of a warehouse."""

    __slots__ = ()
    NAME = "conflicts"

    def ensure(self) -> None:
        """Create it if it is not there, while the session has no stamp.

        Raises:
            TargetError: The table at the path has other columns.
        """
        _TABLE.ensure(self.parent, self.path)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows, and flush them."""
        frame = source.as_frame(self.spark, pa.Table.from_pylist(list(rows), schema=_SCHEMA)).coalesce(1)
        retry.retry_commit(lambda: writes.append_rows(frame, self.path), self.path)
        self.local.flush([self.path])
