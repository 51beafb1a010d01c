"""The first signal is noted, the second ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from bridge.signals import EXIT_AT_ONCE, StopSignals

PROGRAM = """
import time
from bridge.signals import StopSignals
signals = StopSignals().install()
print(signals.name, flush=True)
while signals.name is None:
    time.sleep(0.01)
print(signals.name, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(number):
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "None\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"{number.name}\n"
        started_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == EXIT_AT_ONCE
        assert time.monotonic() - started_s < 10


def test_nothing_came():
    assert StopSignals().name is None
