"""One SparkSession for the whole run: starting it costs more than most tests that use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


YOUNG_JVM = {
    # A test's JVM is young and its tables are small: compiling code, for the JVM or for a query, costs more than it
    # saves. Measured here for the first small MERGE: 12 s instead of 24 s.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
LATE_COMPILER = " ".join(
    f"-XX:Tier4{name}Threshold={calls}"
    for name, calls in {
        "Invocation": 50_000,
        "MinInvocation": 6_000,
        "Compile": 150_000,
        "BackEdge": 400_000,
    }.items()
)
"""The session's JVM grows old enough for the second compiler, but not for its own thresholds, a tenth of these: half of
its CPU time went to that compiler. Measured over 90 s of commits: 88 s of CPU instead of 110, and no slower queries."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session as the daemon makes it, on two threads, with its working files in a temporary folder.

    Tests put their Delta tables below their own `tmp_path`, and leave the session's settings as they were.
    """
    folder = tmp_path_factory.mktemp("spark")
    # a run without Spark does not pay for its import
    from pgbridge.bridge.spark.session import start

    session = start(
        "local[2]",
        {
            **YOUNG_JVM,
            "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -Xms1g -Xmn512m {LATE_COMPILER}",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
        warehouses=["s3a://lake"],  # some tests use it
    )
    # otherwise each job walks the stack of its call, a tenth of a small query's time
    for form in ("short", "long"):
        session.sparkContext.setLocalProperty(f"callSite.{form}", "a test")
    yield session
    session.stop()
