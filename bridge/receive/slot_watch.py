"""Watches the slots of all subscriptions, those of disabled ones as well: an unread slot holds WAL until it is lost."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from bridge import log, remedies
from bridge.closing import Closing
from bridge.errors import BridgeError
from bridge.receive.publisher import PASSWORD_WARNING_S, Publisher
from bridge.receive.server_facts import is_synchronous
from bridge.receive.slot_health import SlotHistory, concern

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bridge.config import Subscription
    from bridge.receive.slot_health import SlotHealth

INTERVAL_S = 30.0
_TURN_S = 1.0
"""How soon a new subscription's slot is looked at for the first time."""

_AGAIN_S = 600.0
"""The same concern is logged again after so long."""

_PASSWORD_AGAIN_S = 86400.0


class SlotWatch(Closing):
    """A thread that asks each server for its slots, and logs what an operator should know.

    Args:
        subscriptions: Returns the subscriptions whose slots exist; called before each round.
        interval_s: Between two rounds.
    """

    def __init__(self, subscriptions: Callable[[], Sequence[Subscription]], *, interval_s: float = INTERVAL_S) -> None:
        self._subscriptions = subscriptions
        self._interval_s = interval_s
        self._histories: dict[str, SlotHistory] = defaultdict(SlotHistory)
        self._told: dict[str, tuple[str, float]] = {}
        self._password_told_s: dict[str, float] = {}
        self._health: dict[str, SlotHealth] = {}
        self._asked: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slot watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching; a query under way is not waited for."""
        self._stop.set()

    def health(self) -> Mapping[str, SlotHealth]:
        """Return what was seen last, by the subscriptions' names; without those whose server did not answer."""
        return dict(self._health)

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - a watcher must not end by what it watches
                if not self._stop.is_set():  # else the catalog was closed
                    log.get().warning("the slots could not be looked at", error=str(error))
            end_s = time.monotonic() + self._interval_s
            while (left_s := end_s - time.monotonic()) > 0 and not self._has_new():
                if self._stop.wait(min(left_s, _TURN_S)):
                    return
            if self._stop.is_set():
                return

    def _has_new(self) -> bool:
        """Whether there is a slot that was not looked at yet: a new one's lag should not be unknown for long."""
        try:
            return any(one.name not in self._asked for one in self._subscriptions())
        except Exception:  # noqa: BLE001 - the next round says so, or the catalog was closed
            return False

    def look(self) -> None:
        """Look at every slot once."""
        by_server: dict[str, list[Subscription]] = defaultdict(list)
        for subscription in self._subscriptions():
            by_server[subscription.connection].append(subscription)
        self._asked = {one.name for subscriptions in by_server.values() for one in subscriptions}
        seen = {}
        for conninfo, subscriptions in by_server.items():
            if self._stop.is_set():
                return
            try:
                with Publisher(conninfo, application_name="pgbridge_slot_watch") as publisher:
                    self._tell_password(conninfo, publisher.password_left_s, [one.name for one in subscriptions])
                    flush_lsn = publisher.flush_lsn()
                    for one in subscriptions:
                        status = publisher.slot(one.slot_name)
                        health = self._histories[one.name].add(time.monotonic(), status, flush_lsn)
                        waited = is_synchronous(publisher.synchronous_standby_names, one.name)
                        seen[one.name] = replace(health, synchronous=waited)
                        self._tell(one, seen[one.name])
            except BridgeError as error:  # the subscription's worker says so
                log.get().debug("a server's slots could not be looked at", error=str(error))
        self._health = seen

    def _tell_password(self, conninfo: str, left_s: float | None, names: list[str]) -> None:
        told_s = self._password_told_s.get(conninfo)
        if left_s is None or not 0 < left_s < PASSWORD_WARNING_S:
            return
        if told_s is None or time.monotonic() - told_s >= _PASSWORD_AGAIN_S:
            self._password_told_s[conninfo] = time.monotonic()
            log.get().warning(
                "the password of the connection's role expires soon",
                subscriptions=names,
                hours_left=round(left_s / 3600),
                hint="run on the server: ALTER ROLE … PASSWORD '…' VALID UNTIL '…'; and change it in ~/.pgpass",
            )

    def _tell(self, subscription: Subscription, health: SlotHealth) -> None:
        name = subscription.name
        found = concern(
            health,
            slot_name=subscription.slot_name,
            resync=remedies.start_afresh(name),
            warn_retained_bytes=subscription.warn_retained_bytes,
            warn_left_s=subscription.warn_slot_left_s,
        )
        if found is None:
            if self._told.pop(name, None) is not None:
                log.get(name).info("the replication slot is safe again", slot_name=subscription.slot_name)
            return
        kind, told_s = self._told.get(name, ("", 0.0))
        if found.kind == kind and time.monotonic() - told_s < _AGAIN_S:
            return
        self._told[name] = (found.kind, time.monotonic())
        report = log.get(name).error if found.level == "error" else log.get(name).warning
        report(
            found.message,
            wal_status=health.wal_status,
            retained_bytes=health.retained_bytes,
            safe_wal_size_bytes=health.safe_wal_size_bytes,
            hint=found.hint,
        )
