"""The state directory as a command finds it, with a running daemon or without."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bridge.catalog.catalog import Catalog, catalog_path
from bridge.catalog.lock import is_running
from bridge.config import config
from bridge.receive.publisher import Publisher
from bridge.receive.slot_health import shown_status
from bridge.runtime.errors import BridgeError
from bridge.runtime.threads import detached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from bridge.config.config import Config, Subscription
    from protocol.lsn import Lsn


@dataclass(frozen=True, slots=True)
class State:
    """A configuration with its catalog.

    Attributes:
        config: The configuration.
        catalog: Its catalog, in which every subscription of the configuration is registered.
        running: Whether a daemon holds the state directory.
    """

    config: Config
    catalog: Catalog
    running: bool

    @property
    def when(self) -> str:
        """When a change in the catalog takes effect, for messages."""
        return "now" if self.running else "at the daemon's next start"


@contextmanager
def opened(config_file: Path) -> Iterator[State]:
    """Load a configuration and open its catalog, which a running daemon may use at the same time.

    Raises:
        ConfigError: The configuration cannot be used.
        StateError: The state directory cannot be used.
    """
    settings = config.load(config_file)
    with closing(Catalog(catalog_path(settings.state_dir))) as catalog:
        for subscription in settings.subscription.values():
            catalog.register(subscription.name, enabled=subscription.enabled)
        yield State(settings, catalog, is_running(settings.state_dir))


# --- The positions that `pgbridge status` asks of the servers; a server that is silent holds up no other one ----------


class Position(NamedTuple):
    """A subscription's, on its server; None for each that is not known.

    Attributes:
        confirmed_flush_lsn: What the slot has confirmed.
        flush_lsn: The end of the server's flushed WAL.
        slot_wal_status: Whether the slot has its WAL (`slot_health.shown_status`).
    """

    confirmed_flush_lsn: Lsn | None = None
    flush_lsn: Lsn | None = None
    slot_wal_status: str | None = None


def ask(subscriptions: Sequence[Subscription]) -> dict[str, Position]:
    """Ask a server for the positions of its subscriptions, by their names; nothing if it does not answer."""
    first = subscriptions[0]
    found = {}
    with (
        suppress(BridgeError),
        Publisher(first.connection, application_name=f"{first.name}_status") as publisher,
    ):
        slots = publisher.slots([one.slot_name for one in subscriptions])
        for one in subscriptions:
            slot = slots.by_name[one.slot_name]
            wal_status = shown_status(slot.wal_status, slot.invalidation_reason) if slot else shown_status(None, None)
            found[one.name] = Position(slot.confirmed_flush_lsn if slot else None, slots.flush_lsn, wal_status)
    return found


class ServerPositions:
    """Asks each server in a thread of its own, which the end of the process does not wait for.

    Args:
        patience_s: How long to wait for all answers together; None for as long as connecting takes. A server that was
            late is not waited for again before its answer has come, or its connection has timed out.
        ask: Asks one server for some subscriptions.
    """

    def __init__(
        self,
        patience_s: float | None = None,
        ask: Callable[[Sequence[Subscription]], dict[str, Position]] = ask,
    ) -> None:
        self._patience_s = patience_s
        self._ask = ask
        self._late: dict[str, Future[dict[str, Position]]] = {}

    def of(self, subscriptions: Sequence[Subscription]) -> list[Position]:
        """Return each subscription's position. Only one thread may call it at a time."""
        by_server: dict[str, list[Subscription]] = defaultdict(list)
        for subscription in subscriptions:
            by_server[subscription.connection].append(subscription)
        self._late = {server: answer for server, answer in self._late.items() if not answer.done()}
        deadline_s = None if self._patience_s is None else time.monotonic() + self._patience_s
        # at once; a late one's answer will be too old
        asked = {
            server: detached(partial(self._ask, some), "server positions")
            for server, some in by_server.items()
            if server not in self._late
        }
        found: dict[str, Position] = {}
        for server, answer in asked.items():
            try:
                found |= answer.result(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                self._late[server] = answer
        return [found.get(one.name, Position()) for one in subscriptions]
