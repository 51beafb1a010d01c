"""What all that works for one stream of a subscription has in common, and what the apply worker's loop asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pgbridge.bridge.apply.next_batch import Growth
from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.bridge.runtime.observer import Observer
from pgbridge.bridge.runtime.threads import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.batch.batch import Batch
    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.receive.stream.queue import TransactionQueue
    from pgbridge.bridge.receive.stream.walreceiver import WalReceiver
    from pgbridge.bridge.track.progress import Progress
    from pgbridge.protocol.lsn import Lsn


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


class Maintenance(Protocol):
    """What is done to tables between batches (`bridge.apply.maintenance`)."""

    def committed(self, paths: Iterable[str], commit_s: float) -> None:
        """A batch that committed to these tables, which took so long, is durable."""

    def due(self, behind_s: float | None) -> bool:
        """Whether something is to be done with this lag; None for an idle stream."""

    def run_one(self, behind_s: float | None) -> None:
        """Do it; no batch is under way."""


class Control(Protocol):
    """What the owner of the loop decides and is told."""

    @property
    def wants_keepalive(self) -> bool:
        """Whether an idle loop requests a keepalive rather than wait for one (`send_feedback` in worker.c)."""

    def should_continue(self, progress: Progress) -> bool:
        """Whether the loop continues; called often, so it must be cheap."""

    def report(self, progress: Progress) -> bool:
        """Record the loop's progress; called about once a second. Returns whether the loop continues."""

    def origin_advanced(self) -> None:
        """The origin's LSN has advanced, and is durable."""


class Sink(Protocol):
    """What makes batches durable: the mirror's `Applier`, or a `HandlerApplier`."""

    def apply(self, batch: Batch, *, clear_skip_lsn: Lsn | None = None) -> dict[str, float]:
        """Make a batch durable, and record it; see `Applier.apply`."""

    def skip(self, batch: Batch, skip_lsn: Lsn, folder: Path) -> Path:
        """Skip a transaction; see `Applier.skip`."""

    @property
    def holds(self) -> bool:
        """Whether batches are applied that the origin has not passed; see `Applier.holds`."""

    def release(self, passed_lsn: Lsn, handed_over_lsn: Lsn) -> Lsn | None:
        """Have the origin pass them; see `Applier.release`."""

    def bring_back(self) -> bool:
        """Take back what targets have beyond the origin; see `Applier.bring_back`."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A running stream.

    Attributes:
        growth: What earlier streams know of batches that must not join.
        maintenance: What is done to the tables between batches; None for nothing.
        observer: Is told what is durable.
        certify: Called before anything that was received is recorded as durable (see `ServerCheck.certify`).
        record: Called before a batch, whose stamps it knows, and before anything is confirmed (see
            `bridge.recovery.manifest_table.record`); None without a warehouse.
    """

    receiver: WalReceiver
    queue: TransactionQueue
    progress: Progress
    growth: Growth = field(default_factory=Growth)
    maintenance: Maintenance | None = None
    observer: Observer = field(default_factory=Observer)
    certify: Callable[[], None] = lambda: None
    record: Callable[[], None] | None = None
