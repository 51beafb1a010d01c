"""The first signal is noted, the second ends the process; SIGHUP is counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from bridge.runtime.signals import EXIT_AT_ONCE, StopSignals

DEFAULTS = """
import signal
for number in (signal.SIGINT, signal.SIGHUP):  # the tests may have been started with them ignored, as by nohup
    signal.signal(number, signal.SIG_DFL)
"""

PROGRAM = (
    DEFAULTS
    + """
import time
from bridge.runtime.signals import StopSignals
signals = StopSignals().install()
print(signals.name, flush=True)
while signals.name is None:
    time.sleep(0.01)
print(signals.name, flush=True)
time.sleep(60)
"""
)


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
    assert StopSignals().hangups == 0


HANGUPS = (
    DEFAULTS
    + """
import os, signal, sys, time
from bridge.runtime.signals import StopSignals
if len(sys.argv) > 1:
    os.open(sys.argv[1], os.O_RDWR)  # becomes the session's terminal
if "ignored" in sys.argv:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
signals = StopSignals().install()
for count in range(2):
    print(signals.name, signals.hangups, file=sys.stderr, flush=True)
    while signals.name is None and signals.hangups == count:
        time.sleep(0.01)
print(signals.name, signals.hangups, file=sys.stderr, flush=True)
"""
)


def test_each_hangup_is_counted_and_none_ends_it():
    line = [sys.executable, "-c", HANGUPS]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        for count in range(2):
            assert process.stderr.readline() == f"None {count}\n"
            process.send_signal(signal.SIGHUP)
        assert process.stderr.readline() == "None 2\n"
        assert process.wait(30) == 0


@pytest.mark.parametrize(("argument", "end"), [("", "SIGHUP 0\n"), ("ignored", "None 1\n")])
def test_a_terminal_that_is_closed(argument, end):
    """The daemon ends with it, cleanly; not if it was started by nohup, which has SIGHUP ignored."""
    master, slave = os.openpty()
    line = [sys.executable, "-c", HANGUPS, os.ttyname(slave), argument]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "None 0\n"
        os.close(slave)
        os.close(master)
        assert process.stderr.readline() == end
        process.kill()


VIEW = (
    DEFAULTS
    + """
import sys, time
from bridge.runtime.signals import interrupt
if "ignored" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
interrupt()
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("ended", flush=True)
    time.sleep(0.5)
"""
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_view_is_ended_once(number):
    with subprocess.Popen([sys.executable, "-c", VIEW], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "ended\n"
        process.send_signal(number)  # somebody who is in a hurry
        assert process.wait(30) == 0


def test_a_view_in_the_background_leaves_ignored_what_was():
    """A shell without job control starts it so."""
    with subprocess.Popen([sys.executable, "-c", VIEW, "ignored"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.terminate()
        assert process.stdout.readline() == "ended\n"
