"""The log of a Delta table in a local folder, which tells the table's version at no cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bridge.lake.log.durable import local_folder

if TYPE_CHECKING:
    from pathlib import Path


def log_of(place: str | None) -> Path | None:
    """The folder of the log of the table whose files are at a place; None if that is not a local folder."""
    folder = None if place is None else local_folder(place)
    return None if folder is None else folder / "_delta_log"


def latest_version(log: Path) -> int:
    """The latest version; -1 if there is none.

    It looks from the last checkpoint on: to list the log takes long if it has all the commits of a month.
    """
    version = _checkpoint(log)
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


def info_of(entry: Path) -> dict[str, Any]:
    """A version's commit info; empty if it has none."""
    with entry.open(encoding="utf-8") as lines:
        # it is the first line, except in commits of other writers
        actions = (json.loads(line) for line in lines if '"commitInfo"' in line)
        return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def checksum_of(log: Path, version: int) -> dict[str, Any] | None:
    """What Delta has written of a version: size, protocol, metadata; None if its writer has written nothing.

    See: "Version Checksum File" in Delta's PROTOCOL.md.
    """
    try:
        found = json.loads((log / f"{version:020}.crc").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return dict(found) if isinstance(found, dict) else None
