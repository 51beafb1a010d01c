"""A Spark program with the data source, to be killed: all tables of a publication into a Delta table.

    python -m tests.faults.source_query CONNINFO PUBLICATION SLOT FOLDER [MASTER] [--once]

It prints a line for each batch that Spark has committed. With --once it ends when it has what the server has.
"""

from __future__ import annotations

import sys
import time


def main() -> None:
    """Run the query until it is killed, or with --once, until it is caught up."""
    import pgbridge
    from pgbridge.bridge.spark.session import start
    from tests.fix_spark import YOUNG_JVM

    conninfo, publication, slot, folder, *rest = sys.argv[1:]
    once = "--once" in rest
    master = next((word for word in rest if not word.startswith("--")), "local[2]")
    spark = start(
        master,
        {
            **YOUNG_JVM,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": f"{folder}/local",
            "spark.executor.memory": "1g",
        },
    )
    pgbridge.register(spark)
    reader = spark.readStream.format("pgoutput").option("connection", conninfo).option("publication", publication)
    changes = reader.option("slot", slot).option("maxRowsPerTrigger", "500").load()
    writer = changes.writeStream.format("delta").option("checkpointLocation", f"{folder}/checkpoint")
    if once:
        writer.trigger(availableNow=True).start(f"{folder}/changes").awaitTermination()
        spark.stop()
        return
    query = writer.start(f"{folder}/changes")
    batch = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress.batchId != batch:
            batch = progress.batchId
            print(f"batch {batch} {progress.numInputRows}", flush=True)  # noqa: T201 - its parent reads it
        time.sleep(0.2)
    query.awaitTermination()


if __name__ == "__main__":
    main()
