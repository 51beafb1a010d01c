"""Counts the rows of a Delta table that meet a condition, with the Spark settings of a configuration of pgbridge.

    python read_table.py /etc/pgbridge/pgbridge.toml s3a://lake/shop/public/orders "id = 7"

It needs a container of the image only, so that docker/smoke.sh sees what a reader of the tables sees.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

Setting = bool | float | int | str | None

SETTINGS: dict[str, Setting] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
}


def count(conf: dict[str, Setting], table: str, condition: str) -> int:
    """Return how many rows of a table meet a condition."""
    packages = [name for name in str(conf.get("spark.jars.packages", "")).split(",") if name]
    # In this process alone: the cluster's executors are pgbridge's.
    builder = SparkSession.builder.master("local[1]").config(map={**conf, **SETTINGS})
    spark = configure_spark_with_delta_pip(builder, packages).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark.read.format("delta").load(table).where(condition).count()


if __name__ == "__main__":
    file, table_path, where = sys.argv[1:]
    settings = tomllib.loads(Path(file).read_text(encoding="utf-8")).get("spark", {}).get("conf", {})
    sys.stdout.write(f"{count(settings, table_path, where)}\n")
