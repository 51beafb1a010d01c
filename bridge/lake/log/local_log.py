"""Reads the log of a Delta table in a local folder: what it tells there costs no job of Spark's.

See: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

LARGE_ENTRY_BYTES: Final = 1 << 20
"""A larger entry is not read as a whole."""

KEY_CHARACTERS: Final = 12
"""An action's key is among the first characters of its line, with spaces that other writers may have there."""

_LAST_COMMITS: Final = 8
"""So many are looked through for an application id: others may have committed since."""

_ONE_PART: Final = 3
"""Dots in the name of a checkpoint that is whole by itself: VERSION.checkpoint.parquet, or one with a UUID."""

_LOCAL: Final = re.compile(r"(?:file:(?://[^/]*)?)?(/.*)", re.DOTALL)


def local_folder(path: str) -> Path | None:
    """The folder of a path or URI; None if that is not on a local file system.

    Like Hadoop's Path it takes the text of a `file:` URI as it is: `%20` is no space there.
    """
    local = _LOCAL.fullmatch(path)
    return None if local is None else Path(local[1])


def folder_uri(path: Path) -> str:
    """The `file:` URI of a local path for Spark, which `Path.as_uri` is not: it has `%20` for a space."""
    return f"file://{path}"


def real_location(path: str) -> str:
    """A path that is the same for all that lead to one table: over links, as `file:` URI, by another scheme of S3."""
    folder = local_folder(path)
    return re.sub("^s3[an]?://", "s3a://", path) if folder is None else os.path.realpath(folder)


def log_of(place: str | None) -> Path | None:
    """The folder of the log of the table whose files are at a place; None if that is not a local folder."""
    folder = None if place is None else local_folder(place)
    return None if folder is None else folder / "_delta_log"


def entry_of(log: Path, version: int) -> Path:
    """The file of a version."""
    return log / f"{version:020}.json"


def identity(path: Path) -> tuple[int, int] | None:
    """The inode and the time of a file's last change in nanoseconds; None if there is none.

    A file that was put in place of another has others, also if it has the same content.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def latest_version(log: Path) -> int:
    """The latest version; -1 if there is none.

    It looks from the last checkpoint on: to list the log takes long if it has all the commits of a month.
    """
    version = checkpoint_version(log)
    if version is None or not entry_of(log, version).exists():
        return max((int(entry.stem) for entry in log.glob("*.json") if entry.stem.isdigit()), default=-1)
    while entry_of(log, version + 1).exists():
        version += 1
    return version


def checkpoint_version(log: Path) -> int | None:
    """The version of the last checkpoint, by the hint that Delta keeps of it; None if that tells none."""
    try:
        return int(json.loads((log / "_last_checkpoint").read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):  # a reader must not rely on it
        return None


def info_of(entry: Path) -> dict[str, Any]:
    """A version's commit info; without an operation if the commit says nothing, which the protocol allows.

    Empty if a power cut has left nothing that can be read.
    """
    first = ""
    with entry.open(encoding="utf-8", errors="replace") as lines, suppress(ValueError):
        for line in lines:
            first = first or line
            # it is the first line, except in commits of other writers
            if '"commitInfo"' in line and "commitInfo" in (action := json.loads(line)):
                info: dict[str, Any] = action["commitInfo"]
                return info
        json.loads(first)
        return {"operation": None}
    return {}


def has_checkpoint_after(log: Path, version: int) -> bool:
    """Whether there is a whole checkpoint of a later version, also if Delta could not keep the hint of it."""
    if (checkpoint_version(log) or -1) > version:
        return True
    names = (file.name for file in log.glob("*.checkpoint.*") if file.name[:20].isdigit())
    return any(int(name[:20]) > version and name.count(".") <= _ONE_PART for name in names)


def last_transaction(log: Path, version: int, app_id: str) -> int | None:
    """The number of an application id's last transaction in a version, by its last few commits.

    Returns:
        -1 if the whole log is so young, and has none; None if these commits do not tell.
    """
    for recent in range(version, max(-1, version - _LAST_COMMITS), -1):
        try:
            with entry_of(log, recent).open(encoding="utf-8") as lines:
                actions = [json.loads(line)["txn"] for line in lines if '"txn"' in line[:KEY_CHARACTERS]]
            numbers = [int(action["version"]) for action in actions if action["appId"] == app_id]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if numbers:
            return max(numbers)
    return -1 if version < _LAST_COMMITS else None


def whole_overwrite(log: Path, version: int) -> list[dict[str, Any]] | None:
    """The actions of a version whose commit has replaced all files of the table: those that it adds are all now.

    Its log entry says that it did. Delta's checksum must agree, and be of this commit: after a log was put back from a
    backup, the checksum of another one may be left.

    Returns:
        No actions if the table has no files, whatever the commit; None if it is another commit, or if that is not
        known.
    """
    checksum, entry = checksum_of(log, version), entry_of(log, version)
    try:
        if checksum is None or entry.stat().st_size > LARGE_ENTRY_BYTES:
            return None
        # a text in it may have other ends of lines, unescaped
        actions = [dict(json.loads(line)) for line in entry.read_text(encoding="utf-8").split("\n") if line]
        (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
        if str(info["txnId"]) != checksum["txnId"]:
            return None
        if checksum.get("numFiles") == 0:
            return []
        overwrites = (info["operation"], info["operationParameters"]) == ("WRITE", {"mode": "Overwrite"})
        files = sum("add" in action for action in actions)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return actions if overwrites and checksum.get("numFiles") == files else None


def checksum_of(log: Path, version: int) -> dict[str, Any] | None:
    """What Delta has written of a version: size, protocol, metadata; None if its writer has written nothing.

    See: "Version Checksum File" in Delta's PROTOCOL.md.
    """
    try:
        checksum = json.loads((log / f"{version:020}.crc").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return dict(checksum) if isinstance(checksum, dict) else None
