"""A heart beats when it is told, and during waits."""

from __future__ import annotations

from pgbridge.bridge.runtime.threads import Heartbeat


def test_beats():
    now_s = [5.0]
    heartbeat = Heartbeat(lambda: now_s[0])
    assert heartbeat.at_s == 5
    now_s[0] = 6
    assert heartbeat.at_s == 5
    heartbeat.beat()
    assert heartbeat.at_s == 6


def test_a_wait_beats_and_answers():
    now_s, stopping = [5.0], [False]
    heartbeat = Heartbeat(lambda: now_s[0])
    waiting = heartbeat.beating(lambda: stopping[0])
    assert heartbeat.at_s == 5
    for at_s, answer in ((6.0, False), (7.0, True)):
        now_s[0], stopping[0] = at_s, answer
        assert waiting() is answer
        assert heartbeat.at_s == at_s
