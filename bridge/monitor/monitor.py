"""The monitor as the daemon has it: nothing at all without an `[http]` table in the configuration."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.monitor.server import Access, Server, read_token
from bridge.monitor.view import Sources, View
from bridge.runtime import log
from bridge.runtime.errors import StateError
from bridge.runtime.observer import Observer
from bridge.runtime.threads import Closing, Latest

if TYPE_CHECKING:
    from bridge.catalog.catalog import Catalog
    from bridge.config.config import Http


class Monitor(Closing):
    """Serves the daemon's state over HTTP.

    Args:
        http: The configuration; None for no server.
        sources: What it shows beside the catalog.

    Raises:
        ConfigError: From `start`: the port is taken, or the token cannot be read.
    """

    def __init__(self, http: Http | None, sources: Sources) -> None:
        self._http = http
        self._heap = Latest(sources.heap)  # a JVM that hangs is when the other metrics are needed
        self._view = View(replace(sources, heap=self._heap.value))
        self._server: Server | None = None

    def start(self, catalog: Catalog) -> None:
        """Begin to answer, before Spark is started."""
        if self._http is None:
            return
        host, port = self._http.address
        token = None if self._http.token_file is None else read_token(Path(self._http.token_file))
        self._view.catalog = catalog
        self._server = Server(host, port, Access(host, token), self._view)
        self._server.start()
        self._heap.start()
        shown = f"[{host}]" if ":" in host else host
        log.get().info("serving metrics and the status page", url=f"http://{shown}:{self._server.port}/")

    def observer(self, subscription: str) -> Observer:
        """Return what a subscription's streams are to tell."""
        return Observer() if self._http is None else self._view.observations(subscription)

    def turn(self) -> None:
        """The daemon's main loop has turned."""
        if self._server is not None:
            self._server.turn()
            with suppress(StateError):  # the catalog cannot be read now: a gap in the plot
                self._view.sample()

    def close(self) -> None:
        """Stop answering."""
        self._heap.close()
        if self._server is not None:
            self._server.close()
