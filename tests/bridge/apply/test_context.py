"""What a worker's parts share."""

from __future__ import annotations

from typing import Any

from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.runtime.threads import Heartbeat
from tests.bridge.apply.made_worker import SUBSCRIPTION


def test_who_waits_shows_a_sign_of_life():
    nothing: Any = None
    stopping, heartbeat = [False], Heartbeat()
    made = Context(SUBSCRIPTION, nothing, nothing, nothing, lambda: stopping[0], heartbeat)
    begun_s = heartbeat.at_s
    assert made.name == "sub"
    assert not made.waiting()
    assert heartbeat.at_s > begun_s
    stopping[0] = True
    assert made.waiting()
