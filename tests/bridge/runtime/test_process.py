"""Memory that was freed is used again, without the kernel."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from pgbridge.bridge.runtime.process import available_bytes

_PROGRAM = """
import resource, sys, threading
import numpy as np, pyarrow as pa, pyarrow.compute as pc
from pgbridge.bridge.runtime.process import keep_freed

if sys.argv[1] == "keep":
    keep_freed()

def batch():
    arrays = [np.ones(4 << 20, np.uint8) for _ in range(20)]
    return [pc.bit_wise_not(pa.array(array)) for array in arrays]

def work():
    batch()  # gets it
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        batch()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, pa.default_memory_pool().backend_name)

worker = threading.Thread(target=work)
worker.start()
worker.join()
"""


def faults(argument: str) -> tuple[int, str]:
    """How often five batches of 160 MiB, each dropped before the next, had the kernel give a page; Arrow's pool."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, argument], capture_output=True, text=True, check=True)
    count, pool = done.stdout.split()
    return int(count), pool


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is told by glibc's mallopt")
def test_freed_memory_is_used_again():
    pages = 5 * (160 << 20) // 4096
    count, pool = faults("keep")
    assert count < pages / 50
    assert pool == "system"
    assert faults("not")[0] > 10 * count


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (["max\n"], 2000 << 10),
        (["1000000\n"], 1000000),
        (["max\n", "9223372036854771712\n"], 2000 << 10),
        ([], 2000 << 10),
    ],
)
def test_what_is_available(tmp_path, limits, expected):
    """The machine's, or what a container's limit leaves of it."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 4000 kB\nMemFree: 100 kB\nMemAvailable:    2000 kB\n")
    files = [tmp_path / f"limit{number}" for number in range(2)]
    for file, text in zip(files, limits, strict=False):
        file.write_text(text)
    assert available_bytes(meminfo, tuple(files)) == expected


def test_not_told(tmp_path):
    assert available_bytes(tmp_path / "meminfo", ()) is None
