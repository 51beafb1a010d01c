"""A Delta transaction that is begun here, so that what a commit relies on is looked at in the transaction itself.

Delta's Python API has no transactions; its classes in the JVM do. So this is for a Spark that runs in this process's
own JVM. While a transaction is active, Delta has every query of the thread read the table as it was at its beginning,
and the commit fails if another writer has changed what was read.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from pyspark.sql.types import DataType, StructType

from pgbridge.bridge.effects.kept import TableVersion
from pgbridge.bridge.lake.deletion_vectors import DeletionVectors
from pgbridge.bridge.lake.log.latest import LatestVersion, begin, has_made
from pgbridge.bridge.lake.log.local_log import local_folder
from pgbridge.bridge.lake.log.stamp import USER_METADATA, delta_transaction, stamp_of
from pgbridge.bridge.lake.table_facts import TableFacts
from pgbridge.bridge.spark.session import driver_of, java_class, scala_object
from pgbridge.bridge.targets.location import catalog_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from pgbridge.bridge.effects.row_places import Ints
    from pgbridge.bridge.lake.log.stamp import CommitStamp

_DELTA: Final = "org.apache.spark.sql.delta"

_FEW_ACTIONS: Final = 8
"""The files of a table that are named for its next overwrite; those of a larger one Delta puts together."""


def can_begin(spark: SparkSession, path: str) -> bool:
    """Whether a transaction on a table can be begun here: Spark is on this machine, with its executors."""
    return driver_of(spark).executors_here and can_stage(spark, path)


def can_stage(spark: SparkSession, path: str) -> bool:
    """Whether rows can be written to a table's data files beforehand: its driver is this process's own JVM."""
    if catalog_parts(path) is not None or not driver_of(spark).is_ours:
        return False  # a catalog may have another table of the name by the time of the commit
    # unless PYSPARK_PIN_THREAD says otherwise, each thread has one of the JVM, of which it is the transaction's
    return type(spark.sparkContext._gateway).__name__ == "ClientServer"  # noqa: SLF001


@contextmanager
def transaction(spark: SparkSession, path: str, options: Mapping[str, str] | None = None) -> Iterator[Transaction]:
    """Begin a transaction, if `can_begin`: this thread's active one within; what is not committed then is given up.

    Args:
        options: Those of a writer of Delta's, for what is written.
    """
    session = spark._jsparkSession  # noqa: SLF001
    # Delta takes its settings from the active session
    java_class(spark, "org.apache.spark.sql.classic.SparkSession").setActiveSession(session)
    log = _delta_log(spark, path)
    active = scala_object(spark, f"{_DELTA}.OptimisticTransaction")
    latest = begin(spark, path, log)
    active.setActive(latest.begun)
    try:
        # by one call: each round trip to the JVM takes its time
        metadata = json.loads(latest.begun.metadata().json())["metaData"]
        yield Transaction(spark, log, latest, metadata, options or {})
    finally:
        active.clearActive()


def has_just_committed(spark: SparkSession, path: str, stamp: CommitStamp) -> bool:
    """Whether the last commit to a table on an object store is known to be this one, and the one before this process's.

    False says nothing. It is for a store, where to read the table's history takes seven requests.
    """
    return (
        local_folder(path) is None and can_begin(spark, path) and has_made(_delta_log(spark, path), stamp.user_metadata)
    )


def _delta_log(spark: SparkSession, path: str) -> Any:
    return java_class(spark, f"{_DELTA}.DeltaLog").forTable(spark._jsparkSession, path)  # noqa: SLF001


class MergeCounts(NamedTuple):
    """Rows of the target that a MERGE has changed."""

    updated: int
    deleted: int
    inserted: int


class Replaced(NamedTuple):
    """What a commit of `Transaction.replace_at` has made.

    Attributes:
        version: The version that has it.
        files: What became of the files with deleted rows; None of one without any other row.
        added: The new files.
    """

    version: TableVersion
    files: Mapping[str, str | None]
    added: Sequence[str]


@dataclass(frozen=True)
class Transaction:
    """A transaction on a Delta table, whose version, and so what is asked of it, stays as it is."""

    _spark: SparkSession
    _log: Any
    _latest: LatestVersion
    _metadata: Mapping[str, Any]  # as Delta's log has it
    _options: Mapping[str, str]

    @property
    def read_version(self) -> int:
        """The version that the commit replaces."""
        return int(self._latest.begun.readVersion())

    @property
    def read(self) -> TableVersion:
        """The version that the commit replaces, as rows are kept of it."""
        return self._version(self.read_version)

    def _version(self, number: int) -> TableVersion:
        return TableVersion(self._metadata["id"], number, self._latest.entry(number))

    @cached_property
    def facts(self) -> TableFacts:
        """The table's size and properties."""
        snapshot = self._latest.begun.snapshot()
        checksum = snapshot.checksumOpt()  # without it, a job puts the table's state together from its log
        by_checksum = checksum.get() if checksum.isDefined() else None
        return TableFacts(
            snapshot.numOfFiles() if by_checksum is None else by_checksum.numFiles(),
            snapshot.sizeInBytes() if by_checksum is None else by_checksum.tableSizeBytes(),
            self._metadata["configuration"],
            bool(self._metadata["partitionColumns"]),
            # a table that once was clustered counts as such
            self._latest.begun.protocol().writerFeatureNames().contains("clustering"),
        )

    def takes(self, rows: DataFrame) -> bool:
        """Whether rows have the table's columns, and no others, in the table's own types."""
        return _types(rows.schema) == _types(self.schema)

    def name_in_files(self, column: str) -> str:
        """The name that a column of the table has in data files: another one with column mapping."""
        return str(self.schema[column].metadata.get("delta.columnMapping.physicalName", column))

    @property
    def folder(self) -> Path:
        """The folder of a local table."""
        return Path(self._log.dataPath().toUri().getPath())

    @cached_property
    def schema(self) -> StructType:
        """Its columns."""
        return StructType.fromJson(json.loads(self._metadata["schemaString"]))

    @cached_property
    def deletion_vectors(self) -> DeletionVectors:
        """Those of its files."""
        return DeletionVectors(self._spark, self._log)

    @property
    def files(self) -> list[str]:
        """All data files, as `add` actions in JSON; Delta puts them together from its log by a job."""
        return _json_of(self._latest.begun.snapshot().allFiles().collectAsList())

    @cached_property
    def named_files(self) -> list[dict[str, Any]] | None:
        """The `add` actions of all data files, if the latest commit has written them all, or there are none; no job."""
        actions = self._latest.whole_overwrite()
        return None if actions is None else [action["add"] for action in actions if "add" in action]

    def append(self, rows: DataFrame, stamps: Collection[CommitStamp] = ()) -> TableVersion | None:
        """Add rows, under the table's column names; returns as `overwrite`."""
        _, written = self._written(rows, self._modes.Append)
        if written is None:
            return None
        stamped = self._sequence(map(self._stamp_action, stamps), written.actions()) if stamps else written.actions()
        return self._version(self._commit(stamped, self._operation(self._modes.Append), written.stringTags()))

    def rely_on_all(self) -> None:
        """Have the commit fail if another writer commits rows or files meanwhile."""
        self._latest.begun.readWholeTable()

    def overwrite(self, rows: DataFrame) -> TableVersion | None:
        """Replace all rows of a table without partitions by rows under its column names; its columns stay.

        The files that it removes are named, if `named_files` does: for a small table that saves half of a commit.

        Returns:
            The version that has them; None if Delta leaves the commit out, because the table has the stamp.
        """
        last = self.named_files
        write, written = self._written(rows, self._modes.Overwrite if last is None else self._modes.Append)
        if written is None:
            return None
        actions = written.actions()
        if last is not None:
            self.rely_on_all()
            bare = [json.dumps({"add": {**add, "stats": None}}) for add in last]  # without statistics, as Delta does
            actions = self._sequence([self._action(add).remove() for add in bare], actions)
            write.registerOverwriteRemoveMetrics(self._session, self._latest.begun, actions)
        operation, tags = self._operation(self._modes.Overwrite), written.stringTags()

        def whole() -> list[str] | None:
            # Delta gives files their row ids as it commits
            tracked = self._latest.begun.protocol().writerFeatureNames().contains("rowTracking")
            return None if tracked or written.actions().size() > _FEW_ACTIONS else self._added(written.actions())

        return self._version(self._commit(actions, operation, tags, whole))

    def stage(self, rows: DataFrame) -> list[str]:
        """Write rows, under the table's column names, to data files that no version has yet.

        Returns:
            The files, as `add` actions in JSON, for `overwrite_by`.
        """
        return self._added(self._written(rows, self._modes.Append)[1].actions())

    def has_file(self, file: str) -> bool:
        """Whether a data file is there that was staged: a VACUUM removes it, once it is old."""
        folder, name = self._log.dataPath(), unquote(json.loads(file)["add"]["path"])
        place = java_class(self._spark, "org.apache.hadoop.fs.Path")(folder, name)
        return bool(folder.getFileSystem(self._log.newDeltaHadoopConf()).exists(place))

    @property
    def layout(self) -> str:
        """What data files depend on: the table's identity, columns, partitions and properties, in JSON."""
        return json.dumps(self._metadata, sort_keys=True)

    def overwrite_by(self, files: Sequence[str], stamp: CommitStamp) -> None:
        """Replace all rows by those of files that were staged, unless the table has the stamp."""
        if not self.lacks(stamp):
            return
        before = self._java(self._latest.begun.filterFiles())  # whoever commits rows meanwhile is met, too
        there = {before.get(number).path(): before.get(number) for number in range(before.size())}
        new = {json.loads(file)["add"]["path"]: file for file in files}
        # of a copy that was cut short after its commit, the table has all files, perhaps with rows deleted since
        same = {path for path in there.keys() & new.keys() if there[path].deletionVector() is None}
        removed = [there[path].remove() for path in there.keys() - same]
        added = [self._action(new[path]) for path in new.keys() - same]
        self._commit_actions([*removed, self._stamp_action(stamp), *added], self._modes.Overwrite)

    def commit_nothing(self, stamps: Iterable[CommitStamp]) -> None:
        """Have the table have stamps, by a commit with those that it lacks and with the options' user metadata."""
        if lacking := [self._stamp_action(stamp) for stamp in stamps if self.lacks(stamp)]:
            self._commit_actions(lacking, self._modes.Append)

    def lacks(self, stamp: CommitStamp) -> bool:
        """Whether the table does not have a stamp; whoever commits with it meanwhile is met."""
        return int(self._latest.begun.txnVersion(stamp.txn_app_id_in_delta)) < stamp.txn_version

    def _stamp_action(self, stamp: CommitStamp) -> Any:
        return self._action(json.dumps({"txn": {"appId": stamp.txn_app_id_in_delta, "version": stamp.txn_version}}))

    def _action(self, action: str) -> Any:
        return java_class(self._spark, f"{_DELTA}.actions.Action").fromJson(action)

    def _commit_actions(self, actions: Iterable[Any], mode: Any) -> None:
        no_tags = self._latest.begun.metadata().configuration().empty()
        self._commit(self._sequence(actions), self._operation(mode), no_tags)

    def replace_at(self, marks: dict[str, Ints], rows: DataFrame, counts: MergeCounts) -> Replaced | None:
        """Delete rows by their places, and add others, in a commit that looks like a MERGE.

        Args:
            marks: Indexes of rows, which are not deleted, by the file, as `files` has it.
            rows: The new rows, in one partition, under the table's column names.
            counts: What it does, for the table's history.

        Returns:
            What it has made; None if Delta leaves the commit out, because the table has the stamp.
        """
        _, written = self._written(rows, self._modes.Append)
        if written is None:
            return None
        self.rely_on_all()
        marked = self.deletion_vectors.mark(marks)
        others = [action for both in marked.values() for action in both if action is not None]
        self._register(counts)
        nil = scala_object(self._spark, "scala.collection.immutable.Nil")
        merge = java_class(self._spark, f"{_DELTA}.DeltaOperations$Merge")(*(self._none,) * 4, nil, nil, nil)
        added = self._added(written.actions())
        version = self._commit(self._sequence(others, written.actions()), merge, written.stringTags())
        files = {file: None if left is None else left.json() for file, (left, _) in marked.items()}
        return Replaced(self._version(version), files, added)

    def _register(self, counts: MergeCounts) -> None:
        """Have the table's history show what a MERGE does."""
        metrics = java_class(self._spark, "org.apache.spark.sql.execution.metric.SQLMetrics")
        registered = scala_object(self._spark, "scala.collection.immutable.Map").empty()
        shown = {
            "operationNumSourceRows": sum(counts),
            "numTargetRowsUpdated": counts.updated,
            "numTargetRowsDeleted": counts.deleted,
            "numTargetRowsInserted": counts.inserted,
        }
        for name, count in shown.items():
            metric = metrics.createMetric(self._spark.sparkContext._jsc.sc(), name)  # noqa: SLF001
            metric.set(count)
            registered = registered.updated(name, metric)
        self._latest.begun.registerSQLMetrics(self._session, registered)

    @property
    def _session(self) -> Any:
        return self._spark._jsparkSession  # noqa: SLF001

    @property
    def _none(self) -> Any:
        return java_class(self._spark, "scala.Option").empty()

    @property
    def _modes(self) -> Any:
        return java_class(self._spark, "org.apache.spark.sql.SaveMode")

    def _operation(self, mode: Any) -> Any:
        user_metadata = java_class(self._spark, "scala.Option").apply(self._options.get("userMetadata"))
        write = java_class(self._spark, f"{_DELTA}.DeltaOperations$Write")
        return write(mode, self._none, self._none, user_metadata, *(self._none,) * 5)

    def _written(self, rows: DataFrame, mode: Any) -> tuple[Any, Any]:
        """Delta's command that writes rows, and what it has written; None if the table has their stamp."""
        nothing = self._latest.begun.metadata().configuration().empty()
        no_columns = self._latest.begun.metadata().partitionColumns().take(0)
        given = nothing
        for key, value in self._options.items():
            given = given.updated(key, value)
        options = java_class(self._spark, f"{_DELTA}.DeltaOptions")(given, self._session.sessionState().conf())
        command, frame = java_class(self._spark, f"{_DELTA}.commands.WriteIntoDelta"), rows._jdf  # noqa: SLF001
        write = command(self._log, mode, options, no_columns, nothing, frame, self._none, self._none, False)
        if self._has_been_executed(write, options):
            return write, None
        return write, write.writeAndReturnCommitData(self._latest.begun, self._session, self._none, False)

    def _has_been_executed(self, write: Any, options: Any) -> bool:
        """Whether the table has the stamp of what is written.

        A recent commit mostly has the application id, or the log is young: then its entries tell the last number. Delta
        would put the table's state together from its log.
        """
        stamp = stamp_of(self._options) or delta_transaction(self._spark)
        if stamp is None:
            return False
        app_id, number = stamp
        last = self._latest.last_transaction(app_id)
        if last is None:
            given = java_class(self._spark, "scala.Option").apply(options)
            return bool(write.hasBeenExecuted(self._latest.begun, self._session, given))
        self._latest.begun.readTxn().addOne(app_id)  # as Delta's own look: whoever commits with it meanwhile is met
        return last >= number

    def _commit(
        self, actions: Any, operation: Any, tags: Any, whole: Callable[[], list[str] | None] = lambda: None
    ) -> int:
        """Commit, and return the version that has it; `whole` tells the files that it adds, if those are all."""
        committed = self._latest.begun.commitIfNeeded(actions, operation, tags)
        if not committed.isDefined():
            return self.read_version
        version = int(committed.get())
        self._latest.committed(version, whole, self._user_metadata)
        return version

    def _user_metadata(self) -> str | None:
        return self._options.get("userMetadata") or self._spark.conf.get(USER_METADATA, None)

    def _sequence(self, actions: Iterable[Any], before: Any = None) -> Any:
        """Actions as a sequence of Scala's, after those of another one."""
        together = java_class(self._spark, "java.util.ArrayList")(*([] if before is None else [self._java(before)]))
        for action in actions:
            together.add(action)
        return java_class(self._spark, "scala.jdk.javaapi.CollectionConverters").asScala(together).toSeq()

    def _java(self, sequence: Any) -> Any:
        return java_class(self._spark, "scala.jdk.javaapi.CollectionConverters").asJava(sequence)

    def _added(self, actions: Any) -> list[str]:
        """The data files that actions add, as JSON."""
        return [action for action in _json_of(self._java(actions)) if "add" in json.loads(action)]


def _json_of(actions: Any) -> list[str]:
    # not by iterating: py4j ends that with an exception of Java's, which PySpark takes for one of Spark's
    return [actions.get(number).json() for number in range(actions.size())]


def _types(schema: StructType) -> dict[str, DataType]:
    return {field.name: field.dataType for field in schema}
