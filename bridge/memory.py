"""What a process that makes and drops large arrays all the time does with its memory: it keeps it.

By default malloc and Arrow's pool give back to the kernel what is freed, and get it again, filled with zeros, for the
next batch: that took a third of the time of decoding, and time of the walsender's beside it.

Source: mallopt(3); "Memory Pools" in Arrow's documentation.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from pathlib import Path
from typing import Final

import pyarrow as pa

# glibc's parameters, from malloc.h. 32 MiB is the greatest limit that it takes: larger arrays are given back at once.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_KEPT_BYTES: Final = 256 << 20
_SETTINGS: Final = {
    _M_TRIM_THRESHOLD: _KEPT_BYTES,
    _M_TOP_PAD: _KEPT_BYTES // 4,
    _M_MMAP_THRESHOLD: 32 << 20,
    _M_ARENA_MAX: 1,  # what the receiver's thread has freed is there for the one that decodes
}


def keep_freed() -> None:
    """Have this process keep up to 256 MiB of what it frees; to be called when everything is imported.

    On a C library other than glibc, only Arrow's pool and Python's collector are told.
    """
    gc.freeze()  # what is imported by now stays: the collector need not go through it again and again
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _SETTINGS.items():
            mallopt(parameter, value)


_LIMITS: Final = (  # a container's: cgroup v2, v1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def available_bytes(meminfo: Path = Path("/proc/meminfo"), limits: tuple[Path, ...] = _LIMITS) -> int | None:
    """What a process can have without others being swapped out, or itself being killed; None where that is not told."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = meminfo.read_text(encoding="ascii").splitlines()
        found.append(int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) << 10)
    for limit in limits:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            found.append(int(limit.read_text(encoding="ascii")))
    return min(found, default=None)
