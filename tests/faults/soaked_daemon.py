"""The daemon under random faults: a process with a configuration file, its commands, its memory and its log."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    import signal

ROOT = Path(__file__).parents[2]


class Daemon:
    """The daemon under test, and its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.peak_bytes = 0

    def start(self, *arguments: str) -> None:
        """Start it, with further arguments of `pgbridge run`."""
        with (self.folder / "daemon.log").open("ab") as log:
            command = [sys.executable, "-m", "pgbridge", "run", *arguments]
            command += ["--config", str(self.folder / "pgbridge.toml")]
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and wait for the end."""
        assert self._process is not None
        if self.alive():
            self._process.send_signal(number)
        return self._process.wait(300)

    def java(self) -> psutil.Process | None:
        """Its JVM."""
        with contextlib.suppress(psutil.Error):
            return next(
                (one for one in psutil.Process(self.pid).children(recursive=True) if one.name() == "java"), None
            )
        return None

    def measure(self) -> None:
        """Remember its greatest memory, without the JVM's."""
        with contextlib.suppress(psutil.Error):
            self.peak_bytes = max(self.peak_bytes, psutil.Process(self.pid).memory_info().rss)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command of pgbridge."""
        line = [sys.executable, "-m", "pgbridge", *arguments, "--config", str(self.folder / "pgbridge.toml")]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)

    def status(self) -> dict[str, Any]:
        """Its subscription's entry; empty if the catalog cannot be read now."""
        done = self.command("status", "--json")
        entry: dict[str, Any] = json.loads(done.stdout)["subscriptions"][0] if done.returncode == 0 else {}
        return entry

    def log_counts(self) -> Counter[str]:
        """How often each event was logged."""
        counts: Counter[str] = Counter()
        for line in (self.folder / "daemon.log").read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError, TypeError):
                event = json.loads(line)
                counts[f"{event['level']}: {event['event']}"] += 1
        return counts
