"""Reads the configuration file again while the daemon runs, when SIGHUP or `pgbridge reload` asks for it.

`plan` decides what becomes of it; the daemon then restarts the workers of what has changed. It follows ALTER
SUBSCRIPTION: an option takes effect from the next stream on (`maybe_reread_subscription` in worker.c). What Spark, the
state directory or the HTTP server was opened with stays until the daemon is started again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from pgbridge.bridge.catalog.notes import APPLIED, INVALID, REFUSED, Outcome, answer, asked
from pgbridge.bridge.config.explain import toml
from pgbridge.bridge.runtime import errors, log, remedies, warehouse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Config, Subscription
    from pgbridge.bridge.config.daemon_tables import Http, Spark

_ONCE = "a daemon with --until-caught-up does not read the configuration file again: it takes effect at the next start"
_AT_NEXT_START = "to apply it, restart the daemon"
_HTTP = f"metrics and the status page are served as at the start; {_AT_NEXT_START}"
_NO_METASTORE = f"Spark has been started without a metastore; {_AT_NEXT_START}"

_BEGUN = {
    "slot_name": "the subscription has begun with the slot {old}, which would go on retaining WAL; put it back, or "
    "restart the daemon: its start checks the other slot",
    "warehouse": "the subscription has tables in {old}, and they stay there; put it back, or restart the daemon: "
    "tables that come later then go to the other warehouse",
}
"""What a subscription keeps once it has begun: the reason, and what to do."""


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """What becomes of a changed configuration. No text has a value that may be a password.

    Attributes:
        config: The configuration to go on with: the new one; keys that cannot change have their old values.
        applied: What changes, a sentence each.
        refused: The keys that cannot change now, as the file has them, with the reason and what to do.
        outdated: Subscriptions whose workers must end, because they have other options or are removed.
    """

    config: Config
    applied: tuple[str, ...]
    refused: Mapping[str, str]
    outdated: frozenset[str]

    def lines(self) -> list[str]:
        """The plan as sentences for the operator."""
        kept = [f"{key} not changed: {reason}" for key, reason in self.refused.items()]
        return [*self.applied, *kept] or ["nothing has changed"]


def plan(old: Config, new: Config, *, begun: Collection[str] = (), rewritten: Collection[str] = ()) -> ReloadPlan:
    """Decide what becomes of a changed configuration.

    Args:
        old: The configuration that the daemon runs.
        new: What the file has now.
        begun: Subscriptions that have an origin: their slots and tables are there.
        rewritten: Subscriptions whose file of publication definitions has another content.
    """
    refused, applied, outdated, kept = {}, [], set(), {}
    if new.state_dir != old.state_dir:
        refused["state_dir"] = f"the daemon works on {old.state_dir}; {_AT_NEXT_START}"
    refused |= dict.fromkeys(_changed_http(old.http, new.http), _HTTP)
    refused |= dict.fromkeys(_changed_spark(old.spark, new.spark), f"Spark has been started; {_AT_NEXT_START}")
    if old.max_logical_replication_workers != new.max_logical_replication_workers:
        applied.append("max_logical_replication_workers changed")
    for name, wanted in new.subscription.items():
        before, lacking = old.subscription.get(name), _lacks_metastore(old, wanted)
        if before is None:
            if lacking:
                refused[f"subscription.{name}"] = _NO_METASTORE
            else:
                kept[name] = wanted
                applied.append(f'subscription "{name}" added')
            continue
        reasons = {key: text.format(old=toml(getattr(before, key))) for key, text in _BEGUN.items() if name in begun}
        reasons |= {"warehouse": _NO_METASTORE} if lacking and "warehouse" not in reasons else {}
        fixed = {key: getattr(before, key) for key in reasons if getattr(before, key) != getattr(wanted, key)}
        refused |= {f"subscription.{name}.{key}": reasons[key] for key in fixed}
        kept[name] = wanted.model_copy(update=fixed)
        keys = list(_changed(before, kept[name]))
        if name in rewritten and "publication_definitions" not in keys:
            keys.append("publication_definitions")
        if keys:
            applied.append(f'subscription "{name}" changed: {", ".join(keys)}')
        outdated |= {name} if {*keys} - {"enabled"} else set()
    for name in [name for name in old.subscription if name not in new.subscription]:
        outdated.add(name)
        stays = "its slot stays on the server and retains WAL, to drop it: "
        left = stays + remedies.drop_slot(old.subscription[name].slot_name) if name in begun else "it has not begun"
        applied.append(f'subscription "{name}" removed; {left}')
    fixed_keys = {"state_dir": old.state_dir, "spark": old.spark, "http": old.http}
    config = new.model_copy(update={**fixed_keys, "subscription": kept})
    return ReloadPlan(config, tuple(applied), refused, frozenset(outdated))


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
    had = warehouse.catalogs(former.warehouse for former in old.subscription.values())
    wanted = warehouse.SPARK_CATALOG in warehouse.catalogs([subscription.warehouse])
    return wanted and warehouse.SPARK_CATALOG not in had and old.spark.conf.get(warehouse.IMPLEMENTATION) != "hive"


def _changed_http(old: Http | None, new: Http | None) -> Iterator[str]:
    if old is not None and new is not None:
        yield from _changed(old, new, "http.")
    elif old is not new:
        yield "http"


def _changed_spark(old: Spark, new: Spark) -> Iterator[str]:
    if old.master != new.master:
        yield "spark.master"
    for key in sorted(old.conf.keys() | new.conf.keys()):
        before, now = ((conf.get(key), type(conf.get(key))) for conf in (old.conf, new.conf))  # 1 == True
        if before != now:
            yield f"spark.conf.{toml(key)}"


class Reload:
    """Takes up requests to read the configuration file again.

    Args:
        read: Reads the file; None for a daemon that does not read it again, because it ends by itself.
        hangups: How many SIGHUPs have come.
        config: What was read at the start.
    """

    def __init__(self, read: Callable[[], Config] | None, hangups: Callable[[], int], config: Config) -> None:
        self._read = read
        self._hangups = hangups
        self._taken_up = 0
        self._definitions = _definitions(config)
        self._log = log.get()

    def asked(self, catalog: Catalog) -> bool:
        """Whether there is a request to read the file.

        Raises:
            StateError: The catalog cannot be used now.
        """
        return self._hangups() != self._taken_up or asked(catalog) is not None

    def take_up(self, config: Config, catalog: Catalog) -> ReloadPlan | None:
        """Read the file, register its subscriptions, and answer.

        The request is taken up again after an error, because nothing has changed in the daemon before the answer is
        written.

        Args:
            config: The configuration that the daemon runs.
            catalog: The process's catalog.

        Returns:
            What the daemon must do; None if the file cannot be used.

        Raises:
            StateError: The catalog cannot be used now.
        """
        hangups, number = self._hangups(), asked(catalog)
        if self._read is None:
            if number is not None:
                answer(catalog, number, Outcome(REFUSED, (_ONCE,)))
            self._taken_up = hangups
            self._log.warning(_ONCE)
            return None
        try:
            new = self._read()
        except errors.ConfigError as error:
            if number is not None:
                answer(catalog, number, Outcome(INVALID, tuple(str(error).splitlines())))
            self._taken_up = hangups
            self._log.error(
                "the configuration file cannot be used; the daemon goes on with what it has read before",
                error=str(error),
            )
            return None
        definitions = _definitions(new)
        planned = plan(
            config,
            new,
            begun=[name for name in config.subscription if catalog.remote_lsn(name) is not None],
            rewritten=[name for name, text in definitions.items() if self._definitions.get(name) != text],
        )
        for subscription in planned.config.subscription.values():
            catalog.register(subscription.name, enabled=subscription.enabled)
        if number is not None:
            answer(catalog, number, Outcome(REFUSED if planned.refused else APPLIED, tuple(planned.lines())))
        self._taken_up, self._definitions = hangups, definitions
        for key, reason in planned.refused.items():
            self._log.warning("a key of the configuration cannot change while the daemon runs", key=key, reason=reason)
        self._log.info("the configuration file was read again", changes=list(planned.applied))
        return planned


def _definitions(config: Config) -> dict[str, bytes | None]:
    """Return what each subscription's file of publication definitions holds: its name stays when that changes."""
    paths = {name: subscription.publication_definitions for name, subscription in config.subscription.items()}
    return {name: None if path is None else _content(Path(path)) for name, path in paths.items()}


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:  # the stream that needs it says why
        return None
