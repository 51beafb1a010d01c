"""Makes the format known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("pgoutput")` known to a Spark session.

    Every process of Spark's that runs Python imports this package: install pgbridge on the executors, too.
    """
    from pgbridge.bridge.source.data_source import PgoutputSource  # noqa: PLC0415 - the command line needs no Spark for its name

    spark.dataSource.register(PgoutputSource)
