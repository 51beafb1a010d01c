"""What every commit of a batch carries, so that Delta itself refuses it a second time."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbridge.bridge.runtime.errors import OutcomeUnknown
from pgbridge.bridge.spark import outcome, session
from pgbridge.protocol.lsn import Lsn, utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

_TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

EPOCH_BITS = 20
"""Epochs of a generation of the state directory begin at its number, shifted by so many bits."""

COPY_NUMBER_BITS = 52
"""For microseconds since 1970, until the year 2112; above them is the generation of the state directory."""

TABLES_AT_ONCE = 4
"""Tables that are committed to in parallel: a small commit mostly waits for Spark's scheduler and the storage."""


@dataclass(frozen=True, slots=True)
class CommitStamp:
    """What every commit of a batch carries.

    Attributes:
        txn_app_id: Delta's application id: server, subscription, incarnation and epoch.
        start_lsn: The batch's start; of a copy, its end. Of a transaction that is replayed, the origin's LSN.
        end_lsn: The batch's end; Delta's transaction version. Delta leaves a commit out if the table has its version,
            or a higher one, of the application id.
        alters: The commits change the table's columns for the batch. They have an application id of their own, and the
            batch's user metadata, by which an undo finds them.
        part: The number of a commit that further commits of the batch to the same table follow; None for the last one,
            which has the batch's end as its version. Versions rise from the batch's start to its end, so a table that
            has the last one leaves all of them out.
        commit_time_us: When the batch's last transaction was committed: microseconds since 2000-01-01 UTC by the
            server's clock; 0 if that is not known.
        timeline: The publisher's timeline; None if it is not known.
        fences: The commit is empty. It keeps a late commit of the batch out of a table that does not have the batch.
        copy_number: Of a copy: its transaction version, which rises from copy to copy, as LSNs do not if the publisher
            goes back.
        copies_app_id: Of a copy: Delta's application id. The subscription and its tablesync worker share it, because a
            table may move from one to the other when a copy was not answered, which may still be committed.
        undo_number: Of what takes rows of the batch back: its transaction version, under an application id of its own.
        stands_on: Of what only a checkpoint is made of: the version with the table's position. The entries in between
            may be lost, as a RESTORE's.
    """

    txn_app_id: str
    start_lsn: Lsn
    end_lsn: Lsn
    alters: bool = False
    part: int | None = None
    commit_time_us: int = 0
    timeline: int | None = None
    fences: bool = False
    copy_number: int | None = None
    copies_app_id: str | None = None
    undo_number: int | None = None
    stands_on: int | None = None

    @property
    def txn_version(self) -> int:
        """Delta's transaction version."""
        if (number := self.copy_number if self.undo_number is None else self.undo_number) is not None:
            return number
        return int(self.end_lsn) if self.part is None else int(self.start_lsn) + 1 + self.part

    @property
    def after_recovery(self) -> bool:
        """Whether it is of a batch whose state was made anew, so that there may be a former owner."""
        epoch = self.txn_app_id.rpartition("/")[2]
        return epoch.isdigit() and int(epoch) >> EPOCH_BITS > 0

    @property
    def txn_app_id_in_delta(self) -> str:
        """Delta's application id."""
        if self.copies_app_id is not None:
            return self.copies_app_id
        suffix = "/alter" if self.alters else "/undo" if self.undo_number is not None else ""
        return self.txn_app_id + suffix

    @property
    def user_metadata(self) -> str:
        """The table's position as JSON, for DESCRIBE HISTORY's userMetadata (see `history.Commit`)."""
        mark: dict[str, object] = {
            "origin": self.txn_app_id,
            "start_lsn": str(self.start_lsn),
            "end_lsn": str(self.end_lsn),
        }
        if self.timeline is not None:
            mark["timeline"] = self.timeline
        if self.commit_time_us:
            mark["last_commit_time"] = utc(self.commit_time_us).isoformat()
        if self.alters or self.part is not None:
            mark["part"] = -1 if self.part is None else self.part
        if self.fences:
            mark["given_up"] = True
        if self.stands_on is not None:
            mark["stands_on"] = self.stands_on
        return json.dumps({"pgbridge": mark})


@contextmanager
def stamped(spark: SparkSession, stamp: CommitStamp) -> Iterator[None]:
    """Stamp every commit that the session makes within, in any thread: no other batch may use the session.

    After OutcomeUnknown a session of Spark Connect keeps the stamp. Its server may live on and still make a commit of
    the batch, which must not be one without a stamp; the session itself is given up (`Driver.lost`).
    """
    settings = {
        _TXN_APP_ID: stamp.txn_app_id_in_delta,
        _TXN_VERSION: str(stamp.txn_version),
        USER_METADATA: stamp.user_metadata,
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    except OutcomeUnknown:
        if session.driver_of(spark).is_ours:
            with suppress(*outcome.SPARK_ERRORS, ConnectionError):  # a JVM that has died
                _unset(spark, settings)
        raise
    except BaseException:
        _unset(spark, settings)
        raise
    _unset(spark, settings)


def _unset(spark: SparkSession, keys: Iterable[str]) -> None:
    for key in keys:
        spark.conf.unset(key)


def delta_transaction(spark: SparkSession) -> tuple[str, int] | None:
    """Delta's application id and transaction version, by which a session stamps its commits; None if it does not."""
    app_id, version = (spark.conf.get(key, None) for key in (_TXN_APP_ID, _TXN_VERSION))
    return None if app_id is None or version is None else (app_id, int(version))


def copy_stamp(spark: SparkSession, other: SparkSession) -> None:
    """Give another session the stamp that a session has now; none if it has none."""
    for key in (_TXN_APP_ID, _TXN_VERSION, USER_METADATA):
        value = spark.conf.get(key, None)
        if value is None:
            other.conf.unset(key)
        else:
            other.conf.set(key, value)


_APP_ID, _VERSION = "txnAppId", "txnVersion"


def stamp_options(stamp: CommitStamp) -> dict[str, str]:
    """The options of a writer that stamp its commit, outside of `stamped`."""
    return {
        _APP_ID: stamp.txn_app_id_in_delta,
        _VERSION: str(stamp.txn_version),
        "userMetadata": stamp.user_metadata,
    }


def stamp_of(options: Mapping[str, str]) -> tuple[str, int] | None:
    """Delta's application id and transaction version of a writer's options; None if they stamp nothing."""
    return (options[_APP_ID], int(options[_VERSION])) if _APP_ID in options else None
