"""What the daemon shows of itself: the catalog's rows, the observations and the slots, put together a request.

Prometheus' metrics are made from the same view for each scrape (`exposition`). `docs/monitoring.md` says what each
means.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from pgbridge.bridge.monitor.document import SlotStatus, SubscriptionStatus, lag_bytes, subscription_status
from pgbridge.bridge.monitor.observations import Observations
from pgbridge.bridge.publication.differences import KINDS
from pgbridge.bridge.runtime import __version__, errors
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Config
    from pgbridge.bridge.receive.slot_status import SlotHealth


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


STATES = ("starting", "copying", "streaming", "error", "stopped", "disabled", "standby")
_TABLE_STATES = "idfsr"
_WAL_STATUSES = ("reserved", "extended", "unreserved", "lost", "missing")


class _Families:
    """Families of metrics, each made when its first sample comes."""

    def __init__(self) -> None:
        self._made: dict[str, Metric] = {}

    def gauge(self, name: str, text: str, value: float | None, **labels: str) -> None:
        """Add a gauge's sample; None is no sample."""
        if value is not None:
            family = self._made.setdefault(name, GaugeMetricFamily(f"pgbridge_{name}", text, labels=list(labels)))
            family.add_metric(list(labels.values()), float(value))  # type: ignore[attr-defined]

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a counter's sample; `_total` is appended to the name."""
        family = self._made.setdefault(name, CounterMetricFamily(f"pgbridge_{name}", text, labels=list(labels)))
        family.add_metric(list(labels.values()), float(value))  # type: ignore[attr-defined]

    def histogram(self, name: str, text: str, told: Histogram, **labels: str) -> None:
        """Add a histogram's samples."""
        family = self._made.setdefault(name, HistogramMetricFamily(f"pgbridge_{name}", text, labels=list(labels)))
        (metric,) = told.collect()
        buckets = [(sample.labels["le"], sample.value) for sample in metric.samples if sample.name.endswith("_bucket")]
        total = next(sample.value for sample in metric.samples if sample.name.endswith("_sum"))
        family.add_metric(list(labels.values()), buckets, total)  # type: ignore[attr-defined]

    def all(self) -> Iterable[Metric]:
        """The families in the order of their first samples."""
        return self._made.values()


class PgbridgeCollector(Collector):
    """Collects what the view has at the moment of the scrape."""

    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """The daemon's metrics. While the catalog cannot be read, those of the process alone."""
        yield InfoMetricFamily("pgbridge_build", "The version of pgbridge.", value={"version": __version__})
        made = _Families()
        self._daemon(made)
        try:
            for status in self._view.subscriptions():
                name = status["name"]
                _subscription(made, status, self._view.observations(name))
                _slot(made, name, status["slot"])
                made.gauge("spool_bytes", "Size of the spool files.", self._view.spool_bytes(name), subscription=name)
        except errors.StateError:
            made.gauge("catalog_readable", "Whether the catalog can be read now.", 0)
        else:
            made.gauge("catalog_readable", "Whether the catalog can be read now.", 1)
        yield from made.all()

    def _daemon(self, made: _Families) -> None:
        sources = self._view.sources
        made.gauge("up", "1 while the daemon answers.", 1)
        made.gauge("start_time_seconds", "When the daemon began, in seconds since 1970.", self._view.started_s)
        made.gauge("spark_running", "Whether Spark has been started.", sources.spark() == "running")
        made.counter("jvm_restarts", "How often Spark's JVM, or a Spark Connect server, was lost.", sources.restarts())
        heap = sources.heap()
        if heap is not None:
            made.gauge("jvm_heap_used_bytes", "Heap of Spark's JVM in use.", heap.used_bytes)
            made.gauge("jvm_heap_max_bytes", "What the heap may grow to.", heap.max_bytes)


def exposition(view: View) -> bytes:
    """Return the metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PgbridgeCollector(view))
    return generate_latest(registry)


def _subscription(made: _Families, shown: SubscriptionStatus, told: Observations) -> None:
    of = {"subscription": shown["name"]}
    positions = {key: shown[key] for key in ("received_lsn", "remote_lsn", "confirmed_flush_lsn")}
    for key, text in positions.items():
        lsn = None if text is None else Lsn.parse(text)
        made.gauge(f"{key}_bytes", "A position in the WAL, in bytes since its beginning.", lsn, **of)
    made.gauge("lag_bytes", "WAL between what is durable and the server's flush position.", shown["lag_bytes"], **of)
    made.gauge("lag_seconds", "Age of the oldest received commit that is not durable.", told.lag_s(), **of)
    made.counter("transactions_applied", "Transactions that became durable.", told.transactions, **of)
    made.counter("rows_applied", "Row messages in these.", told.rows, **of)
    made.counter("batches_applied", "Batches that became durable.", told.batches_applied, **of)
    for phase, histogram in told.histograms.items():
        made.histogram("batch_seconds", "Seconds of a batch by phase.", histogram, **of, phase=phase)
    made.histogram("batch_rows", "Row messages of a batch.", told.batch_rows, **of)
    for state in STATES:
        made.gauge("subscription_state", "1 for the present state.", shown["state"] == state, **of, state=state)
    made.gauge("subscription_enabled", "Whether the subscription is enabled.", shown["enabled"], **of)
    states = [table["state"] for table in shown["tables"]]
    for state in _TABLE_STATES:
        made.gauge("tables", "Tables by srsubstate.", states.count(state), **of, state=state)
    for table in shown["tables"]:
        if copy := table.get("copy"):
            labels = {**of, "table": table["name"]}
            made.gauge("copy_rows", "Rows copied so far.", copy["rows"], **labels)
            made.gauge("copy_bytes", "Bytes copied so far.", copy["bytes"], **labels)
            total = copy["total_bytes_estimate"] or None
            made.gauge("copy_total_bytes_estimate", "Bytes of the whole copy, as estimated.", total, **labels)
    for kind, count in shown["conflicts"].items():
        made.counter("conflicts", "Conflicts by PostgreSQL's kinds.", count, **of, kind=kind)
    said = [problem["kind"] for problem in shown["problems"]]
    for kind in KINDS:
        text = "Differences between what is followed and what is published."
        made.gauge("catalog_differences", text, said.count(kind), **of, kind=kind)
    waiting = "Tables whose changes are left out until they are copied afresh."
    made.gauge("tables_waiting", waiting, said.count("waits"), **of)
    differing = "Tables whose rows are not those of the published ones."
    made.gauge("tables_differing", differing, said.count("differs"), **of)
    for kind, count in (("apply", shown["apply_error_count"]), ("sync", shown["sync_error_count"])):
        made.counter("errors", "Errors in applying and in copying.", count, **of, kind=kind)


def _slot(made: _Families, name: str, slot: SlotStatus | None) -> None:
    if slot is None:
        return
    of = {"subscription": name}
    made.gauge("slot_retained_bytes", "WAL that the server keeps for the slot.", slot["retained_bytes"], **of)
    made.gauge("slot_active", "Whether a walsender streams from the slot.", slot["active"], **of)
    safe = slot["safe_wal_size_bytes"]
    made.gauge("slot_safe_wal_bytes", "WAL that can be written before the slot may be lost.", safe, **of)
    made.gauge("slot_seconds_left", "When the slot is lost at the present rate.", slot["seconds_left"], **of)
    for status in _WAL_STATUSES:
        is_it = slot["wal_status"] == status
        made.gauge("slot_wal_status", "1 for the slot's present wal_status.", is_it, **of, status=status)
