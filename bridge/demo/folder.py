"""The demo's folder: its configuration file, logs and Delta tables."""

from __future__ import annotations

import fcntl
import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bridge.runtime.errors import BridgeError

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
                raise BridgeError(
                    f"{self.directory} is not empty, and is not the folder of an earlier demo",
                    hint="choose a new folder: pgbridge demo --directory …",
                )
            file = marker.open("a", encoding="ascii")
        except OSError as error:
            raise BridgeError(f"the demo's folder {self.directory} cannot be used: {error}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BridgeError(f"another demo runs in {self.directory}") from None
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
