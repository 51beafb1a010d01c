"""CPU time and peaks of a process, and of the program named java below it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import psutil
import pytest

from benchmarks.processes import Meter, cpu_s, peak_bytes, reset_peak, tree_cpu_s

BURN = "import time\nend_s = time.process_time() + 0.2\nwhile time.process_time() < end_s: pass"


@pytest.fixture
def java(tmp_path):
    """A process that has the JVM's name."""
    program = tmp_path / "java"
    shutil.copy(shutil.which("sleep") or "", program)
    with subprocess.Popen([program, "60"]) as process:
        yield process
        process.kill()


def test_children_count_in_the_tree_only_even_when_they_have_ended():
    process = psutil.Process()
    own_s, tree_s = cpu_s(process), tree_cpu_s(process)
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert tree_cpu_s(process) - tree_s >= 0.2
    assert cpu_s(process) - own_s < 0.2


def test_peak_begins_anew():
    pid = os.getpid()
    data = bytearray(200 << 20)
    high_bytes = peak_bytes(pid)
    assert high_bytes > len(data)
    del data
    reset_peak(pid)
    assert peak_bytes(pid) < high_bytes - (100 << 20)


def test_a_process_that_has_ended_has_no_peak():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert peak_bytes(process.pid) == 0


def test_meter_without_a_jvm():
    meter = Meter(os.getpid())
    sum(range(3_000_000))
    usage = meter.usage()
    assert usage.python_cpu_s > 0
    assert usage.python_peak_bytes > 1 << 20
    assert (usage.jvm_cpu_s, usage.jvm_peak_bytes) == (0, 0)


def test_meter_finds_a_jvm_that_is_started_later(request):
    meter = Meter(os.getpid())
    java = request.getfixturevalue("java")
    usage = meter.usage()
    assert usage.jvm_peak_bytes == pytest.approx(peak_bytes(java.pid), rel=0.5)
    assert usage.jvm_cpu_s < 1
    again = Meter(os.getpid()).usage()
    assert again.jvm_cpu_s <= usage.jvm_cpu_s + 0.1
