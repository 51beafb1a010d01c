"""Limits of a batch, which Spark has from 4.2 on; there `latestOffset` gets a start and a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import datasource

from pgbridge.bridge.source.slot_stream import Offset
from pgbridge.bridge.source.stream_reader import PgoutputStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pgbridge.bridge.source.options import SourceOptions
    from pgbridge.protocol.lsn import Lsn


class LimitedStreamReader(PgoutputStreamReader, datasource.SupportsTriggerAvailableNow):
    """Reads a publication's changes in batches of a size."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Lsn | None = None

    def getDefaultReadLimit(self) -> datasource.ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit, which stands for both options: Spark carries only one."""
        options = self._options
        return (
            datasource.ReadMaxBytes(options.max_bytes)
            if options.max_rows is None
            else datasource.ReadMaxRows(options.max_rows)
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note how far the server is: the query ends there."""
        self._target = self._looking().flush_lsn()

    def latestOffset(self, start: dict[str, Any], limit: datasource.ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the next batch ends; `start` if there is none."""
        begin = Offset.of(start)
        limited = not isinstance(limit, datasource.ReadAllAvailable)
        end = self._looking().latest(begin, target=self._target, limited=limited)
        return start if end.lsn == begin.lsn else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return how far the server's WAL is, for the query's progress."""
        return None if self._ahead is None else {"lsn": str(self._ahead.flush_lsn())}
