"""The log of a Delta table in a local folder, which tells the table's version at no cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from bridge.apply.delta.durable import local_folder
from bridge.errors import TargetError

if TYPE_CHECKING:
    from pathlib import Path


_ALTERING: Final = frozenset({"metaData", "protocol", "domainMetadata"})


def log_of(place: str | None) -> Path | None:
    """The folder of the log of the table whose files are at a place; None if that is not a local folder."""
    folder = None if place is None else local_folder(place)
    return None if folder is None else folder / "_delta_log"


def latest_version(log: Path, since: int | None = None) -> int:
    """The latest version; -1 if there is none.

    Args:
        log: The log.
        since: A version from which to look; None for that of the last checkpoint. To list the log takes long if it has
            all the commits of a month.
    """
    version = _checkpoint(log) if since is None else since
    if version is None or not entry_of(log, version).exists():
        return max((int(entry.stem) for entry in log.glob("*.json") if entry.stem.isdigit()), default=-1)
    while entry_of(log, version + 1).exists():
        version += 1
    return version


def _checkpoint(log: Path) -> int | None:
    try:
        return int(json.loads((log / "_last_checkpoint").read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):  # a reader must not rely on it
        return None


def entry_of(log: Path, version: int) -> Path:
    """The file of a version."""
    return log / f"{version:020}.json"


def identity_of(entry: Path) -> tuple[int, int]:
    """What tells a version's file from that of another table, which may be at the path now."""
    found = entry.stat()
    return found.st_ino, found.st_mtime_ns


def check_log(log: Path, place: str | None, path: str) -> None:
    """Check that the table's files are still where they were.

    Raises:
        TargetError: A catalog has another table of the name.
    """
    if log_of(place) != log:
        raise TargetError(
            f"{path}: the catalog has another table of this name now",
            hint="the batch is undone and applied again; disable the subscription before you replace its tables",
        )


def alters(entry: Path) -> bool:
    """Whether a version changes columns, properties or the layout, not only rows."""
    actions = map(json.loads, entry.read_text(encoding="utf-8").splitlines())
    return any(not _ALTERING.isdisjoint(action) for action in actions)


def info_of(entry: Path) -> dict[str, Any]:
    """A version's commit info; empty if it has none."""
    lines = map(json.loads, entry.read_text(encoding="utf-8").splitlines())
    return next((line["commitInfo"] for line in lines if "commitInfo" in line), {})


def checksum_of(log: Path, version: int) -> dict[str, Any] | None:
    """What Delta has written of a version: size, protocol, metadata; None if its writer has written nothing.

    See: "Version Checksum File" in Delta's PROTOCOL.md.
    """
    try:
        found = json.loads((log / f"{version:020}.crc").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return dict(found) if isinstance(found, dict) else None
