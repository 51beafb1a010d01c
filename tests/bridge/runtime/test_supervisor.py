"""systemd gets what sd_notify(3) says; the watchdog is fed only while every worker makes progress.

The first signal is noted, the second ends the process; SIGHUP is counted.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given, strategies as st

from pgbridge.bridge.runtime import supervisor
from pgbridge.bridge.runtime.supervisor import EXIT_AT_ONCE, Service, StopSignals, is_fed, status_line

PID = 4711


class Clock:
    """The monotonic clock."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def __call__(self) -> float:
        return self.at_s


@pytest.fixture(params=["path", "abstract"])
def notify(request, tmp_path):
    """The address of systemd's socket, and the socket."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@pgbridge-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(address.replace("@", "\0", 1) if address[0] == "@" else address)
        yield address, bound


def told(bound: socket.socket) -> list[str]:
    messages = []
    while select.select([bound], [], [], 0)[0]:
        messages.append(bound.recv(4096).decode())
    return messages


def test_messages(notify):
    address, bound = notify
    service = Service({"NOTIFY_SOCKET": address}, PID)
    service.status("starting Spark")
    service.ready()
    for state in ("copying", "streaming", "streaming"):
        service.status(status_line({"shop": state}))
    before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    service.reloading()
    service.stopping()
    *messages, reloading, stopping = told(bound)
    assert messages == [
        "STATUS=starting Spark",
        "READY=1",
        "STATUS=1 subscription: shop copying",
        "STATUS=1 subscription: shop streaming",
    ]
    first, _, at = reloading.partition("\nMONOTONIC_USEC=")
    assert (first, int(at) >= before_us) == ("RELOADING=1", True)
    assert stopping == "STOPPING=1"


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234", "/nonexistent/notify"])
def test_nobody_listens(address):
    """Nothing fails: neither without systemd, nor when it has gone."""
    service = Service({"NOTIFY_SOCKET": address} if address else {}, PID)
    service.ready()
    service.turn([])


def test_a_full_queue_does_not_stop_the_daemon(notify, monkeypatch):
    monkeypatch.setattr(supervisor, "_PATIENCE_S", 0.001)
    address, bound = notify
    service = Service({"NOTIFY_SOCKET": address}, PID)
    for number in range(1000):
        service.status(str(number))
    assert told(bound)[0] == "STATUS=0"


@pytest.mark.parametrize(
    ("environment", "feeds"),
    [
        ({}, False),
        ({"WATCHDOG_USEC": "100000000"}, True),
        ({"WATCHDOG_USEC": "100000000", "WATCHDOG_PID": str(PID)}, True),
        ({"WATCHDOG_USEC": "100000000", "WATCHDOG_PID": "1"}, False),  # another process's
        ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
    ],
)
def test_who_has_a_watchdog(notify, environment, feeds):
    address, bound = notify
    clock = Clock()
    service = Service({"NOTIFY_SOCKET": address, **environment}, PID, clock)
    clock.at_s += 50
    service.turn([])
    assert told(bound) == (["WATCHDOG=1"] if feeds else [])


def test_the_watchdog_is_fed_by_progress(notify):
    """By every worker's, and not more often than a tenth of its time."""
    address, bound = notify
    clock = Clock()
    service = Service({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000000"}, PID, clock)
    clock.at_s += 500  # Spark starts
    service.ready()
    clock.at_s += 5
    service.ready()  # a reload does not reset systemd's watchdog
    assert told(bound) == ["READY=1"] * 2
    for after_s, beats_s, fed in (
        (9, [9, 9], False),  # too soon
        (10, [9, 10], True),
        (20, [20, 10], False),  # the second one has not beaten since
        (99, [99, 10], False),
        (100, [100, 11], True),
        (1000, [], True),  # no subscription is enabled
    ):
        clock.at_s = 1500.0 + after_s
        service.turn(1500 + beat_s for beat_s in beats_s)
        assert told(bound) == (["WATCHDOG=1"] if fed else []), after_s


@given(st.floats(0, 1e6), st.lists(st.floats(0, 1e6)))
def test_fed_by_the_slowest(fed_s, beats_s):
    assert is_fed(fed_s, beats_s) == (min(beats_s, default=float("inf")) > fed_s)


def test_the_status_line():
    assert status_line({"shop": "streaming", "crm": "copying"}) == "2 subscriptions: shop streaming, crm copying"
    assert status_line({"shop": "error"}) == "1 subscription: shop error"


DEFAULTS = """
import signal
for number in (signal.SIGINT, signal.SIGHUP):  # the tests may have been started with them ignored, as by nohup
    signal.signal(number, signal.SIG_DFL)
"""

PROGRAM = (
    DEFAULTS
    + """
import time
from pgbridge.bridge.runtime.supervisor import StopSignals
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
        assert process.wait(60) == EXIT_AT_ONCE
        assert time.monotonic() - started_s < 10


def test_nothing_came():
    assert StopSignals().name is None
    assert StopSignals().hangups == 0


HANGUPS = (
    DEFAULTS
    + """
import os, signal, sys, time
from pgbridge.bridge.runtime.supervisor import StopSignals
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
        assert process.wait(60) == 0


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
import sys, threading, time
from pgbridge.bridge.runtime.supervisor import interruptible
if "ignored" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    with interruptible():
        try:
            print("ready", flush=True)
            time.sleep(60)
        finally:
            if "lock" in sys.argv:
                threading.Lock().release()  # as a Condition does if it is interrupted at the wrong moment
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
        assert process.wait(60) == 0


def test_a_view_is_ended_within_a_lock():
    with subprocess.Popen([sys.executable, "-c", VIEW, "lock"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "ended\n"
        assert process.wait(60) == 0


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
