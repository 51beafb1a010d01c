"""One look at the subscriptions for `pgbridge status --watch`, and how fast they move between two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bridge.commands.server_positions import ServerPositions
from bridge.commands.state import opened
from bridge.commands.status import collect
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

_SERVERS_S = 3.0


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen.

    Attributes:
        time: When, in UTC.
        document: The document of `pgbridge status --json`; None if nothing could be seen.
        running: Whether a daemon runs.
        problem: Why nothing could be seen; empty if something was.
    """

    time: datetime
    document: dict[str, Any] | None
    running: bool = False
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the document of `--watch --json`."""
        time = self.time.isoformat(timespec="milliseconds")
        if self.document is None:
            return {"time": time, "error": self.problem}
        return {"time": time, "running": self.running, **self.document}


@dataclass(frozen=True, slots=True)
class Seen:
    """A document, and whether a daemon runs."""

    document: dict[str, Any]
    running: bool


class Looker:
    """Looks again and again, whether the daemon runs or not.

    Args:
        config_file: The configuration file. It is read at each look, for it may have changed.
    """

    def __init__(self, config_file: Path) -> None:
        self._config_file = config_file
        self._servers = ServerPositions(_SERVERS_S)

    def look(self) -> Seen:
        """Look once; it takes a few seconds at most.

        Raises:
            ConfigError: The configuration cannot be used.
            StateError: The state directory cannot be used.
        """
        with opened(self._config_file) as state:
            document = collect(state.config, state.catalog, running=state.running, servers=self._servers)
            return Seen(document, state.running)


class Rates:
    """How fast each subscription applies WAL: by how much its `remote_lsn` has moved since the look before."""

    def __init__(self) -> None:
        self._before: dict[str, Lsn] = {}
        self._before_s = 0.0

    def add(self, document: dict[str, Any], now_s: float) -> None:
        """Give each subscription of a document its `applied_bytes_per_s`; None if that is not known.

        Args:
            document: The document, which is changed.
            now_s: When it was made, by a clock that does not go back.
        """
        passed_s, before = now_s - self._before_s, self._before
        self._before_s, self._before = now_s, {}
        for entry in document["subscriptions"]:
            name, rate = entry["name"], None
            if entry["remote_lsn"] is not None:
                lsn = self._before[name] = Lsn.parse(entry["remote_lsn"])
                if passed_s > 0 and name in before and lsn >= before[name]:
                    rate = round((lsn - before[name]) / passed_s)
            entry["applied_bytes_per_s"] = rate
