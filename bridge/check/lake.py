"""Rules on the side of the lake: the protocol and properties of Delta tables, and the warehouses of Spark's catalogs.

Tables are read from their logs, without Spark. Spark is started for catalogs, because only it can tell.

Source: "Protocol Evolution" and "Checkpoints" in Delta's PROTOCOL.md.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pgbridge.bridge.check.finding import Finding, failed, failure, passed, warning
from pgbridge.bridge.lake.ddl import find_namespace
from pgbridge.bridge.runtime.errors import BridgeError, OwnColumnError
from pgbridge.bridge.runtime.warehouse import SPARK_CATALOG, CatalogWarehouse
from pgbridge.bridge.spark.launch import Launch
from pgbridge.bridge.spark.session import driver_for
from pgbridge.bridge.targets.filled import Filling, check_filled, filled_columns
from pgbridge.bridge.targets.location import sql_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from pgbridge.bridge.config.config import Spark

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*parquet")
_READER, _WRITER = 3, 7
_NO_COLUMNS: Final = '{"fields": []}'

FEATURES: Final = frozenset(
    {
        "adaptivemetadata-preview", "allowcolumndefaults", "appendonly", "catalogmanaged", "changedatafeed",
        "checkconstraints", "checkpointprotection", "clustering", "columnmapping", "coordinatedcommits-preview",
        "deletionvectors", "domainmetadata", "generatedcolumns", "geospatial", "geospatial-dev", "icebergcompatv1",
        "icebergcompatv2", "icebergcompatv3", "identitycolumns", "incommittimestamp", "invariants",
        "materializepartitioncolumns", "rowtracking", "timestampntz", "typewidening", "typewidening-preview",
        "v2checkpoint", "vacuumprotocolcheck", "variantshredding", "variantshredding-preview", "varianttype",
        "varianttype-preview",
    }
)  # fmt: skip
"""The table features that delta-spark 4.4 can write, in lower case (`TableFeature.allSupportedFeaturesMap`)."""


RETENTION: Final = "delta.setTransactionRetentionDuration"
_LEAST_RETENTION_S: Final = 86_400
"""Late commits come within minutes. Nobody needs a shorter one: an application id is a line in a checkpoint."""

_DEFAULT_RETENTION: Final = "spark.databricks.delta.properties.defaults.setTransactionRetentionDuration"
_FORGETS: Final = "Delta then forgets which commits of pgbridge a table has, and one that comes late may be made twice"
_INTERVAL = re.compile(r"(\d+)\s*(second|minute|hour|day|week)", re.IGNORECASE)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}


@dataclass(frozen=True, slots=True)
class Protocol:
    """A table's protocol action; the features in lower case."""

    reader: int
    writer: int
    features: frozenset[str]


def check_target(
    relation: str,
    folder: Path,
    *,
    is_new: bool,
    adopt: bool,
    copy_data: bool,
    published: Collection[str] = (),
    keyed: bool = True,
) -> Finding | None:
    """Look at the Delta table of a published table; None if there is none yet.

    Args:
        relation: The published table.
        folder: Where its Delta table is.
        is_new: Whether the table is still to be copied.
        adopt: As configured.
        copy_data: As configured.
        published: The published columns, if these are the Delta table's; none if it has rows of another kind.
        keyed: Whether a key identifies the published table's rows, or it has INSERTs only.
    """
    subject = f"Delta table of {relation}"
    if not (folder / "_delta_log").is_dir():
        return None
    try:
        protocol = read_protocol(folder / "_delta_log")
        schema, properties = read_metadata(folder / "_delta_log")
        filled = filled_columns(schema or _NO_COLUMNS, properties)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        return failure(
            subject,
            f"the log in {folder}/_delta_log cannot be read: {error}",
            remedy="restore the table from a backup, or move it away and copy the table again",
        )
    if protocol is None:
        return failure(
            subject,
            f"the log in {folder}/_delta_log has no protocol: it is not a whole Delta table",
            remedy="move the folder away",
        )
    unknown = sorted(protocol.features - FEATURES)
    if unknown or protocol.reader > _READER or protocol.writer > _WRITER:
        needs = f"the feature {unknown[0]}" if unknown else f"protocol {protocol.reader}/{protocol.writer}"
        return failure(
            subject,
            f"the table at {folder} needs {needs}, which this pgbridge's Delta cannot write",
            remedy="drop the feature with ALTER TABLE … DROP FEATURE, or move the table away",
        )
    finding = _check_filled(subject, folder, filled, published, keyed=keyed)
    if finding is None and is_new and copy_data and not adopt:
        finding = warning(
            subject,
            f"there is a table at {folder} already: if it has rows, the copy refuses to replace them",
            remedy="move it away; or set target.adopt = true to have the copy replace its rows, or copy_data = false",
        )
    fine = passed(subject, f"{folder}, protocol {protocol.reader}/{protocol.writer}")
    return finding or _check_retention(subject, folder, properties.get(RETENTION, "")) or fine


def _check_filled(
    subject: str, folder: Path, filled: Mapping[str, Filling], published: Collection[str], *, keyed: bool
) -> Finding | None:
    try:
        if published:
            check_filled(str(folder), filled, published, keyed=keyed)
    except OwnColumnError as error:
        return failed(subject, error)
    return None


def _check_retention(subject: str, folder: Path, retention: str) -> Finding | None:
    if not _is_short(retention):
        return None
    return warning(
        subject,
        f"{RETENTION} is {retention}: {_FORGETS}",
        remedy="remove the property, in Spark",
        statement=f"ALTER TABLE {sql_name(str(folder))} UNSET TBLPROPERTIES ('{RETENTION}');",
    )


def check_conf(conf: Mapping[str, str | float | bool]) -> Iterator[Finding]:
    """Look at what `[spark.conf]` gives new tables."""
    retention = str(conf.get(_DEFAULT_RETENTION, ""))
    if _is_short(retention):
        yield warning(_DEFAULT_RETENTION, f"is {retention}: {_FORGETS}", remedy="remove it from [spark.conf]")


def _is_short(interval: str) -> bool:
    parts = _INTERVAL.findall(interval)
    return bool(parts) and sum(int(count) * _SECONDS[unit.lower()] for count, unit in parts) < _LEAST_RETENTION_S


def read_protocol(log: Path) -> Protocol | None:
    """Return the latest protocol of a table's log; None if it has none.

    Raises:
        OSError: The log cannot be read.
        ValueError: Its JSON is broken.
        pyarrow.ArrowException: Its checkpoint is.
    """
    action = _latest(log, "protocol")
    return _protocol(action) if action is not None else None


def read_metadata(log: Path) -> tuple[str, dict[str, str]]:
    """Return a table's columns, as JSON, and its properties, by its log; raises as `read_protocol` does."""
    metadata = _latest(log, "metaData") or {}
    return metadata.get("schemaString") or "", dict(metadata.get("configuration") or {})


def _latest(log: Path, kind: str) -> dict[str, Any] | None:
    names = {path.name: path for path in log.iterdir()}
    checkpoints: dict[int, list[Path]] = {}
    for name, path in names.items():
        if match := _CHECKPOINT.fullmatch(name):
            checkpoints.setdefault(int(match[1]), []).append(path)
    since = max(checkpoints, default=-1)
    commits = sorted((int(match[1]), path) for name, path in names.items() if (match := _COMMIT.fullmatch(name)))
    for _, path in reversed([commit for commit in commits if commit[0] > since]):
        for line in path.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if kind in action:
                return dict(action[kind])
    for path in checkpoints.get(since, ()):
        for column in pq.read_table(path, columns=[kind]).columns:
            for row in column.to_pylist():
                if row is not None:
                    return dict(row)
    return None


def _protocol(action: dict[str, Any]) -> Protocol:
    features = [*(action.get("readerFeatures") or ()), *(action.get("writerFeatures") or ())]
    return Protocol(
        int(action["minReaderVersion"]), int(action["minWriterVersion"]), frozenset(map(str.lower, features))
    )


_URL = "spark.hadoop.javax.jdo.option.ConnectionURL"
_DERBY = "jdbc:derby:"


def check_catalogs(spark: Spark, warehouses: Sequence[str], *, running: bool) -> dict[str, Finding]:
    """Look whether Spark can use the catalogs of warehouses. Creates nothing in them.

    Args:
        spark: How Spark is started.
        warehouses: As configured; those that are not in a catalog are ignored.
        running: Whether a daemon runs; then it has the catalogs, and nothing is started.

    Returns:
        A finding for each warehouse in a catalog.
    """
    catalogs = {text: warehouse for text in warehouses if (warehouse := CatalogWarehouse.of(text)) is not None}
    if running:
        return {text: passed("warehouse", f"{text} is used by the daemon that runs") for text in catalogs}
    unmade = _derby_to_be_made(spark.conf) if driver_for(spark.master).is_ours else None
    findings = {
        text: passed("warehouse", f"{text}: Spark creates the metastore at the first start, in {unmade}")
        for text, catalog in catalogs.items()
        if unmade is not None and catalog.catalog == SPARK_CATALOG
    }
    left = {text: catalog for text, catalog in catalogs.items() if text not in findings}
    return {**findings, **(_by_spark(spark, left) if left else {})}


def _by_spark(spark: Spark, warehouses: Mapping[str, CatalogWarehouse]) -> dict[str, Finding]:
    driver = driver_for(spark.master)
    try:
        started = driver.start(spark.conf, warehouses, Launch(Path(os.devnull)))
    except Exception as error:  # noqa: BLE001 - PySpark's, py4j's, the system's
        problem = failure("warehouse", f"Spark cannot be started: {error}", remedy="see [spark] in the configuration")
        return dict.fromkeys(warehouses, problem)
    try:
        return {text: _look(started, text, warehouse) for text, warehouse in warehouses.items()}
    finally:
        driver.stop(started)


def _look(spark: SparkSession, text: str, warehouse: CatalogWarehouse) -> Finding:
    try:
        exists = find_namespace(spark, warehouse.catalog, warehouse.namespace)
    except BridgeError as error:
        return failed("warehouse", error)
    if exists:
        return passed("warehouse", f"{text} can be read")
    return passed("warehouse", f"{text}: the namespace does not exist yet; it is created with the first table")


def _derby_to_be_made(conf: Mapping[str, str | float | bool]) -> Path | None:
    """The folder of Spark's own metastore, if it is of that kind and does not exist."""
    if any("hive.metastore.uris" in key for key in conf):
        return None
    url = str(conf.get(_URL, f"{_DERBY};databaseName=metastore_db;create=true"))
    options = dict(part.partition("=")[::2] for part in url.removeprefix(_DERBY).split(";"))
    folder = Path(options.get("databaseName") or url.removeprefix(_DERBY).partition(";")[0])
    return folder.resolve() if url.startswith(_DERBY) and not folder.exists() else None
