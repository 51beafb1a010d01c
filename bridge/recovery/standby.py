"""A daemon that waits for another machine's end (`pgbridge run --standby`), and then goes on in its place.

It starts at once if the state directory here is the one that the subscriptions went on with last. Else it waits until
nothing shows any more that the other daemon lives (`bridge.receive.owner`), and makes the state anew
(`bridge.recovery.recover`), which keeps the other one out for good, whether it is gone, stopped or cut off. Spark runs
meanwhile, so that this takes seconds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.catalog import manifest
from pgbridge.bridge.receive.owner import Owner
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.recovery.manifest_table import origin_of, table_in
from pgbridge.bridge.recovery.recover import recovered
from pgbridge.bridge.runtime import errors, threads
from pgbridge.bridge.spark.session import told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription

STATE: Final = "standby"
"""The state of a subscription that waits."""

_GRACE_S: Final = 10.0
"""A daemon that is restarted is there again by then: it looks at its slots before it starts Spark."""

_TELL_S: Final = 600.0
"""The same is logged again after so long."""

_S3: Final = ("s3:", "s3a:", "s3n:")
_ONE_DRIVER: Final = "S3SingleDriverLogStore"


def check_fencing(warehouse: str, settings: Mapping[str, object]) -> None:
    """Check that the store of a warehouse keeps a late commit out: that of two writers of a log entry one fails.

    Args:
        settings: Spark's.

    Raises:
        ConfigError: It does not.
    """
    scheme = warehouse.partition(":")[0]
    if not warehouse.startswith(_S3):
        return
    of_all = settings.get("spark.delta.logStore.class", _ONE_DRIVER)
    if str(settings.get(f"spark.delta.logStore.{scheme}.impl", of_all)).endswith(_ONE_DRIVER):
        raise errors.ConfigError(
            f"{warehouse}: Delta's {_ONE_DRIVER} cannot keep out what a former daemon still commits, so that rows "
            "might be lost",
            hint=f"in [spark.conf] set spark.delta.logStore.{scheme}.impl to a log store for several drivers, as "
            "io.delta.storage.S3DynamoDBLogStore; or add --unfenced, if the former machine is switched off before "
            "the standby takes over",
        )


class Standby(threads.Closing):
    """Waits for a daemon that has the same subscriptions.

    Args:
        subscriptions: All of the configuration.
        catalog: The catalog of the state directory here.
        now_s: The time, by any clock that does not jump.
    """

    def __init__(
        self,
        subscriptions: Sequence[Subscription],
        catalog: Catalog,
        log: FilteringBoundLogger,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subscriptions, self._catalog, self._log, self._now_s = subscriptions, catalog, log, now_s
        self._owner = Owner(subscriptions, now_s)
        self._identifiers: dict[str, str] = {}  # of servers, by connection string
        self._refused: set[str] = set()  # subscriptions that cannot be taken over: their workers say what to do
        self._quiet_since_s: float | None = None
        self._told: dict[str, tuple[dict[str, str], float]] = {}  # by event: what was told last, and when

    def close(self) -> None:
        """Close the connections."""
        self._owner.close()

    def turn(self, spark: SparkSession) -> bool:
        """Look once, and take over if nobody is there; returns whether this daemon goes on.

        Raises:
            SparkLost: Spark has ended.
        """
        try:
            with told(spark):
                return self._turn(spark)
        except errors.SparkLost:
            raise
        except errors.BridgeError as error:
            self._quiet_since_s = None
            self._tell("cannot take over now", error=str(error))
            return False

    def _turn(self, spark: SparkSession) -> bool:
        standings = self._standings(spark)
        if "current" in standings and "outdated" not in standings:
            return True  # new ones begin beside the others
        if life := self._owner.look():
            self._quiet_since_s = None
            self._tell("another daemon streams; this one waits for its end", owner=life)
            return False
        if self._owner.end():
            self._log.warning("the other daemon says nothing any more; its streams are ended")
            self._quiet_since_s = self._now_s() - _GRACE_S
            return False  # the slots are free at the next look
        if self._quiet_since_s is None:
            self._quiet_since_s = self._now_s()
        if self._now_s() - self._quiet_since_s < _GRACE_S:
            return False
        self._take_over(spark)
        self._quiet_since_s = None
        return "outdated" not in self._standings(spark)

    def _standings(self, spark: SparkSession) -> set[str]:
        """How the state here stands, of all subscriptions whose server answers.

        Raises:
            PublisherError: None does.
        """
        standings, failures = set[str](), dict[str, errors.PublisherError]()
        for each in self._subscriptions:
            try:
                if each.name not in self._refused:
                    standings.add(self._standing(spark, each))
            except errors.PublisherError as error:
                failures[each.name] = error
        if failures and not standings:
            raise next(iter(failures.values()))
        for name, failure in failures.items():
            self._tell(f'the server of subscription "{name}" cannot be asked', error=str(failure))
        return standings

    def _tell(self, what: str, **details: str) -> None:
        said, told_s = self._told.get(what, ({}, 0.0))
        if said != details or self._now_s() - told_s >= _TELL_S:
            self._told[what] = details, self._now_s()
            self._log.info(what, **details)

    def _origin(self, subscription: Subscription) -> str:
        """The name of a subscription in the table of manifests."""
        row = self._catalog.subscription(subscription.name)
        identifier = row.system_identifier if row is not None else None
        if identifier is None:
            if subscription.connection not in self._identifiers:
                with ReplicationConnection(subscription.connection, application_name="pgbridge_standby") as replication:
                    self._identifiers[subscription.connection] = replication.history().system_identifier
            identifier = self._identifiers[subscription.connection]
        return origin_of(identifier, subscription.name)

    def _standing(self, spark: SparkSession, subscription: Subscription) -> str:
        """How the state here stands: `current` if the subscription went on with it last, `outdated`, or `new`."""
        last = table_in(subscription.warehouse).last(spark, self._origin(subscription))
        begun = self._catalog.remote_lsn(subscription.name) is not None
        if not begun and not manifest.is_written(self._catalog, subscription.name):
            return "new" if last is None else "outdated"
        here = manifest.generation(self._catalog, subscription.name)
        return "outdated" if last is not None and last.generation > here else "current"

    def _take_over(self, spark: SparkSession) -> None:
        for subscription in self._subscriptions:
            log = self._log.bind(subscription=subscription.name)
            try:
                if self._standing(spark, subscription) != "outdated":
                    continue
                for line in recovered(spark, self._catalog, subscription, alone=False):
                    log.info("taking over", step=line)
            except errors.SparkLost:
                raise
            except errors.BridgeError as error:
                if errors.may_retry(error):
                    raise
                self._refused.add(subscription.name)
                log.error("the subscription cannot be taken over", error=str(error))  # noqa: TRY400 - its message says all
