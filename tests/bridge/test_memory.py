"""Memory that was freed is used again, without the kernel."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys, threading
import numpy as np, pyarrow as pa, pyarrow.compute as pc
from bridge.memory import keep_freed

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
