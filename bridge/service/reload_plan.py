"""What a changed configuration file means for a daemon that runs: what is applied now, and what has to wait.

It follows ALTER SUBSCRIPTION: an option takes effect from the next stream on (`maybe_reread_subscription` in worker.c).
What Spark or the state directory was opened with stays until the daemon is started again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel

from bridge.config.explain import toml
from bridge.runtime import remedies
from bridge.runtime.warehouse import IMPLEMENTATION, SPARK_CATALOG, catalogs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from bridge.config.config import Config, Spark, Subscription

_AT_NEXT_START = "to apply it, restart the daemon"

_BEGUN = {
    "slot_name": (
        "the subscription has begun with the slot {old}, which would go on retaining WAL",
        "put it back, or restart the daemon: its start checks the other slot",
    ),
    "warehouse": (
        "the subscription has tables in {old}, and they stay there",
        "put it back, or restart the daemon: tables that come later then go to the other warehouse",
    ),
}
"""What a subscription keeps once it has begun: the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a key keeps its value, and what to do."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """The difference between two configurations, and the configuration to go on with.

    Attributes:
        config: The new configuration; keys that cannot change have their old values.
        settings: Changed keys of the daemon as a whole.
        added: Names of new subscriptions.
        removed: The subscriptions that are no longer there, as they were.
        changed: The changed keys of each other subscription that has some, without refused ones.
        refused: Keys that cannot change now, as the file has them.
    """

    config: Config
    settings: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[Subscription, ...]
    changed: Mapping[str, tuple[str, ...]]
    refused: Mapping[str, Refusal]

    @property
    def outdated(self) -> set[str]:
        """Subscriptions whose workers must end, because they have other options or are removed."""
        others = {name for name, keys in self.changed.items() if keys != ("enabled",)}
        return others | {subscription.name for subscription in self.removed}

    def lines(self) -> list[str]:
        """The plan as sentences for the operator. They have no value that may be a password."""
        return list(self._lines()) or ["nothing has changed"]

    def _lines(self) -> Iterator[str]:
        for key in self.settings:
            yield f"{key} changed"
        for name in self.added:
            yield f'subscription "{name}" added'
        for name, keys in self.changed.items():
            yield f'subscription "{name}" changed: {", ".join(keys)}'
        for subscription in self.removed:
            yield (
                f'subscription "{subscription.name}" removed; its slot stays on the server and retains WAL, '
                f"to drop it: {remedies.drop_slot(subscription.slot_name)}"
            )
        for key, refusal in self.refused.items():
            yield f"{key} not changed: {refusal.reason}; {refusal.remedy}"


_NO_METASTORE = Refusal("Spark has been started without a metastore", _AT_NEXT_START)


def plan(old: Config, new: Config, *, begun: Collection[str] = (), rewritten: Collection[str] = ()) -> ReloadPlan:
    """Decide what becomes of a changed configuration.

    Args:
        old: The configuration that the daemon runs.
        new: What the file has now.
        begun: Subscriptions that have an origin: their slots and tables are there.
        rewritten: Subscriptions whose file of publication definitions has another content.
    """
    refused: dict[str, Refusal] = {}
    if new.state_dir != old.state_dir:
        refused["state_dir"] = Refusal(f"the daemon works on {old.state_dir}", _AT_NEXT_START)
    for key in _changed_spark(old.spark, new.spark):
        refused[key] = Refusal("Spark has been started", _AT_NEXT_START)
    changed: dict[str, tuple[str, ...]] = {}
    kept: dict[str, Subscription] = {}
    for name, subscription in new.subscription.items():
        lacking = _lacks_metastore(old, subscription)
        if name not in old.subscription:
            if lacking:
                refused[f"subscription.{name}"] = _NO_METASTORE
            else:
                kept[name] = subscription
            continue
        kept[name] = subscription
        before = old.subscription[name]
        keys = list(_changed(before, subscription))
        if name in rewritten and "publication_definitions" not in keys:
            keys.append("publication_definitions")
        for key in [key for key in keys if key in _BEGUN and name in begun]:
            keys.remove(key)
            reason, remedy = _BEGUN[key]
            refused[f"subscription.{name}.{key}"] = Refusal(reason.format(old=toml(getattr(before, key))), remedy)
            kept[name] = kept[name].model_copy(update={key: getattr(before, key)})
        if lacking and "warehouse" in keys:
            keys.remove("warehouse")
            refused[f"subscription.{name}.warehouse"] = _NO_METASTORE
            kept[name] = kept[name].model_copy(update={"warehouse": before.warehouse})
        if keys:
            changed[name] = tuple(keys)
    limit = "max_logical_replication_workers"
    return ReloadPlan(
        config=new.model_copy(update={"state_dir": old.state_dir, "spark": old.spark, "subscription": kept}),
        settings=(limit,) if getattr(old, limit) != getattr(new, limit) else (),
        added=tuple(name for name in kept if name not in old.subscription),
        removed=tuple(gone for name, gone in old.subscription.items() if name not in new.subscription),
        changed=changed,
        refused=refused,
    )


def _changed(before: BaseModel, now: BaseModel, table: str = "") -> Iterator[str]:
    """The keys that differ, those of a table within after its name: `batch.max_rows`."""
    for key in type(before).model_fields:
        old, new = getattr(before, key), getattr(now, key)
        if isinstance(old, BaseModel):
            yield from _changed(old, new, f"{key}.")
        elif old != new:
            yield f"{table}{key}"


def _lacks_metastore(old: Config, subscription: Subscription) -> bool:
    """Whether a warehouse is in Spark's own catalog, and Spark was started without one that lasts."""
    had = catalogs(one.warehouse for one in old.subscription.values())
    wanted = SPARK_CATALOG in catalogs([subscription.warehouse])
    return wanted and SPARK_CATALOG not in had and old.spark.conf.get(IMPLEMENTATION) != "hive"


def _changed_spark(old: Spark, new: Spark) -> Iterator[str]:
    if old.master != new.master:
        yield "spark.master"
    for key in sorted(old.conf.keys() | new.conf.keys()):
        before, now = ((conf.get(key), type(conf.get(key))) for conf in (old.conf, new.conf))  # 1 == True
        if before != now:
            yield f"spark.conf.{toml(key)}"
