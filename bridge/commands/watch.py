"""`pgbridge status --watch`: the status document again and again, on a terminal in place, else one after the other."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from bridge.commands.state import opened
from bridge.commands.status import overview, problems, tables
from bridge.monitor.document import collect
from bridge.receive.slot_watch import ServerSlots
from bridge.runtime import errors, log
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEFAULT_S: Final = 2.0
LEAST_S: Final = 0.5
MOST_S: Final = 86_400.0

_SERVERS_S: Final = 3.0
"""How long a look waits for servers."""

Look = dict[str, Any]
"""The status document with its `time`, whether a daemon is `running`, and each subscription's `applied_bytes_per_s`, by
how much its `remote_lsn` has moved since the look before, in a second, None if that is not known; or `time` and `error`
if nothing could be seen."""


def watch(config_file: Path, interval_s: float, *, as_json: bool) -> None:
    """Look every `interval_s` seconds, until a KeyboardInterrupt.

    Raises:
        BridgeError: The first look has failed. A later one's error is shown.
    """
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        show = _lines if as_json else _shower(Console(), stack)
        looker = Looker(config_file)
        while True:
            show(looker.look())
            time.sleep(interval_s)


class Looker:
    """Looks again and again, whether the daemon runs or not.

    Args:
        config_file: The configuration file. It is read at each look, for it may have changed.
    """

    def __init__(self, config_file: Path) -> None:
        self._config_file = config_file
        self._servers = ServerSlots(_SERVERS_S)
        self._seen_once = False
        self._before: dict[str, Lsn] = {}
        self._before_s = 0.0

    def look(self) -> Look:
        """Look once; it takes a few seconds at most.

        Raises:
            BridgeError: Nothing can be seen, and nothing has been before.
        """
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            with opened(self._config_file) as state:
                document = collect(state.config, state.catalog, running=state.running, servers=self._servers)
                look: Look = {"time": moment, "running": state.running, **document}
        except errors.BridgeError as error:
            if not self._seen_once:
                raise
            return {"time": moment, "error": str(error)}
        self._seen_once = True
        self._add_rates(look, time.monotonic())
        return look

    def _add_rates(self, look: Look, now_s: float) -> None:
        passed_s, before = now_s - self._before_s, self._before
        self._before_s, self._before = now_s, {}
        for status in look["subscriptions"]:
            name, rate = status["name"], None
            if status["remote_lsn"] is not None:
                lsn = self._before[name] = Lsn.parse(status["remote_lsn"])
                if name in before and lsn >= before[name]:
                    rate = round((lsn - before[name]) / passed_s)
            status["applied_bytes_per_s"] = rate


def _lines(look: Look) -> None:
    """Write a compact document on a line, flushed."""
    sys.stdout.write(json.dumps(look, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _shower(console: Console, stack: ExitStack) -> Callable[[Look], None]:
    """Return what shows a look: in place on a terminal, which keeps the last one; else as a block of plain text."""
    if console.is_terminal and not console.is_dumb_terminal:
        live = stack.enter_context(Live(console=console, auto_refresh=False))
        console.show_cursor(True)  # the process may be suspended
        seen: Look | None = None

        def draw(look: Look) -> None:
            nonlocal seen
            seen = seen if "error" in look else look
            live.update(frame(look, seen), refresh=True)

        return draw
    plain = Console(force_terminal=False, color_system=None)  # whatever the environment says of colours

    def write(look: Look) -> None:
        plain.print(frame(look, None if "error" in look else look))
        plain.print()
        sys.stdout.flush()

    return write


def frame(look: Look, seen: Look | None) -> RenderableType:
    """Render a look: when it was, the subscriptions, what is wrong with them, and the copies under way.

    Args:
        seen: The last one that saw something; None for none.
    """
    source = "nothing could be read" if "error" in look else f"{'the' if look['running'] else 'no'} daemon runs"
    parts: list[RenderableType] = [Text(f"{look['time']}  {source}  (Ctrl-C ends)", no_wrap=True, overflow="ellipsis")]
    if "error" in look:
        parts.append(Text(f"\n{log.printable_document(look)['error']}", style="bold red"))
    if seen is not None:
        if seen is not look:
            parts.append(Text(f"\nas of {seen['time']}:"))
        document: Any = log.printable_document(seen)
        parts.append(overview(document, ("remote_lsn", "confirmed_flush_lsn"), watched=True))
        said = problems(document)  # before the tables: on a short screen a problem matters most
        said.rstrip()
        parts += [said] if said else []
        if any(table["state"] == "d" for status in document["subscriptions"] for table in status["tables"]):
            parts += [Text(), tables(document, "d")]
    return Group(*parts)
