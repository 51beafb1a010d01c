"""Asks the servers for the slots of subscriptions: once for a status, and again and again in the daemon."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pgbridge.bridge.receive.connection import stream_name
from pgbridge.bridge.receive.publisher import PASSWORD_WARNING_S, Publisher
from pgbridge.bridge.receive.server_facts import is_synchronous
from pgbridge.bridge.receive.slot import watch_name
from pgbridge.bridge.receive.slot_status import Moment, SlotHealth, SlotHistory, Slots, concern
from pgbridge.bridge.runtime import errors, log, threads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from concurrent.futures import Future

    from pgbridge.bridge.config.config import Subscription
    from pgbridge.protocol.lsn import Lsn


def by_server(subscriptions: Sequence[Subscription]) -> dict[str, list[Subscription]]:
    """Subscriptions by their connection strings, in the order that they have."""
    servers: dict[str, list[Subscription]] = defaultdict(list)
    for subscription in subscriptions:
        servers[subscription.connection].append(subscription)
    return servers


def _healths(
    slots: Slots, subscriptions: Sequence[Subscription], histories: Mapping[str, SlotHistory]
) -> dict[str, SlotHealth]:
    """The slots of a server's subscriptions, by their names, each a sample more of its history."""
    healths = {}
    for each in subscriptions:
        health = histories[each.name].add(time.monotonic(), slots.by_name[each.slot_name], slots.flush_lsn)
        waited_for = is_synchronous(slots.synchronous_standby_names, stream_name(each.connection, each.name))
        healths[each.name] = replace(health, synchronous=waited_for)
    return healths


def ask(subscriptions: Sequence[Subscription]) -> dict[str, SlotHealth]:
    """Ask a server for the slots of its subscriptions, by their names; nothing if it does not answer."""
    first = subscriptions[0]
    with (
        suppress(errors.BridgeError),
        Publisher(first.connection, application_name=f"{first.name}_status") as publisher,
    ):
        slots = publisher.slots([subscription.slot_name for subscription in subscriptions])
        return _healths(slots, subscriptions, defaultdict(SlotHistory))
    return {}


class ServerSlots:
    """Asks each server in a thread of its own, which the end of the process does not wait for.

    Args:
        patience_s: How long to wait for all answers together; None for as long as connecting takes. A server that was
            late is not waited for again before its answer has come, or its connection has timed out.
        ask: Asks one server for some subscriptions.
    """

    def __init__(
        self,
        patience_s: float | None = None,
        ask: Callable[[Sequence[Subscription]], dict[str, SlotHealth]] = ask,
    ) -> None:
        self._patience_s = patience_s
        self._ask = ask
        self._late: dict[str, Future[dict[str, SlotHealth]]] = {}

    def of(self, subscriptions: Sequence[Subscription]) -> dict[str, SlotHealth]:
        """Return the slots by the subscriptions' names, without those of a server that does not answer.

        Only one thread may call it at a time.
        """
        self._late = {server: answer for server, answer in self._late.items() if not answer.done()}
        deadline_s = None if self._patience_s is None else time.monotonic() + self._patience_s
        # at once; a late one's answer will be too old
        asked = {
            server: threads.detached(partial(self._ask, its), "server slots")
            for server, its in by_server(subscriptions).items()
            if server not in self._late
        }
        slots: dict[str, SlotHealth] = {}
        for server, answer in asked.items():
            try:
                slots |= answer.result(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                self._late[server] = answer
        return slots


# --- Watches the slots of all subscriptions, those of disabled ones as well: an unread slot holds WAL until it is lost.
#

INTERVAL_S = 30.0
_TURN_S = 1.0
"""How soon a new subscription's slot is looked at for the first time."""

_AGAIN_S = 600.0
"""The same concern is logged again after so long."""

_PASSWORD_AGAIN_S = 86400.0

_PATIENCE_S = 5.0
"""How long a round waits for answers: of a server that is late, the next one takes the answer that has come."""

_OLD_S = 2 * INTERVAL_S
"""What was seen so long ago says nothing any more: the server is silent."""

_MOMENTS = 10
"""So many are remembered: Delta may be a few minutes behind."""


class SlotWatch(threads.Closing):
    """A thread that asks all servers for their slots, and logs what an operator should know.

    A round is one query for each server, in a thread of its own, on a connection that stays open. A server whose answer
    has not come is not asked again before that: it holds up no other.

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
        self._health: dict[str, tuple[float, SlotHealth]] = {}  # each with the time when it was seen
        self._moments: dict[str, deque[Moment]] = defaultdict(lambda: deque(maxlen=_MOMENTS))
        self._watched: dict[str, Subscription] = {}
        self._under_way: dict[str, Future[None]] = {}  # by their connection strings, as the publishers
        self._publishers: dict[str, Publisher] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slot watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching; a query under way is not waited for, its connection is closed after it."""
        self._stop.set()
        if not self._thread.is_alive():
            self._disconnect(())

    def health(self) -> Mapping[str, SlotHealth]:
        """Return what was seen last, by the subscriptions' names; without those whose server does not answer."""
        oldest_s, seen = time.monotonic() - _OLD_S, self._health.copy()
        return {name: health for name, (seen_s, health) in seen.items() if name in self._watched and seen_s >= oldest_s}

    def complete(self, subscription: str, lsn: Lsn) -> Moment | None:
        """The latest moment of a subscription's server of which an LSN has everything; None if none is known."""
        return max((moment for moment in [*self._moments[subscription]] if moment.lsn <= lsn), default=None)

    def _run(self) -> None:
        try:
            self._look_again_and_again()
        finally:
            self._disconnect(())

    def _look_again_and_again(self) -> None:
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
            return any(subscription.name not in self._watched for subscription in self._subscriptions())
        except Exception:  # noqa: BLE001 - the next round says so, or the catalog was closed
            return False

    def look(self) -> None:
        """Look at every slot once, as far as the servers answer soon."""
        watched = self._subscriptions()
        self._watched = {subscription.name: subscription for subscription in watched}
        self._under_way = {server: answer for server, answer in self._under_way.items() if not answer.done()}
        servers = by_server(watched)
        self._disconnect(servers)
        for conninfo in servers.keys() - self._under_way.keys():
            self._under_way[conninfo] = threads.detached(
                partial(self._look_at, conninfo, servers[conninfo]), "slots of a server"
            )
        wait(self._under_way.values(), _PATIENCE_S)

    def _look_at(self, conninfo: str, subscriptions: Sequence[Subscription]) -> None:
        """Look at the slots of a server, as long as it takes."""
        try:
            slots = self._ask(conninfo, subscriptions)
            if not self._stop.is_set():
                self._take(conninfo, slots, subscriptions)
        except Exception as error:  # noqa: BLE001 - a watcher must not end by what it watches
            for each in subscriptions:
                self._health.pop(each.name, None)
            # the subscription's worker says why it cannot reach its server
            report = log.get().debug if isinstance(error, errors.BridgeError) else log.get().warning
            report("a server's slots could not be looked at", error=str(error))
        finally:
            if self._stop.is_set():
                self._close(conninfo)

    def _take(self, conninfo: str, slots: Slots, subscriptions: Sequence[Subscription]) -> None:
        """Take a server's answer; it may be late, and no longer asked for."""
        current = [each for each in subscriptions if self._watched.get(each.name) == each]
        if current:
            self._tell_password(conninfo, slots.password_left_s, [each.name for each in current])
        healths = _healths(slots, current, self._histories)
        for each in current:
            self._health[each.name] = time.monotonic(), healths[each.name]
            slot = slots.by_name[each.slot_name]
            # of a server that the subscription does not stream from, as after a promotion, LSNs say nothing
            if slots.committed is not None and slot is not None and slot.active:
                self._moments[each.name].append(slots.committed)
            self._tell(each, healths[each.name])

    def _ask(self, conninfo: str, subscriptions: Sequence[Subscription]) -> Slots:
        """Ask a server on the open connection; where it was lost meanwhile, on another one."""
        fresh = conninfo not in self._publishers
        try:
            if fresh:
                name = watch_name(subscriptions[0].slot_name)  # by which a standby sees that this daemon lives
                self._publishers[conninfo] = Publisher(conninfo, application_name=name)
            return self._publishers[conninfo].slots([subscription.slot_name for subscription in subscriptions])
        except errors.BridgeError:
            self._close(conninfo)
            if fresh or self._stop.is_set():
                raise
        return self._ask(conninfo, subscriptions)

    def _disconnect(self, but: Collection[str]) -> None:
        """Close the connections to all servers but these, and those whose answers have not come."""
        for conninfo in self._publishers.copy().keys() - set(but):
            if conninfo not in self._under_way or self._under_way[conninfo].done():
                self._close(conninfo)

    def _close(self, conninfo: str) -> None:
        if (publisher := self._publishers.pop(conninfo, None)) is not None:
            publisher.close()

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
        warning = concern(subscription, health)
        if warning is None:
            if self._told.pop(name, None) is not None:
                log.get(name).info("the replication slot is safe again", slot_name=subscription.slot_name)
            return
        kind, told_s = self._told.get(name, ("", 0.0))
        if warning.kind == kind and time.monotonic() - told_s < _AGAIN_S:
            return
        self._told[name] = (warning.kind, time.monotonic())
        report = log.get(name).error if warning.level == "error" else log.get(name).warning
        report(
            warning.message,
            wal_status=health.wal_status,
            retained_bytes=health.retained_bytes,
            safe_wal_size_bytes=health.safe_wal_size_bytes,
            hint=warning.hint,
        )
