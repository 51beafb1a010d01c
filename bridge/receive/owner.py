"""Whether a daemon lives elsewhere that has the same subscriptions: its slots are the lease.

While it streams, its status updates show that it lives. While it does not (tables are copied, it waits after an error,
all is disabled), its look at the slots does, which is every half minute (`bridge.receive.slot_watch`). What is compared
is whether these change, because the clocks of three machines differ.

A connection does not end by itself when a machine is gone, or when a process is stopped. So one that says nothing for
too long is ended from here.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import recovery_name, tablesync_slot, watch_name
from pgbridge.bridge.receive.slot_watch import INTERVAL_S, by_server
from pgbridge.bridge.runtime import errors, threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from pgbridge.bridge.config.config import Subscription

SILENT_S: Final = 20.0
"""So long a stream's status update may take to come: six times what a quiet stream waits before the next one."""

_WATCH_SILENT_S: Final = 3 * INTERVAL_S


class Owner(threads.Closing):
    """Looks at one daemon's subscriptions, on connections that stay open.

    Args:
        subscriptions: All that it has.
        now_s: The time, by any clock that does not jump.
    """

    def __init__(self, subscriptions: Sequence[Subscription], now_s: Callable[[], float] = time.monotonic) -> None:
        self._by_server = by_server(subscriptions)
        self._now_s = now_s
        self._publishers: dict[str, Publisher] = {}  # by their connection strings
        self._signs: dict[tuple[str, int], tuple[str, float]] = {}  # by server and process: the last, and when
        self._silent: list[tuple[str, int]] = []  # processes that hold slots, and whose daemon says nothing

    def close(self) -> None:
        """Close the connections."""
        for publisher in self._publishers.values():
            publisher.close()
        self._publishers.clear()

    def look(self) -> str:
        """What shows that the daemon lives; empty if nothing does.

        Raises:
            PublisherError: No server answers.
        """
        now_s = self._now_s()  # before they are asked: an answer may be late
        rows: list[tuple[str, dict[str, Any]]] = []
        failure: errors.BridgeError | None = None
        answers = False
        for conninfo in self._by_server:
            try:
                rows += [(conninfo, row) for row in self._ask(conninfo)]
                answers = True
            except errors.BridgeError as error:
                failure = error
                if (lost := self._publishers.pop(conninfo, None)) is not None:
                    lost.close()
        if not answers and failure is not None:
            raise failure
        before, self._signs = self._signs, {}
        lives: dict[bool, str] = {}
        streams = any(row["slot_name"] is not None for _, row in rows)
        self._silent = []
        for conninfo, row in rows:
            key, sign, streaming = (conninfo, row["pid"]), row["sign"], row["slot_name"] is not None
            last = before.get(key)
            self._signs[key] = last if last is not None and last[0] == sign else (sign, now_s)
            silent_s = now_s - self._signs[key][1]
            if silent_s < (SILENT_S if streaming else _WATCH_SILENT_S):
                what = f'slot "{row["slot_name"]}"' if streaming else f'session "{row["application_name"]}"'
                lives.setdefault(streaming, f"{what} is in use from {row['client']} by process {row['pid']}")
            elif streaming:
                self._silent.append(key)
        # one that does not stream while it has a stream does not work
        return lives.get(streams, "")

    def end(self) -> bool:
        """End the processes that hold slots for a daemon that says nothing; returns whether there were any.

        Raises:
            PublisherError: The server refuses; or does not answer.
        """
        silent, self._silent = self._silent, []
        if silent:  # its other sessions stay, and show nothing until it asks something
            self._signs = {key: (sign, -math.inf) for key, (sign, _) in self._signs.items()}
        for conninfo, pid in silent:
            self._publishers[conninfo].rows("end_processes", {"pids": [pid]})
        return bool(silent)

    def _ask(self, conninfo: str) -> list[dict[str, Any]]:
        if conninfo not in self._publishers:
            self._publishers[conninfo] = Publisher(conninfo, application_name="pgbridge_standby")
        names = [each.slot_name for each in self._by_server[conninfo]]
        return self._publishers[conninfo].rows(
            "owner_signs",
            {
                "slot_names": [*names, *map(tablesync_slot, names)],
                "application_names": [*map(watch_name, names), *map(recovery_name, names)],
            },
        )
