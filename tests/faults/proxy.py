"""A TCP proxy before a server, that cuts, delays, goes silent and refuses."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

from pgbridge.bridge.runtime.threads import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

_BYTES = 65_536
_TURN_S = 0.2


class Proxy(Closing):
    """Forwards connections to a port that may change.

    Args:
        target: Returns (host, port), asked at each connection.

    Attributes:
        delay_s: How long each piece of data is held back, in both directions.
        silent: Nothing is forwarded any more, and no connection is closed: as behind a router that lost its table.
        refuses: New connections are closed at once.
    """

    def __init__(self, target: Callable[[], tuple[str, int]]) -> None:
        self._target = target
        self.delay_s = 0.0
        self.silent = self.refuses = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_TURN_S)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> int:
        """Reset all connections; returns how many there were."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST
                    one.shutdown(socket.SHUT_RDWR)
                    one.close()
        return len(pairs)

    def half_close(self) -> None:
        """End each connection's way from the server only: the client may still send."""
        with self._lock:
            pairs = list(self._pairs)
        for client, _ in pairs:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)

    def heal(self) -> None:
        """Be as at the start; connections that were silent are cut, because data is missing in them."""
        was_silent, self.silent, self.refuses, self.delay_s = self.silent, False, False, 0.0
        if was_silent:
            self.cut()

    def close(self) -> None:
        """Stop, and cut all connections."""
        self._stop.set()
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if self.refuses:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target(), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            for source, sink in (pair, (server, client)):
                threading.Thread(target=self._forward, args=(source, sink, pair), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        try:
            while data := source.recv(_BYTES):
                if self.delay_s:
                    time.sleep(self.delay_s)
                if self.silent:
                    return
                sink.sendall(data)
        except OSError:
            pass
        finally:
            if not self.silent:
                with self._lock:
                    self._pairs.discard(pair)
                for one in pair:
                    with contextlib.suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)  # the other way's thread waits in recv: close alone does nothing
                    one.close()
