"""What the daemon shows of itself: the catalog's rows, the observations and the slots, put together a request."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from bridge.monitor.document import SubscriptionStatus, lag_bytes, subscription_status
from bridge.monitor.observations import Observations
from bridge.runtime import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from bridge.catalog.catalog import Catalog
    from bridge.config.config import Config
    from bridge.receive.slot_status import SlotHealth


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

    def subscriptions(self) -> Iterator[SubscriptionStatus]:
        """The subscriptions' parts of the status document; none before the catalog is opened.

        Raises:
            StateError: The catalog cannot be read now.
        """
        if self.catalog is None:
            return
        slots = self.sources.slots()
        for name, each in self.sources.config().subscription.items():
            yield subscription_status(each, self.catalog, slots.get(name), running=True, told=self.observations(name))

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
            self.observations(name).sample(lag_bytes(row, remote_lsn, slots.get(name)))

    def document(self) -> dict[str, Any]:
        """Return what the status page shows: the status document, and the daemon's own state.

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
            "subscriptions": list(self.subscriptions()),
        }

    def spool_bytes(self, subscription: str) -> int:
        """Return the size of a subscription's spool files, those of its tablesync worker included."""
        if self.catalog is None:
            return 0
        folders = [self.catalog.state_dir / "spool" / name for name in (subscription, f"{subscription}:sync")]
        return sum(_size_bytes(folder) for folder in folders)


def _size_bytes(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except OSError:  # it does not exist, or a file was just removed
        return 0
