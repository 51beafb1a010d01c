"""What a transaction relies on in its table's log: of files on a local disk, or of what this process has committed.

Delta would put the table's state together from its log for each of these answers: by a job, and on an object store by
two requests for each entry since the last checkpoint.

On a local disk the entries themselves tell. On a store a commit of this process is believed, as long as it is the
latest one and its entry is the one that was written then: a log that is put back from a backup may have other entries
under the same numbers, and the checksums of those before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pgbridge.bridge.lake.log.local_log import entry_of, identity, last_transaction, local_folder, whole_overwrite
from pgbridge.bridge.spark.session import java_class

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from pgbridge.bridge.effects.kept import Entry


class LatestVersion(Protocol):
    """The version of a table that a transaction begins with.

    Attributes:
        begun: Delta's transaction.
    """

    begun: Any

    def entry(self, version: int) -> Entry | None:
        """What tells a version's entry from another one under its number; None if that is not known."""

    def last_transaction(self, app_id: str) -> int | None:
        """The number of an application id's last transaction; less than any if there is none; None if not known."""

    def whole_overwrite(self) -> Sequence[dict[str, Any]] | None:
        """The actions of its commit, if they add all files of the table; none of a table without files; or None."""

    def committed(
        self, version: int, whole: Callable[[], Sequence[str] | None], user_metadata: Callable[[], str | None]
    ) -> None:
        """Note that the transaction is committed as a version; `whole` tells its `add` actions, if those are all.

        Both are asked for only where they are kept.
        """


def begin(spark: SparkSession, path: str, log: Any) -> LatestVersion:
    """Begin a transaction on a table's latest version, which Delta's `DeltaLog` is of."""
    return _OnStore(spark, log) if local_folder(path) is None else _OnDisk(spark, log)


def has_made(log: Any, user_metadata: str) -> bool:
    """Whether the last two commits to a table on a store are of this process, the last one with this metadata.

    Nothing is read. False says nothing: the log itself has to be read then.
    """
    kept = _OnStore.kept.get(log.logPath().toString())
    if kept is None or not kept.follows or kept.user_metadata != user_metadata:
        return False
    return kept.entry == _entry_of(log.unsafeVolatileSnapshot())


class _Noted(NamedTuple):
    """The end of a log after a commit of this process.

    Attributes:
        version: The version.
        entry: Its entry.
        hint: What Delta writes after a checkpoint, as it was when Delta last listed the log.
    """

    version: int
    entry: Entry
    hint: Entry | None


class _OnDisk:
    """A table of a local folder.

    Delta lists the log to find the latest version: all of it, on a local disk. Its own snapshot is of the latest one if
    that is a commit of this process, the table was not replaced since, and there is no entry after it. After a
    checkpoint Delta lists: its snapshot would begin with the one before for ever.
    """

    _noted: Final[dict[Path, _Noted]] = {}  # by the folder of the log

    def __init__(self, spark: SparkSession, log: Any) -> None:
        self._log = Path(log.logPath().toUri().getPath())
        none, self._hint = java_class(spark, "scala.Option").empty(), identity(self._log / "_last_checkpoint")
        noted, snapshot = self._noted.get(self._log), none
        if noted is not None and (noted.entry, noted.hint) == (self.entry(noted.version), self._hint):
            known = log.unsafeVolatileSnapshot()
            if known.version() == noted.version and not entry_of(self._log, noted.version + 1).exists():
                snapshot = java_class(spark, "scala.Option").apply(known)
        self.begun = log.startTransaction(none, snapshot)
        self._version = int(self.begun.readVersion())

    def entry(self, version: int) -> Entry | None:
        return identity(entry_of(self._log, version))

    def last_transaction(self, app_id: str) -> int | None:
        return last_transaction(self._log, self._version, app_id)

    def whole_overwrite(self) -> Sequence[dict[str, Any]] | None:
        return whole_overwrite(self._log, self._version)

    def committed(
        self, version: int, whole: Callable[[], Sequence[str] | None], user_metadata: Callable[[], str | None]
    ) -> None:
        del whole, user_metadata  # the entry itself tells
        if (entry := self.entry(version)) is not None:  # the table may have gone meanwhile
            self._noted[self._log] = _Noted(version, entry, self._hint)


class _Kept(NamedTuple):
    """A commit of this process to a table on a store.

    Attributes:
        entry: Its entry.
        actions: Those of the commit, if they add all files of the table.
        user_metadata: The commit's.
        follows: The version before is one of this process, too.
    """

    entry: Entry
    actions: Sequence[dict[str, Any]] | None
    user_metadata: str | None
    follows: bool


class _OnStore:
    """A table on an object store."""

    kept: Final[dict[str, _Kept]] = {}  # by the location of the log

    def __init__(self, spark: SparkSession, log: Any) -> None:
        self._log, self._place = log, log.logPath().toString()
        none = java_class(spark, "scala.Option").empty()
        self.begun = log.startTransaction(none, none)
        self._snapshot = self.begun.snapshot()
        kept = self.kept.get(self._place)
        self._latest = kept if kept is not None and kept.entry == _entry_of(self._snapshot) else None

    def entry(self, version: int) -> Entry | None:
        for snapshot in (self._snapshot, self._log.unsafeVolatileSnapshot()):
            if snapshot.version() == version:
                return _entry_of(snapshot)
        return None  # another writer has committed since

    def last_transaction(self, app_id: str) -> int | None:
        checksum = self._snapshot.checksumOpt() if self._latest is not None else None
        if checksum is None or not checksum.isDefined() or not checksum.get().setTransactions().isDefined():
            return None
        listed = checksum.get().setTransactions().get()
        transactions = [listed.apply(number) for number in range(listed.size())]
        return max((int(each.version()) for each in transactions if each.appId() == app_id), default=-1)

    def whole_overwrite(self) -> Sequence[dict[str, Any]] | None:
        if self._latest is None or self._latest.actions is None:
            return None
        checksum = self._snapshot.checksumOpt().get()  # it is there: the entry is known by it
        return self._latest.actions if checksum.numFiles() == len(self._latest.actions) else None

    def committed(
        self, version: int, whole: Callable[[], Sequence[str] | None], user_metadata: Callable[[], str | None]
    ) -> None:
        entry, files = self.entry(version), whole()
        if entry is not None and entry[-1] == self.begun.txnId():
            actions = None if files is None else [json.loads(file) for file in files]
            follows = self._latest is not None and version == self._snapshot.version() + 1
            self.kept[self._place] = _Kept(entry, actions, user_metadata(), follows)
        else:
            self.kept.pop(self._place, None)


def _entry_of(snapshot: Any) -> Entry | None:
    """What tells the entry of a snapshot's version: number, length, second of its last change, and transaction."""
    deltas, checksum = snapshot.logSegment().deltas(), snapshot.checksumOpt()
    if deltas.isEmpty() or not checksum.isDefined() or not checksum.get().txnId().isDefined():
        return None
    file = deltas.last()
    number = int(file.getPath().getName().split(".")[0])
    if number != snapshot.version():
        return None  # after a checkpoint there may be none
    return number, file.getLen(), file.getModificationTime() // 1000, checksum.get().txnId().get()
