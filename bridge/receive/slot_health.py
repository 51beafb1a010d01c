"""How safe a slot is, and how long it lasts at the present rate. Pure: samples come in, findings come out.

Source: the documentation's pg_replication_slots (wal_status, safe_wal_size, invalidation_reason).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from bridge.receive.publisher import PASSWORD_WARNING_S, Publisher
from bridge.receive.server_facts import is_synchronous
from bridge.runtime import log, remedies
from bridge.runtime.errors import BridgeError
from bridge.runtime.threads import Closing, detached

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from concurrent.futures import Future

    from bridge.config.config import Subscription
    from bridge.receive.slot_status import Slots, SlotStatus
    from protocol.lsn import Lsn

_WINDOW_S = 600.0
"""The rate is that of these last minutes: a shorter time would only see the server's steps from segment to segment."""

_LEAST_S = 60.0
_LEAST_BYTES = 64 << 20
"""Less than four segments of WAL say nothing of a rate."""


LOST: Final = frozenset({"missing", "lost"})
"""Results of `shown_status` for a slot that cannot be used any more."""


def shown_status(wal_status: str | None, invalidation_reason: str | None) -> str:
    """Return the wal_status for people and graphs: `missing` without a slot, `lost` whatever the reason."""
    if wal_status is None:
        return "missing"
    return "lost" if invalidation_reason is not None else wal_status


@dataclass(frozen=True, slots=True)
class SlotHealth:
    """A slot as the server has it, with a forecast.

    Attributes:
        wal_status: reserved, extended, unreserved or lost; None if the slot does not exist.
        safe_wal_size_bytes: How much WAL can be written before the slot may be lost; None for no limit.
        retained_bytes: How much WAL the server keeps for it.
        confirmed_flush_lsn: What was confirmed last.
        flush_lsn: The end of the server's flushed WAL.
        active: Whether somebody streams from it.
        invalidation_reason: Why it cannot be used any more (PostgreSQL 17).
        seconds_left: When the slot may be lost at the present rate; None if that is not in sight.
        synchronous: Whether the server's commits wait for the subscription (synchronous_standby_names).
    """

    wal_status: str | None
    safe_wal_size_bytes: int | None
    retained_bytes: int | None
    confirmed_flush_lsn: Lsn | None
    flush_lsn: Lsn
    active: bool
    invalidation_reason: str | None
    seconds_left: float | None
    synchronous: bool = False

    @property
    def lost(self) -> bool:
        """Whether the server does not have the slot, or WAL that it needs, any more."""
        return self.shown_status in LOST

    @property
    def shown_status(self) -> str:
        """The wal_status for people and graphs (see `shown_status`)."""
        return shown_status(self.wal_status, self.invalidation_reason)


class SlotHistory:
    """The samples of one slot."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, status: SlotStatus | None, flush_lsn: Lsn) -> SlotHealth:
        """Add a sample, and return what it means together with the ones before.

        Args:
            now_s: The time, by any clock that does not go back.
            status: The slot; None if it does not exist.
            flush_lsn: The end of the server's flushed WAL.
        """
        if status is None:
            self._samples.clear()
            return SlotHealth(
                None, None, None, None, flush_lsn, active=False, invalidation_reason=None, seconds_left=None
            )
        return SlotHealth(
            status.wal_status,
            status.safe_wal_size_bytes,
            None if status.restart_lsn is None else max(0, flush_lsn - status.restart_lsn),
            status.confirmed_flush_lsn,
            flush_lsn,
            status.active,
            status.invalidation_reason,
            self._seconds_left(now_s, status.safe_wal_size_bytes),
        )

    def _seconds_left(self, now_s: float, safe_bytes: int | None) -> float | None:
        if safe_bytes is None:
            self._samples.clear()
            return None
        while self._samples and self._samples[0][0] < now_s - _WINDOW_S:
            self._samples.popleft()
        self._samples.append((now_s, safe_bytes))
        since_s, first_bytes = self._samples[0]
        shrunk_bytes, passed_s = first_bytes - safe_bytes, now_s - since_s
        if passed_s < _LEAST_S or shrunk_bytes < _LEAST_BYTES:
            return None
        return max(0.0, safe_bytes * passed_s / shrunk_bytes)


@dataclass(frozen=True, slots=True)
class Concern:
    """Why an operator should look at a slot.

    Attributes:
        kind: The same as long as the same is the matter; what is told once is not told again at once.
        level: How it is logged.
        message: One sentence.
        hint: What to do.
    """

    kind: str
    level: Literal["warning", "error"]
    message: str
    hint: str


def concern(subscription: Subscription, health: SlotHealth) -> Concern | None:
    """Say why an operator should look at a subscription's slot; None if there is no reason."""
    slot_name, alerts = subscription.slot_name, subscription.alerts
    again = f"to copy all tables again, run: {remedies.start_afresh(subscription.name)}"
    if health.wal_status is None:
        return Concern("missing", "error", f'replication slot "{slot_name}" does not exist on the publisher', again)
    if health.lost:
        reason = f" ({health.invalidation_reason})" if health.invalidation_reason else ""
        return Concern("lost", "error", f'replication slot "{slot_name}" is invalid{reason}: changes are lost', again)
    idle = "" if health.active else "; nobody streams from it"
    if health.wal_status == "unreserved":
        return Concern(
            "unreserved",
            "error",
            f'replication slot "{slot_name}" is about to be lost: the next checkpoint may remove its WAL{idle}',
            "raise max_slot_wal_keep_size on the server now, and see why the subscription lags: pgbridge status",
        )
    if health.seconds_left is not None and health.seconds_left <= alerts.slot_left_s:
        left = timedelta(seconds=round(health.seconds_left))
        return Concern(
            "running out",
            "warning",
            f'at this rate replication slot "{slot_name}" is lost in {left} (hours:minutes:seconds){idle}',
            "raise max_slot_wal_keep_size on the server, or see why the subscription lags: pgbridge status",
        )
    if health.retained_bytes is not None and 0 < alerts.retained_bytes <= health.retained_bytes:
        # told again each time that it has doubled
        doubled = (health.retained_bytes // alerts.retained_bytes).bit_length()
        return Concern(
            f"retained {doubled}",
            "warning",
            f'the server keeps {health.retained_bytes >> 20} MB of WAL for replication slot "{slot_name}"{idle}',
            "see why the subscription lags, or why a transaction stays open: pgbridge status, pgbridge check",
        )
    return None


# --- Asks the servers -------------------------------------------------------------------------------------------------


def _by_server(subscriptions: Sequence[Subscription]) -> dict[str, list[Subscription]]:
    by_server: dict[str, list[Subscription]] = defaultdict(list)
    for subscription in subscriptions:
        by_server[subscription.connection].append(subscription)
    return by_server


def _healths(
    slots: Slots, subscriptions: Sequence[Subscription], histories: Mapping[str, SlotHistory]
) -> dict[str, SlotHealth]:
    """The slots of a server's subscriptions, by their names, each a sample more of its history."""
    healths = {}
    for each in subscriptions:
        health = histories[each.name].add(time.monotonic(), slots.by_name[each.slot_name], slots.flush_lsn)
        waited_for = is_synchronous(slots.synchronous_standby_names, each.name)
        healths[each.name] = replace(health, synchronous=waited_for)
    return healths


def ask(subscriptions: Sequence[Subscription]) -> dict[str, SlotHealth]:
    """Ask a server for the slots of its subscriptions, by their names; nothing if it does not answer."""
    first = subscriptions[0]
    with (
        suppress(BridgeError),
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
            server: detached(partial(self._ask, its), "server slots")
            for server, its in _by_server(subscriptions).items()
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


class SlotWatch(Closing):
    """A thread that asks each server for its slots, and logs what an operator should know.

    A round is one query for each server, on a connection that stays open.

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
        self._publishers: dict[str, Publisher] = {}  # by their connection strings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slot watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching; a query under way is not waited for."""
        self._stop.set()
        if not self._thread.is_alive():
            self._disconnect(())

    def health(self) -> Mapping[str, SlotHealth]:
        """Return what was seen last, by the subscriptions' names; without those whose server did not answer."""
        return dict(self._health)

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
            return any(subscription.name not in self._asked for subscription in self._subscriptions())
        except Exception:  # noqa: BLE001 - the next round says so, or the catalog was closed
            return False

    def look(self) -> None:
        """Look at every slot once."""
        watched = self._subscriptions()
        self._asked = {subscription.name for subscription in watched}
        by_server = _by_server(watched)
        self._disconnect(by_server)
        seen: dict[str, SlotHealth] = {}
        for conninfo, subscriptions in by_server.items():
            if self._stop.is_set():
                return
            try:
                slots = self._ask(conninfo, [subscription.slot_name for subscription in subscriptions])
            except BridgeError as error:  # the subscription's worker says so
                log.get().debug("a server's slots could not be looked at", error=str(error))
                continue
            self._tell_password(conninfo, slots.password_left_s, [subscription.name for subscription in subscriptions])
            seen |= _healths(slots, subscriptions, self._histories)
            for subscription in subscriptions:
                self._tell(subscription, seen[subscription.name])
        self._health = seen

    def _ask(self, conninfo: str, slot_names: Sequence[str]) -> Slots:
        """Ask a server on the open connection; where it was lost meanwhile, on another one."""
        fresh = conninfo not in self._publishers
        try:
            if fresh:
                self._publishers[conninfo] = Publisher(conninfo, application_name="pgbridge_slot_watch")
            return self._publishers[conninfo].slots(slot_names)
        except BridgeError:
            self._disconnect(self._publishers.keys() - {conninfo})
            if fresh:
                raise
        return self._ask(conninfo, slot_names)

    def _disconnect(self, but: Collection[str]) -> None:
        """Close the connections to all servers but these."""
        for conninfo in self._publishers.keys() - set(but):
            self._publishers.pop(conninfo).close()

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
