"""pgbridge in the demo: a folder with its configuration file, logs and Delta tables, and a child process that runs it.

The process is started, killed, stopped, and never left behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.runtime import errors, threads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MARKER: Final = ".pgbridge-demo"
"""An empty file that marks a folder as the demo's."""

_CONFIG: Final = """\
# Written by `pgbridge demo`. The private server ends with the demo; the Delta tables stay.
state_dir = "state"

[spark]
master = "local[2]"

[spark.conf]
"spark.driver.memory" = "2g"
# for a run of a minute: what the JVM's second compiler would do costs more than it saves, and so do the collections of
# a heap that begins small
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseParallelGC \
-XX:MetaspaceSize=256m -Xms1g -XX:NewSize=400m"
"spark.local.dir" = {scratch}
"spark.sql.warehouse.dir" = {scratch}

# everything
[subscription.shop]
connection = {connection}
publications = ["shop_pub"]
warehouse = "lake/shop"

# some rows and columns of one table: the publication has a row filter and a column list
[subscription.vip]
connection = {connection}
publications = ["vip_pub"]
warehouse = "lake/vip"
"""


class DemoFolder:
    """The demo's folder and the paths in it.

    Attributes:
        directory: The folder, absolute.
        config_file: pgbridge.toml.
        lake: The folder of the Delta tables.
        log: The daemon's log.
        proof: What `pgbridge verify` has printed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.expanduser().absolute()
        self.config_file = self.directory / "pgbridge.toml"
        self.lake = self.directory / "lake"
        self.log = self.directory / "daemon.log"
        self.proof = self.directory / "verify.txt"
        self._scratch = self.directory / "scratch"

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Create the folder, or clear an earlier demo's, and lock it during the `with` block.

        Raises:
            BridgeError: The folder has files that are not a demo's, another demo uses it, or it cannot be written.
        """
        marker = self.directory / MARKER
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not marker.exists() and any(self.directory.iterdir()):
                raise errors.BridgeError(
                    f"{self.directory} is not empty, and is not the folder of an earlier demo",
                    hint="choose a new folder: pgbridge demo --directory …",
                )
            file = marker.open("a", encoding="ascii")
        except OSError as error:
            raise errors.BridgeError(f"the demo's folder {self.directory} cannot be used: {error}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise errors.BridgeError(f"another demo runs in {self.directory}") from None
            # the files of a demo, and no others that may be in the folder
            for folder in (self.lake, self.directory / "state", self._scratch):
                if folder.exists():
                    shutil.rmtree(folder)
            for path in (self.config_file, self.log, self.proof):
                path.unlink(missing_ok=True)
            try:
                yield
            finally:
                shutil.rmtree(self._scratch, ignore_errors=True)

    def write_config(self, connection: str) -> None:
        """Write pgbridge.toml with both subscriptions."""
        # a string in TOML has JSON's escapes but no surrogates
        values = {"connection": connection, "scratch": str(self._scratch)}
        text = _CONFIG.format(**{key: json.dumps(value, ensure_ascii=False) for key, value in values.items()})
        self.config_file.write_text(text, encoding="utf-8")


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
                [sys.executable, "-m", "pgbridge", command, "--config", config_file],
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
