"""What the daemon shows of itself: the catalog's rows, the observations and the slots, put together a request."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from bridge.commands.state import Position
from bridge.commands.status import entry
from bridge.monitor.observations import Observations, epoch_s
from bridge.runtime import __version__, remedies
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from bridge.catalog.catalog import Catalog
    from bridge.config.config import Config, Subscription
    from bridge.receive.slot_health import SlotHealth


class Heap(Protocol):
    """The JVM's heap."""

    @property
    def used_bytes(self) -> int:
        """What is in use."""

    @property
    def max_bytes(self) -> int:
        """What it may grow to."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the view takes things from; each is asked anew for each request, and must answer at once.

    Attributes:
        config: The configuration that the daemon runs.
        slots: The slots as they were seen last.
        heap: The JVM's heap; None while there is no JVM of ours.
        spark: starting or running.
        restarts: How often the JVM was started again.
    """

    config: Callable[[], Config]
    slots: Callable[[], Mapping[str, SlotHealth]]
    heap: Callable[[], Heap | None]
    spark: Callable[[], str]
    restarts: Callable[[], int]


@dataclass(slots=True)
class View:
    """What the daemon shows of itself.

    Attributes:
        sources: Where it takes things from.
        catalog: The process's catalog; None before it is opened.
        started_s: When the daemon began, in seconds since 1970.
    """

    sources: Sources
    catalog: Catalog | None = None
    started_s: float = field(default_factory=time.time)
    _observations: dict[str, Observations] = field(default_factory=dict)

    def observations(self, name: str) -> Observations:
        """Return what a subscription's streams have told; a worker is given them as its observer."""
        return self._observations.setdefault(name, Observations())

    def subscriptions(self) -> Iterator[tuple[Subscription, dict[str, Any], Observations, SlotHealth | None]]:
        """Each subscription with its entry of `pgbridge status`, its observations and its slot.

        Raises:
            StateError: The catalog cannot be read now.
        """
        if self.catalog is None:
            return
        slots = self.sources.slots()
        for name, subscription in self.sources.config().subscription.items():
            health = slots.get(name)
            position = Position() if health is None else Position(health.confirmed_flush_lsn, None, health.shown_status)
            shown = entry(subscription, self.catalog, position, running=True)
            shown["lag_bytes"] = lag_bytes(shown, health)
            yield subscription, shown, self.observations(name), health

    def sample(self) -> None:
        """Keep the lags for the plots; call it about once a second.

        Raises:
            StateError: The catalog cannot be read now.
        """
        if self.catalog is None:
            return
        slots = self.sources.slots()
        for name in self.sources.config().subscription:
            if not self.observations(name).sample_due:
                continue  # this is called twice a second, and the catalog is read from a disk
            row, remote_lsn = self.catalog.subscription(name), self.catalog.remote_lsn(name)
            shown = {
                "remote_lsn": None if remote_lsn is None else str(remote_lsn),
                "received_lsn": None if row is None else str(row.received_lsn),
            }
            self.observations(name).sample(lag_bytes(shown, slots.get(name)))

    def document(self) -> dict[str, Any]:
        """Return what the status page shows.

        Raises:
            StateError: The catalog cannot be read now.
        """
        heap = self.sources.heap()
        return {
            "version": __version__,
            "time": time.time(),
            "started": self.started_s,
            "spark": {
                "state": self.sources.spark(),
                "heap_used_bytes": None if heap is None else heap.used_bytes,
                "heap_max_bytes": None if heap is None else heap.max_bytes,
                "restarts": self.sources.restarts(),
            },
            "subscriptions": [_shown(*one) for one in self.subscriptions()],
        }

    def spool_bytes(self, subscription: str) -> int:
        """Return the size of a subscription's spool files, those of its tablesync worker included."""
        if self.catalog is None:
            return 0
        folders = [self.catalog.state_dir / "spool" / name for name in (subscription, f"{subscription}:sync")]
        return sum(_size_bytes(folder) for folder in folders)


def lag_bytes(shown: Mapping[str, Any], health: SlotHealth | None) -> int | None:
    """Return how much WAL lies between what is durable and the furthest position known of the server.

    None while the server does not answer: what was received of it says little about what it has written since.
    """
    if shown["remote_lsn"] is None or health is None:
        return None
    known = [health.flush_lsn, *([Lsn.parse(shown["received_lsn"])] if shown["received_lsn"] is not None else [])]
    return max(0, *(lsn - Lsn.parse(shown["remote_lsn"]) for lsn in known))


def _shown(
    subscription: Subscription, shown: dict[str, Any], told: Observations, health: SlotHealth | None
) -> dict[str, Any]:
    name, error = subscription.name, shown["last_error"]
    skip = error["finish_lsn"] if error and error["finish_lsn"] != shown["skip_lsn"] else None
    return {
        **shown,
        "lag_s": told.lag_s(),
        "transactions_total": told.transactions,
        "rows_total": told.rows,
        "batches_total": told.batches_applied,
        "slot": health
        and {
            "wal_status": health.shown_status,
            "safe_wal_size_bytes": health.safe_wal_size_bytes,
            "retained_bytes": health.retained_bytes,
            "invalidation_reason": health.invalidation_reason,
            "seconds_left": health.seconds_left,
            "active": health.active,
            "synchronous": health.synchronous,
        },
        "remedies": {
            "skip": remedies.skip(name, skip) if skip else None,
            "enable": None if shown["enabled"] else remedies.enable(name),
            "resync": remedies.start_afresh(name) if health is not None and health.lost else None,
        },
        "lag_history": [[sample.time_s, sample.lag_bytes, sample.lag_s] for sample in told.lags()],
        "batches": [
            {
                "finished": batch.finished_s,
                "end_lsn": str(batch.report.end_lsn),
                "commit_time": epoch_s(batch.report.commit_time_us) if batch.report.commit_time_us else None,
                "transactions": batch.report.transactions,
                "rows": batch.report.rows,
                "tables": batch.report.tables,
                "seconds": dict(batch.report.seconds),
            }
            for batch in told.batches()
        ],
    }


def _size_bytes(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except OSError:  # it does not exist, or a file was just removed
        return 0
