"""Rules on the side of the lake: the protocol and properties of Delta tables, and the warehouses of Spark's catalogs.

Tables are read from their logs, without Spark. Spark is started for catalogs, and for properties of new tables, because
only it can tell.

Source: "Protocol Evolution" and "Checkpoints" in Delta's PROTOCOL.md.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pgbridge.bridge.check.finding import Finding, failed, failure, passed, warning
from pgbridge.bridge.lake.ddl import check_properties, find_namespace
from pgbridge.bridge.runtime.errors import BridgeError, OwnColumnError
from pgbridge.bridge.runtime.warehouse import SPARK_CATALOG, CatalogWarehouse
from pgbridge.bridge.spark.launch import Launch
from pgbridge.bridge.spark.session import driver_for
from pgbridge.bridge.targets.filled import Filling, check_filled, filled_columns
from pgbridge.bridge.targets.location import sql_name
from pgbridge.bridge.targets.properties import FORGETS, RETENTION, is_short

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.config.daemon_tables import Spark

    K = TypeVar("K", bound=Hashable)

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


_DEFAULT_RETENTION: Final = "spark.databricks.delta.properties.defaults.setTransactionRetentionDuration"


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
    if not is_short(retention):
        return None
    return warning(
        subject,
        f"{RETENTION} is {retention}: {FORGETS}",
        remedy="remove the property, in Spark",
        statement=f"ALTER TABLE {sql_name(str(folder))} UNSET TBLPROPERTIES ('{RETENTION}');",
    )


def check_conf(conf: Mapping[str, str | float | bool]) -> Iterator[Finding]:
    """Look at what `[spark.conf]` gives new tables."""
    retention = str(conf.get(_DEFAULT_RETENTION, ""))
    if is_short(retention):
        yield warning(_DEFAULT_RETENTION, f"is {retention}: {FORGETS}", remedy="remove it from [spark.conf]")


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


def check_by_spark(spark: Spark, subscriptions: Sequence[Subscription], *, running: bool) -> dict[str, list[Finding]]:
    """Look at what only Spark can tell, if there is any: catalogs, and properties of new tables. Creates nothing there.

    Args:
        spark: How Spark is started.
        running: Whether a daemon runs; then it has the catalogs.

    Returns:
        Findings by the subscription's name; of a warehouse in a catalog its own, the first.
    """
    catalogs = {
        each.warehouse: place for each in subscriptions if (place := CatalogWarehouse.of(each.warehouse)) is not None
    }
    findings = {text: passed("warehouse", f"{text} is used by the daemon that runs") for text in catalogs}
    if not running:
        findings = _not_to_be_asked(spark, catalogs)
    asked = {text: place for text, place in catalogs.items() if text not in findings}
    looks = {text: partial(_look, text=text, warehouse=place) for text, place in asked.items()}
    properties = {
        (each.name, subject): partial(_create, subject=subject, properties=given)
        for each in subscriptions
        for subject, given in (_properties(each).items() if driver_for(spark.master).is_ours else ())
    }
    told = _by_spark(spark, asked, {**looks, **properties}) if looks or properties else {}
    return {
        each.name: [
            *(told_of[each.warehouse] for told_of in (findings, told) if each.warehouse in told_of),
            *dict.fromkeys(told[key] for key in properties if key[0] == each.name),
        ]
        for each in subscriptions
    }


def _properties(subscription: Subscription) -> dict[str, dict[str, str]]:
    """The properties that new tables get, by what they are properties of."""
    own = {name: subscription.properties_of(name) for name, table in subscription.tables.items() if table.properties}
    every = {"target.properties": subscription.target.properties} if subscription.target.properties else {}
    return every | {f"properties of {name}": properties for name, properties in own.items()}


def _create(spark: SparkSession, *, subject: str, properties: Mapping[str, str]) -> Finding:
    try:
        check_properties(spark, properties)
    except BridgeError as error:
        return failed(subject, error)
    return passed(subject, ", ".join(f"{name} = {value}" for name, value in properties.items()))


def _not_to_be_asked(spark: Spark, catalogs: Mapping[str, CatalogWarehouse]) -> dict[str, Finding]:
    """Findings of catalogs that the first start makes."""
    unmade = _derby_to_be_made(spark.conf) if driver_for(spark.master).is_ours else None
    return {
        text: passed("warehouse", f"{text}: Spark creates the metastore at the first start, in {unmade}")
        for text, catalog in catalogs.items()
        if unmade is not None and catalog.catalog == SPARK_CATALOG
    }


def _by_spark(
    spark: Spark, warehouses: Mapping[str, CatalogWarehouse], looks: Mapping[K, Callable[[SparkSession], Finding]]
) -> dict[K, Finding]:
    driver = driver_for(spark.master)
    try:
        started = driver.start(spark.conf, warehouses, Launch(Path(os.devnull)))
    except Exception as error:  # noqa: BLE001 - PySpark's, py4j's, the system's
        problem = failure("spark", f"Spark cannot be started: {error}", remedy="see [spark] in the configuration")
        return dict.fromkeys(looks, problem)
    try:
        return {key: look(started) for key, look in looks.items()}
    finally:
        driver.stop(started)


def _look(spark: SparkSession, *, text: str, warehouse: CatalogWarehouse) -> Finding:
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
