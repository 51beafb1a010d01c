"""Deletion vectors of a Delta table's files: which rows of a file are deleted, by their indexes in it.

They are read and written by Delta's own classes in the JVM. See: "Deletion Vectors" in Delta's PROTOCOL.md.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pgbridge.bridge.spark.session import java_class, scala_object

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    Ints = NDArray[np.int64]

_TIGHT: Final = re.compile(r'("tightBounds"\s*:\s*)true')

_DELTA: Final = "org.apache.spark.sql.delta"


class DeletionVectors:
    """Deletion vectors of a table's files, which are `add` actions of its log, as JSON.

    Args:
        log: The table, as Delta's DeltaLog.
    """

    def __init__(self, spark: SparkSession, log: Any) -> None:
        self._spark, self._folder = spark, log.dataPath()
        self._store = java_class(spark, f"{_DELTA}.storage.dv.HadoopFileSystemDVStore")(log.newDeltaHadoopConf())

    def deleted(self, file: str) -> Ints:
        """The indexes of a file's rows that are deleted, ascending."""
        bitmap = self._bitmap(self._action(file))
        count = bitmap.cardinality()
        buffer = java_class(self._spark, "java.nio.ByteBuffer").allocate(8 * count)
        buffer.asLongBuffer().put(bitmap.toArray())
        return np.frombuffer(buffer.array(), ">i8", count).astype(np.int64)

    def mark(self, marks: dict[str, Ints]) -> dict[str, tuple[Any, Any]]:
        """Write the deletion vectors of files of which more rows are deleted, all to one file.

        Args:
            marks: By file, the indexes of rows that are not deleted yet.

        Returns:
            By file, Delta's two actions: the file without these rows, None if none is left; and that it is removed.
        """
        number = java_class(self._spark, "java.util.UUID").randomUUID()
        path = self._store.generateFileNameInTable(self._store.pathWithFileSystem(self._folder), number, "")
        writer = self._store.createWriter(path)
        try:
            return {file: self._marked(file, indexes, writer, number) for file, indexes in marks.items()}
        finally:
            writer.close()

    def _marked(self, file: str, indexes: Ints, writer: Any, number: Any) -> tuple[Any, Any]:
        action = self._action(_with_wide_bounds(file))
        bitmap = self._bitmap(action)
        bitmap.addAll(self._longs(indexes))
        if bitmap.cardinality() == action.numPhysicalRecords().get():
            return None, action.remove()
        form = scala_object(self._spark, f"{_DELTA}.deletionvectors.RoaringBitmapArrayFormat").Portable()
        content = bitmap.serializeAsByteArray(form)
        offset = java_class(self._spark, "scala.Some")(writer.write(content).offset())
        described = scala_object(self._spark, f"{_DELTA}.actions.DeletionVectorDescriptor").onDiskWithRelativePath(
            number, "", len(content), bitmap.cardinality(), offset, bitmap.last()
        )
        both = action.removeRows(described, False, True)
        return both._1(), both._2()  # noqa: SLF001 - Scala's

    def _action(self, file: str) -> Any:
        return java_class(self._spark, f"{_DELTA}.actions.Action").fromJson(file)

    def _bitmap(self, action: Any) -> Any:
        described = action.deletionVector()
        if described is None:
            return java_class(self._spark, f"{_DELTA}.deletionvectors.RoaringBitmapArray")()
        return self._store.read(described, self._folder)

    def _longs(self, values: Ints) -> Any:
        gateway: Any = self._spark.sparkContext._gateway  # noqa: SLF001
        longs = gateway.new_array(gateway.jvm.long, len(values))
        java_class(self._spark, "java.nio.ByteBuffer").wrap(values.astype(">i8").tobytes()).asLongBuffer().get(longs)
        return scala_object(self._spark, "scala.collection.immutable.ArraySeq").unsafeWrapArray(longs)


def _with_wide_bounds(file: str) -> str:
    """A file whose statistics say that they are of rows that may be deleted by now.

    Of a file without deleted rows, all other statistics stay as they are: see "Per-file Statistics" in PROTOCOL.md.
    """
    action = json.loads(file)
    stats = action["add"]["stats"]
    # as text: numbers may have more digits than Python's or Java's have
    if "tightBounds" in json.loads(stats):
        action["add"]["stats"] = _TIGHT.sub(r"\1false", stats)
    else:
        action["add"]["stats"] = f'{stats.rstrip()[:-1]},"tightBounds":false}}'
    return json.dumps(action)
