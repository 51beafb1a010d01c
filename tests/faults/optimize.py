"""OPTIMIZE of Delta tables by hand, in a Spark of its own, as an operator does while the daemon is stopped."""

from __future__ import annotations

import sys

from pgbridge.bridge.spark import session


def main(paths: list[str]) -> None:
    """Compact each table."""
    spark = session.start("local[2]", {"spark.driver.memory": "1g"})
    for path in paths:
        spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    session.driver_of(spark).stop(spark)


if __name__ == "__main__":
    main(sys.argv[1:])
