"""What every commit of a batch carries, so that Delta itself refuses it a second time."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrameWriter, SparkSession

    from protocol.lsn import Lsn


_TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

TABLES_AT_ONCE = 4
"""Commits under way at once: most of a small one is waiting for Spark's scheduler and the storage."""


@dataclass(frozen=True, slots=True)
class CommitStamp:
    """What every commit of a batch carries.

    Attributes:
        txn_app_id: Delta's application id: server, subscription, incarnation and epoch.
        start_lsn: The batch's start.
        end_lsn: The batch's end; Delta's transaction version. A commit with a version that the table already
            has for the application id is left out by Delta.
        alters: The commits change the table's columns for the batch: they carry its mark, by which they are taken
            back with it, and have an application id of their own.
        part: Others of the same tables follow, which have the batch's version; None for those. Versions rise from
            start to end: with the last one there, Delta leaves all of them out.
    """

    txn_app_id: str
    start_lsn: Lsn
    end_lsn: Lsn
    alters: bool = False
    part: int | None = None

    @property
    def txn_version(self) -> int:
        """Delta's transaction version."""
        return int(self.end_lsn) if self.part is None else int(self.start_lsn) + 1 + self.part

    @property
    def txn_app_id_in_delta(self) -> str:
        """The application id as Delta gets it."""
        return f"{self.txn_app_id}/alter" if self.alters else self.txn_app_id

    @property
    def user_metadata(self) -> str:
        """The stamp for people, in `DESCRIBE HISTORY`'s userMetadata."""
        origin = {"origin": self.txn_app_id, "start_lsn": str(self.start_lsn), "end_lsn": str(self.end_lsn)}
        return json.dumps({"pgbridge": origin})


@contextmanager
def stamped(spark: SparkSession, stamp: CommitStamp) -> Iterator[None]:
    """Stamp every commit that the session makes within, from any thread. The session must be the caller's own."""
    settings = {
        _TXN_APP_ID: stamp.txn_app_id_in_delta,
        _TXN_VERSION: str(stamp.txn_version),
        USER_METADATA: stamp.user_metadata,
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)


def with_stamp(writer: DataFrameWriter, stamp: CommitStamp) -> DataFrameWriter:
    """A commit outside of `stamped`, which carries its stamp as options."""
    return writer.options(
        txnAppId=stamp.txn_app_id_in_delta, txnVersion=stamp.txn_version, userMetadata=stamp.user_metadata
    )
