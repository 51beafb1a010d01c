"""Reads a table's latest commits: of a local table from its log, at next to no cost, else by DESCRIBE HISTORY."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from bridge.apply.delta.delta_table import described_history, schema_of
from bridge.apply.delta.history import Commit, History
from bridge.apply.delta.local_log import log_of
from bridge.apply.delta.location import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession


def history_of(spark: SparkSession, path: str) -> History:
    """A table's history, which is read as far back as it is asked for."""
    return History(path, lambda latest: log_commits(spark, path, latest))


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
    entries = sorted((entry for entry in log.glob("*.json") if entry.stem.isdigit()), reverse=True)
    for entry in entries[:latest]:
        try:
            with entry.open(encoding="utf-8") as lines:
                # the first line, except in commits of other writers
                found = (json.loads(line) for line in lines if '"commitInfo"' in line)
                info: dict[str, Any] = next((action["commitInfo"] for action in found if "commitInfo" in action), {})
        except FileNotFoundError:  # Delta has removed what is older than the log's retention
            return
        yield Commit.of_log(int(entry.stem), info)
