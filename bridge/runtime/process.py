"""The process's memory: keeps freed memory for the next batch, and tells how much is available.

By default malloc and Arrow's pool return freed memory to the kernel, and get it back filled with zeros for the next
batch. That took a third of the decoding time, and slowed down a walsender on the same machine.

Source: mallopt(3); "Memory Pools" in Arrow's documentation.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
from pathlib import Path
from typing import Final

import pyarrow as pa

# glibc's parameters, from malloc.h. 32 MiB is the largest threshold: larger arrays are returned to the kernel at once.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_KEPT_BYTES: Final = 256 << 20
_SETTINGS: Final = {
    _M_TRIM_THRESHOLD: _KEPT_BYTES,
    _M_TOP_PAD: _KEPT_BYTES // 4,
    _M_MMAP_THRESHOLD: 32 << 20,
    _M_ARENA_MAX: 1,  # one arena: the decoding thread can use what the receiver's thread has freed
}


def keep_freed() -> None:
    """Keep up to 256 MiB of freed memory in this process. Call it when everything is imported.

    On a C library other than glibc it only sets up Arrow's pool and Python's garbage collector.
    """
    gc.freeze()  # imported modules stay, so the garbage collector need not look at them again
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _SETTINGS.items():
            mallopt(parameter, value)


OWN_BYTES: Final = 300 << 20
"""The memory that this process uses, with a batch, without Spark's JVM and Python workers."""

_LIMITS: Final = (  # a container's: cgroup v2, v1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def available_bytes(meminfo: Path = Path("/proc/meminfo"), limits: tuple[Path, ...] = _LIMITS) -> int | None:
    """Return how much memory a process can get without swapping and without being killed; None if unknown."""
    limits_bytes: list[int] = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = meminfo.read_text(encoding="ascii").splitlines()
        limits_bytes.append(int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) << 10)
    for limit in limits:
        with contextlib.suppress(OSError, ValueError):  # "max" is not a number
            limits_bytes.append(int(limit.read_text(encoding="ascii")))
    return min(limits_bytes, default=None)


# --- The limit of open file descriptors: raised as servers do, and whether it is enough for the subscriptions ---------

_MOST: Final = 65_536
"""The soft limit is not raised above this: some programs close every descriptor up to it when they start another."""

_BASE, _EACH = 512, 10
"""The larger of the two processes is the JVM: it had 412 open, mostly jars, with 20 subscriptions. Python had 5 to a
subscription: sockets to the server and to the JVM, and a pipe. The rest is for copies, spool files and commits."""


def needed(subscriptions: int) -> int:
    """Return how many descriptors a process should be allowed for so many subscriptions."""
    return _BASE + _EACH * subscriptions


def limit() -> int | None:
    """Return how many descriptors this process may have once it has raised its limit; None for any number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def raise_limit() -> None:
    """Raise the soft limit to the hard one, up to 65 536. Spark's JVM inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _MOST:
        return
    with contextlib.suppress(OSError, ValueError):  # a sandbox may not allow it; then the soft limit stays
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (_MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST), hard)
        )


# --- Flush one file or folder to its disk, by its path: another process may have written it ---------------------------


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
