"""Starts Spark for a command that works beside the daemon, or in its place, and stops it afterwards."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from bridge.catalog.lock import spark_lock
from bridge.runtime.errors import SparkLost, TargetError
from bridge.spark import connect, session
from bridge.spark.hints import summary
from bridge.spark.outcome import SPARK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from bridge.config.config import Config, Subscription


@contextmanager
def told() -> Iterator[None]:
    """Turn Spark's errors into BridgeErrors, so that a damaged table of one subscription is told as its failure.

    Raises:
        SparkLost: Spark has ended.
        TargetError: Any other error of Spark.
    """
    try:
        yield
    except (*SPARK_ERRORS, ConnectionError) as error:  # py4j cannot connect to a JVM that has died
        if (lost := session.lost(error)) is not None:
            raise SparkLost(session.lost_text(lost), hint=session.lost_hint(lost)) from error
        if isinstance(error, ConnectionError):
            raise
        raise TargetError(summary(error)) from error


@contextmanager
def command_session(
    config: Config, subscriptions: Sequence[Subscription], *, log: str, commits: bool = False
) -> Iterator[SparkSession]:
    """Start the session that the configuration describes.

    Args:
        subscriptions: Those whose tables are read.
        log: The name of the file, in the state directory, that gets what Spark prints.
        commits: The command commits to the tables in the daemon's place. It then waits for the JVM of a daemon that was
            killed, as a daemon does.
    """
    warehouses = [subscription.warehouse for subscription in subscriptions]
    master = config.spark.master
    with spark_lock(config.state_dir) if commits and not connect.is_connect(master) else nullcontext() as keep_open:
        spark = session.start(
            master,
            config.spark.conf,
            warehouses=warehouses,
            log=config.state_dir / log,
            keep_open=keep_open,
        )
        try:
            yield spark
        finally:
            session.stop(spark)
