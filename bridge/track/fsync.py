"""Flush one file or folder to its disk, by its path: another process may have written it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def fsync(path: Path | str) -> None:
    """Make a file's content, or a folder's entries, durable.

    Raises:
        OSError: The path does not exist, or the disk fails; `filename` is the path.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)
