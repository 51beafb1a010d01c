"""pgbridge as a child process of the demo: started, killed, stopped, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from bridge.runtime import errors, threads

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM: Final = __name__.removesuffix(".demo.child")  # in a wheel the package has another name
_STOP_S = 60.0  # a batch under way is finished, and Spark is stopped
_LOG_LINES: Final = 15

# A shell in the child's process group: the group keeps its number as long as the shell lives. If we are killed, its
# standard input is closed, and it kills the group: Python, Spark's JVM and itself.
_KEEPER: Final = "read -r _; kill -s KILL 0"


class Child(threads.Closing):
    """`pgbridge run` with a configuration file, in a process group of its own that Ctrl-C does not reach.

    Args:
        log: The file that its output is added to.
        command: Another command.
    """

    def __init__(self, config_file: Path, log: Path, command: str = "run") -> None:
        self._command = command
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, command, "--config", config_file],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        self._keeper: subprocess.Popen[bytes] | None = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER], stdin=subprocess.PIPE, process_group=self.pid
        )

    @property
    def pid(self) -> int:
        """The process's id, and its process group's."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def check(self) -> None:
        """Raise an error if the process has ended.

        Raises:
            BridgeError: With its exit status and the end of its log.
        """
        if self.status is not None:
            raise self._failure()

    def _failure(self) -> errors.BridgeError:
        how = f"still runs, as process {self.pid}" if self.status is None else f"has ended, with status {self.status}"
        return errors.BridgeError(f"pgbridge {self._command} {how}; the end of {self._log}:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines of the log."""
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])

    def kill(self) -> None:
        """`kill -9` the process; its JVM notices that and ends."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM, and wait for the end of the current batch and of the process.

        Raises:
            BridgeError: It has not ended after a minute, or its exit status is not 0.
        """
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        if self.status != 0:
            raise self._failure()

    def close(self) -> None:
        """Kill every process of the group that is left."""
        if self._keeper is not None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._keeper.communicate()
            self._keeper = None
