"""An archive of the classes that Spark's JVM loads, so that later starts neither read nor verify them one by one.

It is HotSpot's (JEP 350). The JVM uses it if it is of the same build, and if its class path begins with the same jars
as the one that made it; else it starts as without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

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
