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

EXTENSIONS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
}


def count(conf: dict[str, str | bool], table: str, condition: str) -> int:
    """Return how many rows of a table meet a condition."""
    given = {key: str(value).lower() if isinstance(value, bool) else value for key, value in conf.items()}
    packages = [name for name in given.pop("spark.jars.packages", "").split(",") if name]
    # In this process alone: the cluster's executors are pgbridge's.
    given |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} | EXTENSIONS
    builder = SparkSession.builder.master("local[1]").config(map=given)
    spark = configure_spark_with_delta_pip(builder, packages).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark.read.format("delta").load(table).where(condition).count()


if __name__ == "__main__":
    file, table_path, where = sys.argv[1:]
    settings = tomllib.loads(Path(file).read_text(encoding="utf-8")).get("spark", {}).get("conf", {})
    sys.stdout.write(f"{count(settings, table_path, where)}\n")
