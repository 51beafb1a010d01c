"""A Delta transaction that is begun here, so that what a commit relies on is looked at in the transaction itself.

Delta's Python API has no transactions; its classes in the JVM do. So this is for a Spark that runs in this process's
own JVM. While a transaction is active, Delta has every query of the thread read the table as it was at its beginning,
and the commit fails if another writer has changed what was read.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.classic.column import Column as ClassicColumn

from bridge.effects.kept_rows import TableVersion
from bridge.lake.log.local_tables import entry_of, local_folder, whole_overwrite
from bridge.lake.log.stamp import delta_transaction
from bridge.lake.table_facts import TableFacts
from bridge.spark.session import driver_of, java_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DELTA: Final = "org.apache.spark.sql.delta"


def can_begin(spark: SparkSession, path: str) -> bool:
    """Whether a transaction on a table can be begun here: its files are on this machine, and Spark is, too."""
    if local_folder(path) is None or not driver_of(spark).executors_here:
        return False  # a catalog may have another table of the name by the time of the commit
    # unless PYSPARK_PIN_THREAD says otherwise, each thread has one of the JVM, of which it is the transaction's
    return type(spark.sparkContext._gateway).__name__ == "ClientServer"  # noqa: SLF001


@contextmanager
def transaction(spark: SparkSession, path: str) -> Iterator[Transaction]:
    """Begin a transaction, if `can_begin`: this thread's active one within; what is not committed then is given up."""
    session = spark._jsparkSession  # noqa: SLF001
    # Delta takes its settings from the active session
    java_class(spark, "org.apache.spark.sql.classic.SparkSession").setActiveSession(session)
    log = java_class(spark, f"{_DELTA}.DeltaLog").forTable(session, path)
    active = getattr(java_class(spark, f"{_DELTA}.OptimisticTransaction$"), "MODULE$")
    begun = log.startTransaction()
    active.setActive(begun)
    try:
        yield Transaction(spark, log, begun)
    finally:
        active.clearActive()


class _Overwrite(NamedTuple):
    """What the log says of a commit that has replaced all files of a table.

    Attributes:
        files: The `add` actions.
        transactions: The last version of each application id that it has.
    """

    files: Sequence[Mapping[str, Any]]
    transactions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction on a Delta table."""

    _spark: SparkSession
    _log: Any
    _begun: Any

    @property
    def read_version(self) -> int:
        """The version that the commit replaces."""
        return int(self._begun.readVersion())

    @property
    def read(self) -> TableVersion:
        """The version that the commit replaces, as rows are kept of it."""
        return self._version(self.read_version)

    def _version(self, number: int) -> TableVersion:
        entry = entry_of(self._log_folder, number).stat()
        return TableVersion(str(self._begun.metadata().id()), number, (entry.st_ino, entry.st_mtime_ns))

    @property
    def _log_folder(self) -> Path:
        return Path(self._log.logPath().toUri().getPath())

    @property
    def columns(self) -> Sequence[str]:
        """The names of the table's columns."""
        return list(self._begun.metadata().schema().fieldNames())

    @property
    def facts(self) -> TableFacts:
        """The table's size and properties."""
        snapshot, metadata = self._begun.snapshot(), self._begun.metadata()
        # without a checksum, a job puts the table's state together from its log
        checksum = snapshot.checksumOpt()
        by_checksum = checksum.get() if checksum.isDefined() else None
        convert = java_class(self._spark, "scala.jdk.javaapi.CollectionConverters").asJava
        return TableFacts(
            snapshot.numOfFiles() if by_checksum is None else by_checksum.numFiles(),
            snapshot.sizeInBytes() if by_checksum is None else by_checksum.tableSizeBytes(),
            dict(convert(metadata.configuration())),
            not metadata.partitionColumns().isEmpty(),
            # a table that once was clustered counts as such
            self._begun.protocol().writerFeatureNames().contains("clustering"),
        )

    def overwrite(self, rows: DataFrame) -> TableVersion | None:
        """Replace all rows of a table without partitions by rows under its column names; its columns stay.

        Returns:
            The version that has them; None if Delta leaves the commit out, because the table has the session's stamp.
        """
        session, none = self._spark._jsparkSession, java_class(self._spark, "scala.Option").empty()  # noqa: SLF001
        nothing = self._begun.metadata().configuration().empty()
        no_columns = self._begun.metadata().partitionColumns()
        modes = java_class(self._spark, "org.apache.spark.sql.SaveMode")
        options = java_class(self._spark, f"{_DELTA}.DeltaOptions")(nothing, session.sessionState().conf())
        write_into, frame = java_class(self._spark, f"{_DELTA}.commands.WriteIntoDelta"), rows._jdf  # noqa: SLF001
        stamp = delta_transaction(self._spark)
        last = self._last_overwrite(stamp)
        mode = modes.Overwrite if last is None else modes.Append
        write = write_into(self._log, mode, options, no_columns, nothing, frame, none, none, False)
        if last is None:
            if write.hasBeenExecuted(self._begun, session, none):
                return None
        elif stamp is not None:
            app_id, number = stamp
            if last.transactions[app_id] >= number:
                return None
            self._begun.readTxn().addOne(app_id)  # as Delta's own look: whoever commits with it meanwhile is met
        written = write.writeAndReturnCommitData(self._begun, session, none, False)
        actions = written.actions()
        if last is not None:
            self._begun.readWholeTable()
            actions = self._with_removed(actions, last.files)
            write.registerOverwriteRemoveMetrics(session, self._begun, actions)
        operation = java_class(self._spark, f"{_DELTA}.DeltaOperations$Write")(modes.Overwrite, *(none,) * 8)
        committed = self._begun.commitIfNeeded(actions, operation, written.stringTags())
        return self._version(committed.get() if committed.isDefined() else self.read_version)

    def _last_overwrite(self, stamp: tuple[str, int] | None) -> _Overwrite | None:
        """The version's commit, if it was an overwrite like these, and has the application id of a stamp.

        Then the next one can name the files that it removes, and need not ask what the table has of the application id.
        Delta would put the table's state together from its log for either; for a small table that is half of a commit.
        """
        actions = whole_overwrite(self._log_folder, self.read_version)
        if actions is None:
            return None
        transactions = {action["txn"]["appId"]: int(action["txn"]["version"]) for action in actions if "txn" in action}
        if stamp is not None and stamp[0] not in transactions:
            return None
        return _Overwrite([action["add"] for action in actions if "add" in action], transactions)

    def _with_removed(self, actions: Any, files: Sequence[Mapping[str, Any]]) -> Any:
        """A commit's actions, and those that remove files."""
        convert = java_class(self._spark, "scala.jdk.javaapi.CollectionConverters")
        together = java_class(self._spark, "java.util.ArrayList")(convert.asJava(actions))
        from_json = java_class(self._spark, f"{_DELTA}.actions.Action").fromJson
        for file in files:  # without statistics, as Delta writes it
            together.add(from_json(json.dumps({"add": {**file, "stats": None}})).remove())
        return convert.asScala(together).toSeq()


class RowCounter:
    """Counts rows in the query that a commit writes, as Delta's MERGE counts its own. Each task that counts writes."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001
        metrics = java_class(spark, "org.apache.spark.sql.execution.metric.SQLMetrics")
        self._metric = metrics.createMetric(context, "rows")

    def counting(self, condition: Column) -> Column:
        """A condition that every row meets; evaluating it counts the rows that meet the other one."""
        convert = java_class(self._spark, "org.apache.spark.sql.classic.ExpressionUtils")
        every, those = (convert.expression(column._jc) for column in (F.lit(True), condition))  # noqa: SLF001
        counting = java_class(self._spark, f"{_DELTA}.metric.ConditionalIncrementMetric")
        return ClassicColumn(convert.column(counting(every, those, self._metric)))

    @property
    def rows(self) -> int:
        """How many there were, once the commit is made."""
        return int(self._metric.value())
