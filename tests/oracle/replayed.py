"""Replays a changelog, and looks at a history as of an LSN: as a reader would who knows the documentation."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    Row = dict[str, Any]


def replayed(spark: SparkSession, path: str, key: Sequence[str], lsn: int) -> Counter[str]:
    """The rows of a table after all changes of its changelog up to an LSN, inclusive."""
    frame = spark.read.format("delta").load(path).filter(f"commit_lsn <= {lsn}").orderBy("commit_lsn", "ordinal")
    rows: dict[Any, Row] = {}
    for number, change in enumerate(frame.toArrow().to_pylist()):
        old, new = change["old"], change["new"]
        if change["operation"] == "TRUNCATE":
            rows.clear()
            continue
        of_new = None if new is None else tuple(new[name] for name in key) if key else number
        of_old = of_new if old is None else tuple(old[name] for name in key)
        before = rows.pop(of_old, None) if change["operation"] != "INSERT" else None
        if new is not None and (change["operation"] == "INSERT" or before is not None):
            kept = {name: (before or {})[name] for name in change["unchanged"] or ()}
            rows[of_new] = new | kept
    return counted(rows.values())


def as_of(spark: SparkSession, path: str, lsn: int) -> Counter[str]:
    """The rows of a table's history that are valid as of an LSN."""
    valid = f"valid_from_lsn <= {lsn} AND (valid_to_lsn IS NULL OR valid_to_lsn > {lsn})"
    frame = spark.read.format("delta").load(path).filter(valid)
    return counted(frame.drop("valid_from_lsn", "valid_to_lsn", "valid_from", "valid_to").toArrow().to_pylist())


def mirrored(spark: SparkSession, path: str, version: int | None = None) -> Counter[str]:
    """The rows of a mirror, of a version of it."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return counted(reader.load(path).toArrow().to_pylist())


def counted(rows: Any) -> Counter[str]:
    """Rows with their number."""
    return Counter(repr(sorted(row.items())) for row in rows)


def fed(spark: SparkSession, path: str, since: int = 0) -> Counter[str]:
    """The rows that a table's change data feed since a version makes of none."""
    options = {"readChangeFeed": "true", "startingVersion": str(since)}
    feed = spark.read.format("delta").options(**options).load(path)
    rows = feed.drop("_commit_version", "_commit_timestamp").toArrow().to_pylist()
    made: Counter[str] = Counter()
    for row in rows:
        made[repr(sorted((name, value) for name, value in row.items() if name != "_change_type"))] += (
            1 if row["_change_type"] in {"insert", "update_postimage"} else -1
        )
    return +made
