"""The log of a Delta table in a local folder, which tells the table's version at no cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bridge.apply.delta.durable import local_folder

if TYPE_CHECKING:
    from pathlib import Path


def log_of(place: str | None) -> Path | None:
    """The folder of the log of the table whose files are at a place; None if that is not a local folder."""
    folder = None if place is None else local_folder(place)
    return None if folder is None else folder / "_delta_log"


def latest_version(log: Path) -> int:
    """The latest version; -1 if there is none."""
    return max((int(entry.stem) for entry in log.glob("*.json") if entry.stem.isdigit()), default=-1)


def entry_of(log: Path, version: int) -> Path:
    """The file of a version."""
    return log / f"{version:020}.json"


def identity_of(entry: Path) -> tuple[int, int]:
    """What tells a version's file from that of another table, which may be at the path now."""
    found = entry.stat()
    return found.st_ino, found.st_mtime_ns


def info_of(entry: Path) -> dict[str, Any]:
    """A version's commit info; empty if it has none."""
    lines = map(json.loads, entry.read_text(encoding="utf-8").splitlines())
    return next((line["commitInfo"] for line in lines if "commitInfo" in line), {})


def properties_of(log: Path) -> dict[str, str]:
    """The properties of a table, as SHOW TBLPROPERTIES has them without its protocol; its log has all its versions."""
    for version in range(latest_version(log), -1, -1):
        for line in entry_of(log, version).read_text(encoding="utf-8").splitlines():
            if line.startswith('{"metaData":'):
                return dict(json.loads(line)["metaData"]["configuration"])
    return {}
