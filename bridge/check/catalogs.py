"""Rules on warehouses in Spark's catalogs. Spark is started for them, because only it can tell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.check.finding import Finding, failed, failure, passed
from bridge.lake.create import find_namespace
from bridge.runtime.errors import BridgeError
from bridge.runtime.warehouse import SPARK_CATALOG, CatalogWarehouse
from bridge.spark import session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from bridge.config.config import Spark

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
    unmade = None if spark.master.startswith("sc://") else _derby_to_be_made(spark.conf)
    findings = {
        text: passed("warehouse", f"{text}: Spark creates the metastore at the first start, in {unmade}")
        for text, catalog in catalogs.items()
        if unmade is not None and catalog.catalog == SPARK_CATALOG
    }
    left = {text: catalog for text, catalog in catalogs.items() if text not in findings}
    return {**findings, **(_by_spark(spark, left) if left else {})}


def _by_spark(spark: Spark, warehouses: Mapping[str, CatalogWarehouse]) -> dict[str, Finding]:
    try:
        started = session.start(spark.master, spark.conf, warehouses=warehouses, log=Path(os.devnull))
    except Exception as error:  # noqa: BLE001 - PySpark's, py4j's, the system's
        problem = failure("warehouse", f"Spark cannot be started: {error}", remedy="see [spark] in the configuration")
        return dict.fromkeys(warehouses, problem)
    try:
        return {text: _look(started, text, warehouse) for text, warehouse in warehouses.items()}
    finally:
        session.stop(started)


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
