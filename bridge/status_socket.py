"""Answers `pgbridge status --json` on a Unix socket in the state directory (see `bridge.quick_status`)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from bridge import log
from bridge.closing import Closing
from bridge.quick_status import SOCKET, short_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TURN_S = 0.5
_SEND_S = 5.0


class StatusSocket(Closing):
    """Listens, and answers one reader after the other.

    Args:
        state_dir: Where the socket is; only its owner can connect.
        document: Returns the document of `pgbridge status --json`.
    """

    def __init__(self, state_dir: Path, document: Callable[[], dict[str, Any]]) -> None:
        self._path = state_dir / SOCKET
        self._document = document
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status socket", daemon=True)

    def start(self) -> None:
        """Begin to answer. Without a socket, because the file system has none, the command does without, too."""
        self._path.unlink(missing_ok=True)  # of a daemon that was killed
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(_TURN_S)
        try:
            with short_path(self._path.parent) as path:
                before = os.umask(0o177)
                try:
                    self._listener.bind(path)
                finally:
                    os.umask(before)
            self._listener.listen()
        except OSError as error:
            self._listener.close()
            log.get().debug("no status socket", error=str(error))
            return
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._listener.close()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                reader, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:  # no descriptor is free, for example: then there may be one later
                log.get().debug("a reader of the status cannot be accepted", error=str(error))
                self._stop.wait(_TURN_S)
            else:
                with reader, contextlib.suppress(Exception):  # a reader without an answer looks itself
                    reader.settimeout(_SEND_S)
                    reader.sendall(json.dumps(self._document(), indent=2).encode() + b"\n")
