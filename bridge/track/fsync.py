"""One file or folder, flushed to its disk by its path: whoever wrote it may be another process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def fsync(path: Path | str) -> None:
    """Have the disk hold what a file has, or which files a folder names.

    Raises:
        OSError: It is not there, or the disk does not take it; `filename` is the path.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)
