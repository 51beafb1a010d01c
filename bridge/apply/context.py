"""What all that works for one stream of a subscription has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.bridge.runtime.threads import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription


class Context(NamedTuple):
    """A worker's.

    Attributes:
        subscription: The subscription; for a tablesync worker its own one (`bridge.catalog.refresh`).
        spark: A Spark session of the worker's own: commits are stamped through its settings.
        catalog: The process's catalog.
        log: The worker's logger.
        stopping: Whether the worker is to stop.
        heartbeat: Beats while the worker makes progress or waits for something.
    """

    subscription: Subscription
    spark: SparkSession
    catalog: Catalog
    log: FilteringBoundLogger
    stopping: Callable[[], bool] = lambda: False
    heartbeat: Heartbeat = Heartbeat()

    @property
    def name(self) -> str:
        """The subscription's name in the catalog."""
        return self.subscription.name

    def check_free(self, path: str, key: str, *, hint: str) -> None:
        """Check that no published table's Delta table is where one of pgbridge's own shall be.

        Args:
            key: What of the configuration wants it there.

        Raises:
            ConfigError: One is.
        """
        if (rel := next((rel for rel in self.catalog.rels(self.name) if rel.path == path), None)) is not None:
            raise ConfigError(
                f'{key} cannot write to {path}: this is the Delta table of the published table "{rel.qualified_name}"',
                hint=hint,
            )

    @property
    def waiting(self) -> Callable[[], bool]:
        """`stopping` for those who wait: asking is a sign of life."""
        return self.heartbeat.beating(self.stopping)
