"""Remembers which jars Ivy has resolved for Delta, so that later starts of Spark do without Ivy.

Ivy resolves the same versions to the same files each time, which takes seconds. The record of a resolution lies in a
cache folder. It holds for one set of packages, as long as its files are there and have their sizes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_VERSIONED = re.compile(r"(?P<artifact>.+?)-\d[^/]*\.jar")
_DYNAMIC = re.compile(r"SNAPSHOT|latest|[+\[\](]")
"""A version that may mean another file tomorrow."""


@dataclass(frozen=True, slots=True)
class DeltaJars:
    """The jars of one set of packages.

    Attributes:
        folder: The cache folder; it need not exist.
        packages: What Ivy is asked for: all settings and versions that its answer depends on.
    """

    folder: Path
    packages: Mapping[str, str]

    @property
    def record(self) -> Path:
        """The record's file."""
        return self.folder / f"jars-{self._hash}.json"

    @property
    def archive(self) -> Path:
        """The place of an archive of their classes, whether or not one was made."""
        return self.folder / f"classes-{self._hash}.jsa"

    @property
    def _hash(self) -> str:
        text = json.dumps(dict(self.packages), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def known(self) -> list[str] | None:
        """Return the jars' paths; None if no resolution is recorded, or if one of its files is missing or differs."""
        try:
            record: Any = json.loads(self.record.read_text(encoding="utf-8"))
            jars = [(str(path), int(size)) for path, size in record["jars"]]
            unchanged = all(Path(path).stat().st_size == size for path, size in jars)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return [path for path, _ in jars] if unchanged and jars else None

    def remember(self, jars: Iterable[str], spark_jars: Iterable[str]) -> None:
        """Record a resolution. It is left out if it may change, or if the folder cannot be written.

        Args:
            jars: The resolved jars, as paths or `file:` URIs.
            spark_jars: The names of Spark's own jars. What Spark has itself, in whatever version, is not recorded:
                Spark's class loader takes its own first.
        """
        if any(_DYNAMIC.search(value) for value in self.packages.values()):
            return
        own = {_artifact(name) for name in spark_jars}
        paths = [unquote(urlsplit(jar).path) for jar in jars]
        # Ivy names a file <group>_<artifact>-<version>.jar
        kept = [path for path in paths if _artifact(Path(path).name.partition("_")[2]) not in own]
        with contextlib.suppress(OSError):
            sizes = [(path, Path(path).stat().st_size) for path in kept]
            self.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"packages": dict(self.packages), "jars": sizes}, indent=1)
            with tempfile.NamedTemporaryFile("w", dir=self.folder, encoding="utf-8", delete=False) as file:
                file.write(text)
            Path(file.name).rename(self.record)  # others see all of it or nothing


def _artifact(jar: str) -> str:
    match = _VERSIONED.fullmatch(jar)
    return match["artifact"] if match else jar


# --- An archive of the classes that Spark's JVM loads, so that later starts neither read nor verify them one by one.
#
# It is HotSpot's (JEP 350). The JVM uses it if it is of the same build, and if its class path begins with the same jars
# as the one that made it; else it starts as without it.

_OWN_CHOICE: Final = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")
_NO_WARNINGS: Final = "-Xlog:cds=error -Xlog:cds+dynamic=error"
"""An archive that does not suit a JVM is no matter, and one that is made leaves out classes by hundreds."""


def using_archive(options: str, archive: Path) -> str:
    """A JVM's options, so that it uses an archive if there is one. What they say of archives already stands."""
    if any(choice in options for choice in _OWN_CHOICE) or not archive.is_file():
        return options
    return _with(options, "SharedArchiveFile", archive)


def making_archive(options: str, archive: Path) -> str:
    """A JVM's options, so that it writes an archive when it ends."""
    kept = [option for option in options.split() if not any(choice in option for choice in _OWN_CHOICE)]
    return _with(" ".join(kept), "ArchiveClassesAtExit", archive)


def _with(options: str, name: str, archive: Path) -> str:
    escaped = str(archive).replace("\\", "\\\\").replace('"', '\\"')  # as Spark's launcher takes them apart
    return f'{options} -XX:{name}="{escaped}" {_NO_WARNINGS}'.lstrip()
