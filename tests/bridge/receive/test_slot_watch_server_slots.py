"""Each server is asked once for all its subscriptions, and a silent one holds up nothing for long."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.slot_status import SlotHistory
from pgbridge.bridge.receive.slot_watch import ServerSlots, ask
from pgbridge.protocol.lsn import Lsn


def subscription(name: str, server: str) -> Subscription:
    return Subscription(name=name, connection=server, publications=("p",), warehouse="/lake")


A, B, C = subscription("a", "host=one"), subscription("b", "host=two"), subscription("c", "host=one")


class Servers:
    """Servers that answer at once, but for some that are silent."""

    def __init__(self, *silent: str) -> None:
        self.silent = set(silent)
        self.asked: list[list[str]] = []
        self.speak = threading.Event()

    def __call__(self, subscriptions):
        """Answer with the number of the question."""
        self.asked.append([one.name for one in subscriptions])
        health = replace(SlotHistory().add(0.0, None, Lsn(100)), confirmed_flush_lsn=Lsn(len(self.asked)))
        if subscriptions[0].connection in self.silent:
            self.speak.wait(60)
        return {one.name: health for one in subscriptions}


def test_a_server_is_asked_once():
    servers = Servers()
    found = ServerSlots(ask=servers).of([A, B, C])
    assert sorted(servers.asked) == [["a", "c"], ["b"]]
    assert found["a"] == found["c"] != found["b"]
    assert all(health.flush_lsn == 100 for health in found.values())


def test_no_subscription():
    assert ServerSlots(ask=Servers()).of([]) == {}


def test_a_silent_server_is_waited_for_once():
    """Not before its answer has come; that one is not used, because it is old by then."""
    servers = Servers("host=two")
    slots = ServerSlots(0.5, ask=servers)
    assert list(slots.of([A, B])) == ["a"]
    begun_s = time.monotonic()
    for _ in range(5):
        assert list(slots.of([A, B])) == ["a"]
    assert time.monotonic() - begun_s < 2.0
    assert servers.asked.count(["b"]) == 1
    (late,) = slots._late.values()
    servers.speak.set()
    late.result(20)
    assert slots.of([A, B])["b"].confirmed_flush_lsn == len(servers.asked) > 2


def test_a_bug_is_not_a_silent_server():
    def fail(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ServerSlots(ask=fail).of([A])


@pytest.mark.parametrize("server", ["host=/nonexistent", "not a connection string"])
def test_a_server_that_cannot_be_asked(server):
    assert ask([subscription("a", server)]) == {}
    assert ServerSlots(5).of([subscription("a", server)]) == {}


SILENT = """
import threading
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.slot_watch import ServerSlots
one = Subscription(name="a", connection="", publications=("p",), warehouse="/lake")
print(ServerSlots(0.05, ask=lambda _: threading.Event().wait()).of([one]))
"""


def test_the_end_of_the_process_does_not_wait_for_it():
    done = subprocess.run([sys.executable, "-c", SILENT], timeout=60, capture_output=True, text=True, check=True)
    assert done.stdout == "{}\n"
    assert done.stderr == ""
