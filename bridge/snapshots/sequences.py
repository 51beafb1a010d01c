"""The values of published sequences, in the Delta table `<warehouse>/pgbridge/sequences`.

No stream carries them before PostgreSQL 19, nor does its own subscriber follow them: they are read from time to time.
Whoever makes a server of a lake's copy needs them, or its first INSERT takes a key that is there.

A value is not older than the rows: the LSN is read first, and a transaction that commits before it has taken its values
before. It may be newer: nextval is not undone.
"""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from pgbridge.bridge.lake import own_table, retry, source, writes
from pgbridge.bridge.receive.publisher import Publisher, quoted_name, quoted_table
from pgbridge.bridge.runtime.threads import Turns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.protocol.lsn import Lsn

_SCHEMA: Final = pa.schema(
    [
        ("subscription", pa.string()),
        ("namespace", pa.string()),
        ("name", pa.string()),
        ("data_type", pa.string()),
        ("start_value", pa.int64()),
        ("min_value", pa.int64()),
        ("max_value", pa.int64()),
        ("increment_by", pa.int64()),
        ("cycles", pa.bool_()),
        ("cache_size", pa.int64()),
        ("last_value", pa.int64()),
        ("is_called", pa.bool_()),  # whether nextval has given it; else it is the next to be given
        ("columns", pa.list_(pa.string())),  # schema.table.column, of those that take values from it
        ("lsn", pa.string()),  # rows of transactions that ended before have no later value
        ("recorded_at", pa.timestamp("us", "UTC")),  # by this machine's clock
    ]
)
_TABLE: Final = own_table.OwnTable("sequences", _SCHEMA, hint="move it away; it is made again")
_TURNS: Final = Turns("sequences", rest=9)

_FIRST_S: Final = 10.0
_AGAIN_S: Final = 60.0
"""After an error."""


class Rows(Protocol):
    """Spark's part of it (`SequenceRows`)."""

    def replace(self, subscription: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Have these rows be a subscription's, and flush them."""

    def interrupt(self) -> None:
        """End what is under way."""


@dataclass(eq=False)
class SequenceValues:
    """Writes the values of one subscription's sequences, whenever they have changed."""

    subscription: Subscription
    catalog: Catalog
    table: Rows
    log: FilteringBoundLogger
    _written: list[dict[str, Any]] | None = None
    _failed: bool = False
    _stopping: bool = False
    _publisher: Publisher | None = None
    _unreadable: frozenset[str] = frozenset()

    def start(self) -> None:
        """Begin to write, if the configuration says so."""
        if self.subscription.target.sequences_every_s:
            _TURNS.begin(self._again, _FIRST_S)

    def stop(self, *, caught_up: bool = False) -> None:
        """End, after a turn under way is cut short; a run that has caught up writes them once more."""
        self._stopping = True
        if (publisher := self._publisher) is not None:
            publisher.cut()
        self.table.interrupt()
        _TURNS.end(self._again)
        if caught_up and self.subscription.target.sequences_every_s:
            self._stopping = False
            self._again()

    def _again(self) -> float:
        """Write; returns after how many seconds to look again."""
        try:
            self.turn()
        except Exception as error:  # noqa: BLE001 - whatever it was, the subscription goes on without
            if not self._failed and not self._stopping:
                self.log.warning(
                    "values of sequences cannot be written now; this is tried again",
                    error=str(error).partition("\n")[0],
                )
            self._failed, self._written = True, None
            return _AGAIN_S
        self._failed = False
        return self.subscription.target.sequences_every_s

    @contextmanager
    def _connected(self) -> Iterator[Publisher]:
        name = f"{self.subscription.name}_sequences"
        with Publisher(self.subscription.connection, application_name=name) as publisher:
            self._publisher = publisher  # who stops cuts it
            try:
                yield publisher
            finally:
                self._publisher = None

    def turn(self) -> None:
        """Read the values, and write them if one has changed.

        Raises:
            PublisherError: They cannot be read.
            PySparkException, Py4JError, BridgeError: The table has these values, or those before.
        """
        name = self.subscription.name
        with self._connected() as publisher:
            role = quoted_name(publisher.connection.info.user)
            lsn = publisher.insert_lsn()  # before the values
            tables = [(rel.namespace, rel.name) for rel in self.catalog.rels(name)]
            read = publisher.sequences(tables, self.subscription.publications)
        unreadable = frozenset(quoted_table(row["namespace"], row["name"]) for row in read if not row["readable"])
        if new := sorted(unreadable - self._unreadable):
            self.log.warning(
                "the role may not read sequences",
                sequences=new,
                hint=f"on the server, run: GRANT SELECT ON SEQUENCE {', '.join(new)} TO {role}",
            )
        self._unreadable = unreadable
        if read != self._written:
            self.table.replace(name, [_row(name, lsn, row) for row in read if row["readable"]])
            self._written = read


def _row(subscription: str, lsn: Lsn, row: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: row[name] for name in _SCHEMA.names if name in row}
    return {"subscription": subscription, **told, "lsn": str(lsn), "recorded_at": dt.datetime.now(dt.UTC)}


class SequenceRows(own_table.OwnRows):
    """The table of a warehouse."""

    __slots__ = ()
    NAME = "sequences"

    def replace(self, subscription: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Have these rows be a subscription's, and flush them.

        Raises:
            TargetError: The table at the path has other columns.
        """
        spark = self.spark

        def commit() -> None:
            _TABLE.ensure(spark, self.path)
            frame = source.as_frame(spark, pa.Table.from_pylist(list(rows), schema=_SCHEMA)).coalesce(1)
            writes.overwrite_where(frame, self.path, f"subscription = '{subscription}'")

        retry.retry_commit(commit, self.path)
        self.local.flush([self.path])
