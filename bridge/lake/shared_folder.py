"""Finds out whether Spark's executors write to the folder that this process and the driver see.

If a warehouse is a folder and each machine has its own of that name, executors put the files of a commit on their own
disks, and the driver puts the commit into the log on its own: each step succeeds, and no reader finds the rows.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.lake.location import place_of
from pgbridge.bridge.lake.log.local_log import folder_uri, local_folder
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, executor_hint, is_lost, summary
from pgbridge.bridge.spark.session import driver_of
from pgbridge.bridge.targets.location import catalog_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS: Final = 16
"""Enough for a few machines to have one; which executor runs a task is Spark's choice."""


class SharedFolders:
    """Looks at the folders of a catalog's tables, each once: where a table lies is known when it exists."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._checked: set[str] = set()

    def check(self, location: str) -> None:
        """Do as `check_shared` in the folder that an existing table of a catalog lies in; leave other tables alone."""
        if catalog_parts(location) is None or driver_of(self._spark).executors_here:
            return
        place = place_of(self._spark, location)
        parent = "" if place is None else place.rstrip("/").rpartition("/")[0]
        if parent and parent not in self._checked:
            check_shared(self._spark, parent)
            self._checked.add(parent)


def check_shared(spark: SparkSession, warehouse: str) -> None:
    """Have executors write to a warehouse that is a folder, and look for what they wrote.

    Args:
        spark: A session; if all of Spark is on this machine, nothing is done.
        warehouse: A path or URI; one that is no folder is left alone.

    Raises:
        TargetError: Files are missing, or executors cannot write there.
        PySparkException, Py4JError: The connection to Spark is lost.
    """
    folder = local_folder(warehouse)
    if folder is None or driver_of(spark).executors_here:
        return
    folder.mkdir(parents=True, exist_ok=True)
    probe = Path(tempfile.mkdtemp(prefix=".pgbridge-shared-", dir=folder))
    probe.chmod(folder.stat().st_mode & 0o777)  # executors may run as another user, as they do when they write tables
    try:
        rows = spark.range(0, _TASKS, 1, _TASKS)
        try:
            rows.write.csv(folder_uri(probe / "written"))
        except SPARK_ERRORS as error:
            if is_lost(error):
                raise
            raise TargetError(
                f"Spark's executors cannot write to {folder}: {summary(error)}",
                hint=executor_hint(error) or "they need the folder, and the right to write there",
            ) from error
        files = len(list((probe / "written").glob("part-*.csv")))
    finally:
        with suppress(OSError):
            shutil.rmtree(probe)
    if files < _TASKS:
        raise TargetError(
            f"{folder} is not the same folder for Spark's executors: of {_TASKS} files that they wrote there, this "
            f"machine has {files}",
            hint="set warehouse to storage that all machines share: an object store, HDFS, or a network file system "
            "that is mounted at this path everywhere (docs/clusters.md)",
        )
