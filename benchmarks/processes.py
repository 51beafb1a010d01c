"""What the processes of a run use: CPU time, and the peaks of their memory."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

_JVM: Final = "java"
_RESET_PEAK: Final = "5"
"""What makes /proc/PID/clear_refs (proc(5)) reset VmHWM to the present resident set."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a Python process and the JVM behind it have used.

    Attributes:
        python_cpu_s: CPU time of the Python process.
        jvm_cpu_s: CPU time of the JVM and of its Python workers.
        python_peak_bytes: Greatest resident set of the Python process.
        jvm_peak_bytes: Greatest resident set of the JVM.
        written_bytes: What both had the kernel write (`write_bytes` of proc(5)'s io).
    """

    python_cpu_s: float
    jvm_cpu_s: float
    python_peak_bytes: int
    jvm_peak_bytes: int
    written_bytes: int


class Meter:
    """Measures a Python process and its JVM from now on. The JVM may be started later.

    Args:
        pid: The Python process.
    """

    def __init__(self, pid: int) -> None:
        self._python = psutil.Process(pid)
        jvm = self._jvm()
        for process in (self._python, jvm):
            if process is not None:
                reset_peak(process.pid)
        self._python_before_s = cpu_s(self._python)
        self._jvm_before_s = 0.0 if jvm is None else tree_cpu_s(jvm)
        self._written_before_bytes = tree_written_bytes(self._python)

    def usage(self) -> Usage:
        """Return what was used until now."""
        jvm = self._jvm()
        return Usage(
            cpu_s(self._python) - self._python_before_s,
            0.0 if jvm is None else tree_cpu_s(jvm) - self._jvm_before_s,
            peak_bytes(self._python.pid),
            0 if jvm is None else peak_bytes(jvm.pid),
            tree_written_bytes(self._python) - self._written_before_bytes,
        )

    def _jvm(self) -> psutil.Process | None:
        return next((child for child in self._python.children() if child.name() == _JVM), None)


def cpu_s(process: psutil.Process) -> float:
    """Return a process's CPU time, without its children's."""
    times = process.cpu_times()
    return float(times.user + times.system)


def tree_cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process and of all processes below it, those that have ended included."""
    total_s = 0.0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended just now, and counts as its parent's
            times = one.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def tree_written_bytes(process: psutil.Process) -> int:
    """Return what a process and those below it have had the kernel write; those that have ended do not count."""
    total_bytes = 0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total_bytes += int(one.io_counters().write_bytes)
    return total_bytes


def peak_bytes(pid: int) -> int:
    """Return VmHWM, the peak of the resident set; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def reset_peak(pid: int) -> None:
    """Let the peak of the resident set begin anew; without the right to do so, it stays that of the whole life."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
