"""Parts of a daemon under test: workers that end as they are told, and systemd's end of its notifications."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from pgbridge.bridge.runtime.threads import Heartbeat

if TYPE_CHECKING:
    from pgbridge.bridge.config.config import Subscription

SETUP = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE PUBLICATION pub FOR TABLE t"


def command(bridge, *arguments):
    """Run another command on the daemon's configuration."""
    line = [sys.executable, "-m", "pgbridge", *arguments, "--config", str(bridge.config)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.3)


class DyingWorker:
    """A worker whose thread ends as it is told, one life after the other; the last one lives on."""

    ends: list[tuple[BaseException | None, bool]]
    lives = 0
    looks = 0

    made: list[Subscription]

    def __init__(self, subscription, *_, **__):
        DyingWorker.made.append(subscription)
        self.subscription = subscription
        self.thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None
        self.gave_up = self.disabled = False
        self.heartbeat = Heartbeat()
        self._stop = threading.Event()

    def _run(self):
        DyingWorker.lives += 1
        if self.ends:
            self.error, self.gave_up = self.ends.pop(0)
        else:
            self._stop.wait(60)

    def stop(self):
        self._stop.set()

    def look_soon(self):
        """Nothing is published here."""
        DyingWorker.looks += 1


class Systemd:
    """Its end of the notifications: a thread that receives them, because the kernel keeps only ten."""

    def __init__(self, path: str) -> None:
        self.messages: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while message := self._socket.recv(4096):
            self.messages.append(message.decode())

    def told(self, message):
        """Whether it was told something that begins like this."""
        return any(one.startswith(message) for one in self.messages)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()
