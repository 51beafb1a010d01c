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


STARTS_JAVA = """
import subprocess, sys
sum(range(3_000_000))
print("ready", flush=True)
with subprocess.Popen([input(), "60"]) as java:
    print(java.pid, flush=True)
    input()
    java.kill()
"""


@pytest.fixture
def python():
    """A Python process, which starts the program that a line of its standard input names."""
    command = [sys.executable, "-c", STARTS_JAVA]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process
        process.kill()


STARTS_BURN = f"""
import subprocess, sys
print("ready", flush=True)
input()
subprocess.run([sys.executable, "-c", {BURN!r}], check=True)
print("burnt", flush=True)
input()
"""


def test_children_count_in_the_tree_only_even_when_they_have_ended():
    """Of a process of its own: below this one, workers of Spark may end meanwhile whose time nobody inherits."""
    command = [sys.executable, "-c", STARTS_BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        process = psutil.Process(parent.pid)
        assert parent.stdout.readline() == "ready\n"
        own_s, tree_s = cpu_s(process), tree_cpu_s(process)
        print(file=parent.stdin, flush=True)
        assert parent.stdout.readline() == "burnt\n"
        assert tree_cpu_s(process) - tree_s >= 0.15  # the kernel counts in hundredths
        assert cpu_s(process) - own_s < 0.15
        parent.kill()


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


def test_meter_without_a_jvm(python):
    meter = Meter(python.pid)
    assert python.stdout.readline() == "ready\n"
    usage = meter.usage()
    assert usage.python_cpu_s > 0
    assert usage.python_peak_bytes > 1 << 20
    assert (usage.jvm_cpu_s, usage.jvm_peak_bytes) == (0, 0)


def test_meter_finds_a_jvm_that_is_started_later(python, tmp_path):
    java = tmp_path / "java"  # it is found by this name
    shutil.copy(shutil.which("sleep") or "", java)
    meter = Meter(python.pid)
    python.stdin.write(f"{java}\n")
    python.stdin.flush()
    python.stdout.readline()
    pid = int(python.stdout.readline())
    usage = meter.usage()
    assert usage.jvm_peak_bytes == pytest.approx(peak_bytes(pid), rel=0.5)
    assert usage.jvm_cpu_s < 1
    again = Meter(python.pid).usage()
    assert again.jvm_cpu_s <= usage.jvm_cpu_s + 0.1
    python.stdin.write("\n")
    python.stdin.flush()
