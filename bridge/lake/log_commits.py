"""Reads a table's latest commits: of a local table from its log, at next to no cost, else by DESCRIBE HISTORY."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from bridge.lake.location import place_of
from bridge.lake.log.history import Commit, History
from bridge.lake.log.local_log import entry_of, info_of, latest_version, log_of
from bridge.lake.table import described_history, schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession


def history_of(spark: SparkSession, path: str, at_first: int = 50) -> History:
    """A table's history, which is read as far back as it is asked for."""
    return History(path, lambda latest: log_commits(spark, path, latest), at_first)


def log_commits(spark: SparkSession, path: str, latest: int) -> Sequence[Commit]:
    """The latest commits, the latest first; none if there is no table."""
    log = log_of(place_of(spark, path))
    if log is not None:
        return list(_local(log, latest))
    return described_commits(spark, path, latest)


def described_commits(spark: SparkSession, path: str, latest: int) -> Sequence[Commit]:
    """The same by DESCRIBE HISTORY, wherever the table is."""
    try:
        rows = described_history(spark, path, latest)
    except AnalysisException:
        if schema_of(spark, path) is None:
            return ()
        raise
    return [Commit.of(row) for row in rows]


def _local(log: Path, latest: int) -> Iterator[Commit]:
    newest = latest_version(log)
    for version in range(newest, max(-1, newest - latest), -1):
        try:
            info = info_of(entry_of(log, version))
        except FileNotFoundError:  # Delta has removed what is older than the log's retention
            return
        yield Commit.of_log(version, info)
